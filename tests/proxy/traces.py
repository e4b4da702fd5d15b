"""Recorded calls as the model path makes them, for tests of what comes after it."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mosaic.capture import CallStatus
from proxy.journal import Journal
from proxy.trace import Origin, Trace
from tests.engine.scripted import Turn, answer_to


def trace(call_id: str, messages: list[dict[str, Any]], turn: Turn, now: float, trajectory_id: str = "run-1") -> Trace:
    """A streamed call that ended well; ids and logprobs as the engine sends them when it is asked."""
    body = {"model": "policy", "messages": messages, "stream": True}
    asked = {**body, "logprobs": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
    stream = answer_to(asked, turn)
    cut = len(stream) // 2
    return Trace(
        origin=Origin(call_id, "chat", trajectory_id, "path", "agent", None, 0, True, {"user-agent": "agent"}, now),
        body=json.dumps(body).encode(),
        pieces=((now + 0.1, stream[:cut]), (now + 0.2, stream[cut:])),
        event_stream=True,
        status=CallStatus.OK,
        http_status=200,
        error=None,
        ended_at=now + 0.3,
    )


def conversation(turns: int, trajectory_id: str = "run-1") -> list[Trace]:
    """Calls of one session, each extending the one before."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Begin {trajectory_id}"}]
    found = []
    for number in range(turns):
        reply = f"This is reply {number}"
        found.append(trace(f"call-{trajectory_id}-{number}", messages, Turn(reply), 1e9 + number, trajectory_id))
        messages = [*messages, {"role": "assistant", "content": reply}, {"role": "user", "content": f"Go on {number}"}]
    return found


def unwritable(call: Trace) -> Trace:
    """The call with a number that no database takes."""
    return replace(call, origin=replace(call.origin, retry_count=2**63))


async def leave(folder: Path, calls: Sequence[Trace], ended: int | None = None) -> Path:
    """The journal of a process that died when so many of these calls had ended (all, if not said), none of them stored.

    Of those that had not, only the first piece of the answer had come.
    """
    ended = len(calls) if ended is None else ended
    journal = Journal(folder)
    entries = [journal.begin(call.origin, call.body) for call in calls]
    for at, (call, entry) in enumerate(zip(calls, entries, strict=True)):
        for when, piece in call.pieces[: None if at < ended else 1] if call.event_stream else ():
            journal.piece(entry, piece, when)
    for call, entry in zip(calls[:ended], entries, strict=False):
        assert journal.end(entry, call)
    journal.flush()
    (file,) = journal._files
    os.close(file.descriptor)
    return file.path
