"""`mosaic rollout` as a user meets it: in a process of its own, with a function or a command as the agent."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ProxyFactory, until
from tests.rollout.test_rollout import AGENT, ROOT, answers

TASKS = '{"id": "a", "prompt": "right", "answer": "42"}\n{"id": "b", "prompt": "wrong", "answer": "42"}\n'


async def start(folder: Path, *arguments: str) -> asyncio.subprocess.Process:
    environment = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    environment["PYTHONPATH"] = str(ROOT)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mosaic", "rollout", *arguments),
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def mosaic(folder: Path, *arguments: str) -> tuple[int, str, str]:
    started = await start(folder, *arguments)
    out, err = await started.communicate()
    return started.returncode or 0, out.decode(), err.decode()


async def test_a_command_is_rolled_out_and_the_last_line_is_the_mean_reward(
    start_proxy: ProxyFactory, tmp_path: Path
) -> None:
    (tmp_path / "tasks.jsonl").write_text(TASKS)
    async with start_proxy(answers) as proxy:
        agent = ("--", sys.executable, str(AGENT), "{prompt}")
        score = 'test "$(cat)" = 42 && echo 1 || echo 0'
        given = ("tasks.jsonl", "--attempts", "2", "--proxy", proxy.url, "--run", "r1", "--score", score, *agent)
        code, out, err = await mosaic(tmp_path, *given)
        assert (code, out.splitlines()[-1]) == (0, "0.5"), err
        assert out.splitlines()[1].split() == ["a", "2", "2", "1", "1"]
        assert (tmp_path / "var/rollouts/r1/r1.a.1/scratch/left.txt").exists()


async def test_a_function_is_an_agent_and_its_return_value_the_reward(
    start_proxy: ProxyFactory, tmp_path: Path
) -> None:
    (tmp_path / "tasks.jsonl").write_text(TASKS)
    (tmp_path / "mine.py").write_text("from tests.rollout.agent import attempt, attempt_async\n")
    async with start_proxy(answers) as proxy:
        given = ("tasks.jsonl", "--attempts", "1", "--proxy", proxy.url, "--json")
        code, out, err = await mosaic(tmp_path, *given, "--function", "mine:attempt")
        told: dict[str, Any] = json.loads(out)
        assert (code, told["mean_reward"]) == (0, 0.5), err
        assert [(a["task_id"], a["outcome"], a["reward"]) for a in told["attempts"]] == [
            ("a", "scored", 1),
            ("b", "scored", 0),
        ]
        code, out, err = await mosaic(tmp_path, *given, "--function", "mine:attempt_async")
        assert (code, json.loads(out)["tasks"][0]["other"]) == (0, {"unscored": 1}), err


CLIENT_AT_IMPORT = """
import os
from openai import OpenAI

CLIENT = OpenAI()

def attempt(task):
    messages = [{"role": "user", "content": f"Please do: {task['prompt']}"}]
    return CLIENT.chat.completions.create(model="any", messages=messages).choices[0].message.content

def judge(finished):
    return float(finished.output.strip() == finished.task["answer"] and "OPENAI_API_KEY" not in os.environ)
"""


async def test_an_agent_may_make_its_client_when_its_module_is_imported(
    start_proxy: ProxyFactory, tmp_path: Path
) -> None:
    (tmp_path / "tasks.jsonl").write_text(TASKS)
    (tmp_path / "mine.py").write_text(CLIENT_AT_IMPORT)
    async with start_proxy(answers) as proxy:
        given = ("tasks.jsonl", "--attempts", "1", "--proxy", proxy.url, "--function", "mine:attempt")
        code, out, err = await mosaic(tmp_path, *given, "--score-function", "mine:judge")
    assert (code, out.splitlines()[-1]) == (0, "0.5"), err


@pytest.mark.parametrize(
    ("score", "code", "failures"),
    [
        ("echo no such grader. >&2; exit 3", 1, 2),
        ('test "$(cat)" = 42 && echo 1 || { echo no such grader >&2; exit 3; }', 0, 1),
    ],
)
async def test_a_scorer_that_fails_is_told_and_one_that_always_fails_fails_the_run(
    start_proxy: ProxyFactory, tmp_path: Path, score: str, code: int, failures: int
) -> None:
    (tmp_path / "tasks.jsonl").write_text(TASKS)
    async with start_proxy(answers) as proxy:
        given = ("tasks.jsonl", "--attempts", "1", "--proxy", proxy.url, "--run", "r1", "--score", score)
        ended, out, err = await mosaic(tmp_path, *given, "--", sys.executable, str(AGENT), "{prompt}")
    assert (ended, out.splitlines()[-1]) == (code, "none" if code else "1"), err
    assert f"{failures} scorer failure{'s' if failures > 1 else ''}, see" in err
    assert f", see {tmp_path}/var/rollouts/r1/attempts.jsonl" in err
    assert err.count(f"the scorer ended with status 3: no such grader. Run it by hand: {score}") == 1


async def test_a_run_that_is_asked_to_end_takes_its_agents_with_it_and_says_how_to_go_on(
    start_proxy: ProxyFactory, tmp_path: Path
) -> None:
    (tmp_path / "tasks.jsonl").write_text(TASKS)
    agent = ("/bin/sh", "-c", "echo $$ > pid; exec sleep 600")
    async with start_proxy(answers) as proxy:
        run = await start(tmp_path, "tasks.jsonl", "--attempts", "1", "--proxy", proxy.url, "--run", "r1", "--", *agent)
        pids = [tmp_path / f"var/rollouts/r1/r1.{task}.1/scratch/pid" for task in "ab"]
        await until(lambda: all(file.exists() and file.read_text().strip() for file in pids))
        run.send_signal(signal.SIGTERM)
        _, err = await run.communicate()
        assert (run.returncode, b"--run r1" in err) == (130, True), err
        for file in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(int(file.read_text()), 0)
        assert not (tmp_path / "var/rollouts/r1/attempts.jsonl").exists()


@pytest.mark.parametrize(("agent", "hints"), [(("true",), 1), (("true", "{prompt}"), 0)])
async def test_an_agent_that_never_sees_its_task_is_a_hint(tmp_path: Path, agent: tuple[str, ...], hints: int) -> None:
    (tmp_path / "tasks.jsonl").write_text(TASKS)
    _, _, err = await mosaic(tmp_path, "tasks.jsonl", "--run", "a.b", "--", *agent)  # a name that is refused later
    assert err.count("Write {prompt} where the task belongs") == hints, err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "give one agent"),
        (("--function", "nowhere:f"), "cannot be loaded"),
        (("--function", "json"), "module:function"),
        (("--function", "early:solve"), "its module raised KeyError: 'NOT_SET_YET'. An attempt has"),
        (("--", "no-such-program"), "there is no program"),
        (("--run", "a.b", "--", "true"), "cannot name a run"),
        (("--score", "x", "--score-function", "json:dumps", "--", "true"), "one scorer"),
    ],
)
async def test_what_cannot_be_run_is_said_before_anything_is(
    tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    (tmp_path / "tasks.jsonl").write_text(TASKS)
    (tmp_path / "early.py").write_text("import os\nKEY = os.environ['NOT_SET_YET']\n")
    code, _, err = await mosaic(tmp_path, "tasks.jsonl", *arguments)
    assert code == 2, err
    assert complaint in err
