"""Compact playbooks: write what an agent says, get captured calls in the order in which they ended."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from mosaic.capture import CallStatus, CapturedCall, Choice

Message = Mapping[str, Any]


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str | None = None, *calls: tuple[str, str, str]) -> Message:
    """`calls` are (id, tool, arguments as JSON text)."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls
        ]
    return message


def result(tool_call_id: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": tool_call_id, "content": text}


class Recording:
    """Makes captured calls with rising times and append-only token ids."""

    def __init__(self, trajectory_id: str | None = "run-1", client: str = "agent") -> None:
        self._trajectory_id = trajectory_id
        self._client = client
        self._clock = itertools.count(1)

    def call(self, messages: list[Message], reply: Message, tools: str = "", **changes: Any) -> CapturedCall:
        """One call; `tools` are tool names parted by spaces."""
        now = float(next(self._clock))
        ids = ids_of([*messages, reply])
        prompt = ids_of(messages)
        values: dict[str, Any] = {
            "call_id": f"c{int(now)}-{self._trajectory_id or self._client}",
            "wire": "chat",
            "status": CallStatus.OK,
            "http_status": 200,
            "messages": tuple(messages),
            "params": {"model": "policy", "tools": [{"function": {"name": n}} for n in tools.split()]},
            "choices": (choice(reply, ids[len(prompt) :]),),
            "prompt_ids_P": np.asarray(prompt, np.int32),
            "usage": None,
            "inexact_reason": None,
            "started_at": now,
            "first_byte_at": now + 0.25,
            "ended_at": now + 0.5,
            "trajectory_id": self._trajectory_id,
            "attribution": "path" if self._trajectory_id else "lineage",
            "client": self._client,
        }
        return CapturedCall(**{**values, **changes})


def choice(reply: Message, ids: list[int], index: int = 0) -> Choice:
    logprobs = -np.arange(1, len(ids) + 1) / 16
    return Choice(index, reply, "stop", np.asarray(ids, np.int32), logprobs.astype(np.float32))


def ids_of(messages: list[Message]) -> list[int]:
    """Token ids that are append-only over messages: bytes of a plain rendering, each message closed by 256."""
    ids: list[int] = []
    for message in messages:
        ids += [*str(sorted((k, str(v)) for k, v in message.items())).encode("utf-8", "surrogatepass"), 256]
    return ids
