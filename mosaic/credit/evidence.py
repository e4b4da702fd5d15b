"""Evidence: what the sessions of a trajectory found out, as discrete keys that can be counted across trajectories.

Keys are digests of (a) tool results, chat form `{"role": "tool", "content": ...}`, and (b) the tool calls (name and
arguments) that the policy sampled and that brought back a usable result. Empty and failed results are no evidence, nor
are the calls that led to them. A subagent's report is the child's finding and none of the parent's. This is this
project's own design (mosaic.md, section 4.2, E2), in the spirit of GiGPO's anchors.

Limits: an agent that puts results into user messages leaves no keys; results that differ in one word are different
keys.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mosaic.records import Call, Message, SessionKind, Trajectory

ERROR = re.compile(r"\W*(?:(?:\w+ ){0,3}\w*(?:error|exception)\W*[:>\]]|traceback \(most recent)", re.IGNORECASE)
"""How a failed result begins: `Error: ..`, `Tool call error: ..`, `[ERROR] ..`, `<tool_use_error>..`, a traceback."""


@dataclass(frozen=True, slots=True)
class SessionEvidence:
    """The keys of one session."""

    keys: frozenset[str]
    """All that the session came upon itself."""
    new: frozenset[str]
    """Those of them that nothing earlier in the trajectory had come upon."""

    @property
    def exploration(self) -> float:
        """Share of new keys, in [0, 1]; 0 without any key."""
        return len(self.new) / len(self.keys) if self.keys else 0.0


def trajectory_evidence(trajectory: Trajectory) -> dict[str, SessionEvidence]:
    """Return the evidence of every session by its id.

    Calls are read in order of their start, auxiliary ones not at all. A result belongs to the session that made the
    tool call, or else to the first one in which it appears, so what a compaction keeps and a fork inherits is not
    theirs.
    """
    reports = _report_ids(trajectory)
    keys: dict[str, set[str]] = {session.session_id: set() for session in trajectory.sessions}
    new: dict[str, set[str]] = {session.session_id: set() for session in trajectory.sessions}
    sampled: dict[str, tuple[str, str]] = {}
    found: set[str] = set()
    arrived: set[str] = set()
    for session_id, call in _task_calls(trajectory):
        for result_id, text in _new_results(call, arrived):
            owner, call_key = sampled.get(result_id, (session_id, ""))
            result_key = "" if result_id in reports else _digest("result", text)
            for key in filter(None, (call_key, result_key)):
                keys[owner].add(key)
                if key not in found:
                    new[owner].add(key)
                found.add(key)
        sampled.update((call_id, (session_id, key)) for call_id, key in _sampled_tool_calls(call))
    return {sid: SessionEvidence(frozenset(keys[sid]), frozenset(new[sid])) for sid in keys}


def _task_calls(trajectory: Trajectory) -> list[tuple[str, Call]]:
    calls = [(session.session_id, call) for session in trajectory.sessions for call in session.calls]
    return sorted((pair for pair in calls if pair[1].auxiliary is None), key=lambda pair: pair[1].started_at)


def _report_ids(trajectory: Trajectory) -> set[str]:
    """Ids of the tool calls whose results are subagents' reports (and of those sampled beside them in one reply)."""
    spawning = {s.opened_by_call_id for s in trajectory.sessions if s.kind is SessionKind.SPAWN}
    calls = (call for session in trajectory.sessions for call in session.calls if call.call_id in spawning)
    return {call_id for call in calls for call_id, _ in _sampled_tool_calls(call)}


def _new_results(call: Call, arrived: set[str]) -> Iterator[tuple[str, str]]:
    """The usable results of a request that no earlier request carried, as tool-call id ("" if absent) and text.

    A result is read once, by its id: what a framework later cuts it down to ("[cleared]") is not found, but lost.
    """
    for message in call.messages:
        result_id = str(message.get("tool_call_id") or "")
        if message.get("role") != "tool" or result_id in arrived:
            continue
        if result_id:
            arrived.add(result_id)
        text = _usable_text(message)
        if text:
            yield result_id, text


def _usable_text(message: Message) -> str:
    """The text of a tool result in canonical form; empty when there is none or it tells of an error."""
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    text = content if isinstance(content, str) else ""
    value = _parsed(text)
    failed = bool(message.get("is_error")) or (isinstance(value, str) and ERROR.match(value[:200]) is not None)
    if isinstance(value, dict):
        failed = failed or any(value.get(name) for name in ("error", "is_error", "isError"))
    if failed or value in (None, "", [], {}):
        return ""
    return _canonical(text)


def _sampled_tool_calls(call: Call) -> Iterator[tuple[str, str]]:
    """Id and key of every tool call that the policy sampled in this call; without an id, no result can be its own."""
    for sample in call.samples:
        for tool_call in sample.message.get("tool_calls") or ():
            if not tool_call.get("id"):
                continue
            function: Any = tool_call.get("function") or {}
            arguments = function.get("arguments")
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            yield str(tool_call["id"]), _digest("call", str(function.get("name")), _canonical(text))


def _parsed(text: str) -> Any:
    """The JSON value of a text, or else the text with its white space collapsed."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return " ".join(text.split())


def _canonical(text: str) -> str:
    value = _parsed(text)
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _digest(*parts: str) -> str:
    joined = "\0".join(parts).encode("utf-8", "surrogatepass")
    return f"{parts[0]}:{hashlib.blake2b(joined, digest_size=16).hexdigest()}"
