"""A small agent for rollouts: `agent.py PROMPT`. What it does besides one call stands in the prompt."""

import json
import os
import signal
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

MESSAGES = "messages"


def ask(prompt: str, wire: str = "chat") -> str:
    """One call, on either wire, with what the environment says alone."""
    said = {"model": "any", "max_tokens": 64, "messages": [{"role": "user", "content": f"Please do: {prompt}"}]}
    if wire == MESSAGES:
        headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "anthropic-version": "2023-06-01"}
        text: str = _post(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", said, headers)["content"][0]["text"]
        return text
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    answer: str = _post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", said, headers)["choices"][0]["message"][
        "content"
    ]
    return answer


def _post(url: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    given = {"content-type": "application/json", **headers}
    request = urllib.request.Request(url, json.dumps(body).encode(), given)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as response:
        return json.load(response)


def attempt(task: dict[str, Any]) -> float:
    """The agent as a function: 1 when the answer is the one that the task wants."""
    return float(ask(task["prompt"]) == task["answer"])


async def attempt_async(task: dict[str, Any]) -> str:
    """The same, as a coroutine that prints."""
    return ask(task["prompt"])


def main() -> None:
    """Act as the prompt says."""
    prompt = sys.argv[1]
    if "silent" not in prompt:
        sys.stdout.write(ask(prompt, MESSAGES if "claude" in prompt else "chat") + "\n")
    sys.stdout.flush()
    if "crash" in prompt:
        sys.exit("it crashed")
    if "flaky" in prompt and "~" not in os.environ["MOSAIC_TRAJECTORY"]:
        os.kill(os.getpid(), signal.SIGKILL)
    if "hang" in prompt:
        time.sleep(600)
    if "judge yourself" in prompt:
        Path(os.environ["MOSAIC_REWARD_FILE"]).write_text(json.dumps({"reward": 0.25, "note": "so so"}))
    Path("left.txt").write_text(json.loads(os.environ["MOSAIC_TASK"])["prompt"])


if __name__ == "__main__":
    main()
