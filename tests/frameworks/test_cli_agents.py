"""Command-line agents from npm, unmodified, through the proxy: a run with a tool ends normally and is recorded.

Each test needs its binary, named by an environment variable: `CLI_CLAUDE`, `CLI_CODEX`, `CLI_OPENCODE`, `CLI_QWEN`, and
`CLI_OPENHANDS` a Python that has the OpenHands SDK. They run with an empty environment, a throw-away home, a dummy key
and a loopback address.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Proxy, ProxyFactory
from tests.engine import Turn
from tests.frameworks.errands import as_vllm_reads, check_exact

pytestmark = pytest.mark.slow

TASK = "Read the file note.txt with a shell command and tell me what it says."
NOTE = "the spare key hangs behind the door"
ANSWER = f"The note says that {NOTE}."
COMMAND = "cat note.txt"
SHELLS = ("bash", "exec_command", "terminal")


def binary(variable: str) -> str:
    path = os.environ.get(variable)
    if not path:
        pytest.skip(f"{variable} does not name a binary")
    return path


def _tool(body: dict[str, Any]) -> tuple[str, str] | None:
    """The agent's shell tool, with arguments that its schema takes."""
    for tool in body.get("tools") or []:
        function = tool["function"]
        known = function.get("parameters", {}).get("properties", {})
        if "shell" not in function["name"].lower() and function["name"].lower() not in SHELLS:
            continue
        key = "command" if "command" in known else "cmd"
        command: Any = ["bash", "-c", COMMAND] if known.get(key, {}).get("type") == "array" else COMMAND
        more = {"description": "Reads the note"} if "description" in known else {}
        return function["name"], json.dumps({key: command, **more}, separators=(",", ":"))
    return None


@as_vllm_reads
def reader(body: dict[str, Any]) -> Turn:
    """Reads the note with the agent's shell, then says what it says; a call without tools is one for a title."""
    call = _tool(body)
    if NOTE in json.dumps([m for m in body["messages"] if m["role"] == "tool"]):
        return Turn(ANSWER)
    return Turn("A note to read") if call is None else Turn("I read it.", calls=(call,))


async def run(folder: Path, *command: str, **environment: str) -> str:
    """Run an agent in a folder that holds the note; returns what it printed."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    (folder / "note.txt").write_text(NOTE + "\n")
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "TERM": "dumb", **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 120)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == 0, (out + err).decode(errors="replace")[-3000:]
    return out.decode()


def check_run(proxy: Proxy) -> None:
    """One trajectory; the root session reads, then answers; whatever else was asked is exact as well."""
    (summary,) = proxy.store.trajectories()
    sessions = proxy.store.trajectory(summary.trajectory_id).sessions
    calls = [call for session in sessions for call in session.calls]
    assert len(calls) == len(proxy.engine.requests)
    for call in calls:
        check_exact(call)
    said = [c.samples[0].message.get("content") for c in calls]
    assert [text for text in said if text != "A note to read"] == ["I read it.", ANSWER]


@pytest.mark.parametrize("path", ["", "/t/run-1"])
async def test_claude_code(start_proxy: ProxyFactory, tmp_path: Path, path: str) -> None:
    claude = binary("CLI_CLAUDE")
    async with start_proxy(reader) as proxy:
        options = ("--model", "any-name", "--allowedTools", "Bash")
        environment = {
            "ANTHROPIC_BASE_URL": f"{proxy.url}{path}",
            "ANTHROPIC_API_KEY": "any",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        assert ANSWER in await run(tmp_path, claude, "-p", TASK, *options, **environment)
        check_run(proxy)


@pytest.mark.parametrize("path", ["", "/t/run-1"])
async def test_codex(start_proxy: ProxyFactory, tmp_path: Path, path: str) -> None:
    codex = binary("CLI_CODEX")
    async with start_proxy(reader) as proxy:
        home = tmp_path / "home" / ".codex"
        home.mkdir(parents=True)
        (home / "config.toml").write_text(
            'model = "any-name"\nmodel_provider = "mosaic"\n[model_providers.mosaic]\nname = "mosaic"\n'
            f'base_url = "{proxy.url}{path}/v1"\nwire_api = "responses"\nenv_key = "MODEL_KEY"\n'
        )
        options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
        assert ANSWER in await run(tmp_path, codex, "exec", *options, TASK, MODEL_KEY="any")
        check_run(proxy)


@pytest.mark.parametrize("path", ["", "/t/run-1"])
async def test_opencode(start_proxy: ProxyFactory, tmp_path: Path, path: str) -> None:
    opencode = binary("CLI_OPENCODE")
    async with start_proxy(reader) as proxy:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{proxy.url}{path}/v1", "apiKey": "any"},
            "models": {"policy": {"name": "policy"}},
        }
        config = {"provider": {"mosaic": provider}, "model": "mosaic/policy", "permission": "allow"}
        (tmp_path / "opencode.json").write_text(json.dumps(config))
        environment = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
        out = await run(tmp_path, opencode, "run", "--model", "mosaic/policy", TASK, **environment)
        assert ANSWER in out
        check_run(proxy)


@pytest.mark.parametrize("path", ["", "/t/run-1"])
async def test_qwen_code(start_proxy: ProxyFactory, tmp_path: Path, path: str) -> None:
    qwen = binary("CLI_QWEN")
    async with start_proxy(reader) as proxy:
        home = tmp_path / "home" / ".qwen"
        home.mkdir(parents=True)
        (home / "settings.json").write_text(json.dumps({"security": {"auth": {"selectedType": "openai"}}}))
        environment = {"OPENAI_BASE_URL": f"{proxy.url}{path}/v1", "OPENAI_API_KEY": "any", "OPENAI_MODEL": "policy"}
        assert ANSWER in await run(tmp_path, qwen, "-p", TASK, "--yolo", **environment)
        check_run(proxy)


@pytest.mark.parametrize("path", ["", "/t/run-1"])
async def test_openhands(start_proxy: ProxyFactory, tmp_path: Path, path: str) -> None:
    python = binary("CLI_OPENHANDS")
    async with start_proxy(reader) as proxy:
        script = str(Path(__file__).with_name("openhands_attempt.py"))
        environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        assert ANSWER in await run(tmp_path, python, script, f"{proxy.url}{path}/v1", TASK, **environment)
        check_run(proxy)
