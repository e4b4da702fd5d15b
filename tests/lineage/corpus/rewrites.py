"""The harmless rewrites of a history that frameworks make (harnesses.md §3), one function each.

Each takes the messages as they would be sent and how many calls were made before, and may change the messages' dicts:
they are shallow copies.
"""

import json
from collections.abc import Callable
from itertools import groupby
from typing import Any

Messages = list[dict[str, Any]]

CLEARED = "[Old tool result content cleared]"


def _texts(messages: Messages) -> Messages:
    return [m for m in messages if isinstance(m.get("content"), str) and m["content"]]


def blocks(messages: Messages, made: int) -> Messages:
    """A string becomes a block list, in every other call."""
    for m in _texts(messages) if made % 2 else []:
        m["content"] = [{"type": "text", "text": m["content"]}]
    return messages


def cache_marks(messages: Messages, _made: int) -> Messages:
    """The newest user or tool message is a block with a mark; the mark moves on."""
    said = [m for m in _texts(messages) if m["role"] in ("user", "tool")]
    for m in said[-1:]:
        m["content"] = [{"type": "text", "text": m["content"], "cache_control": {"type": "ephemeral"}}]
    return messages


def arguments(messages: Messages, made: int) -> Messages:
    """Arguments are written anew: other spaces, other order of keys."""
    for m in messages:
        if m.get("tool_calls"):
            m["tool_calls"] = [_reserialised(c, made) for c in m["tool_calls"]]
    return messages


def _reserialised(call: dict[str, Any], made: int) -> dict[str, Any]:
    given = json.loads(call["function"]["arguments"])
    again = json.dumps(dict(reversed(given.items())), separators=(",", ":"), indent=1 if made % 2 else None)
    return {**call, "function": {**call["function"], "arguments": again}}


def volatile_system(messages: Messages, made: int) -> Messages:
    """A date, a hash and what git says stand in the system text."""
    if messages and messages[0]["role"] == "system":
        line = (
            f"x-anthropic-billing-header: cc_version=2.1.{made}; cc_entrypoint=cli;\nToday is day {made} of the month."
        )
        messages[0]["content"] = f"{line}\n{messages[0]['content']}\nGit status: {made * 7} files changed."
    return messages


def system_inside(messages: Messages, made: int) -> Messages:
    """A system message in the midst of the conversation, in some calls only."""
    if made % 3 and len(messages) > 2:
        messages.insert(2, {"role": "system", "content": f"Environment: tide {made}, wind from the west."})
    return messages


def reminders(messages: Messages, made: int) -> Messages:
    """A reminder is put into the first user message, another time after the newest."""
    said = [m for m in _texts(messages) if m["role"] == "user"]
    for m in said[:1] if made % 2 else said[-1:]:
        m["content"] += f"\n<system-reminder>\nThe ledger has {made} new pages. Do not mention it.\n</system-reminder>"
    return messages


def result_order(messages: Messages, made: int) -> Messages:
    """Results of one batch stand in the order in which they came, differently each time they are sent."""
    ordered: Messages = []
    for is_result, group in groupby(messages, key=lambda m: m["role"] == "tool"):
        batch = list(group)
        ordered += reversed(batch) if is_result and made % 2 else batch
    return ordered


def cleared_results(messages: Messages, _made: int) -> Messages:
    """All results but the newest two are cleared."""
    for m in [m for m in messages if m["role"] == "tool"][:-2]:
        m["content"] = CLEARED
    return messages


def cut_arguments(messages: Messages, _made: int) -> Messages:
    """Long arguments of older calls are cut."""
    for m in [m for m in messages if m.get("tool_calls")][:-1]:
        m["tool_calls"] = [_cut(c) for c in m["tool_calls"]]
    return messages


def _cut(call: dict[str, Any]) -> dict[str, Any]:
    given = json.loads(call["function"]["arguments"])
    cut = {k: f"{v[:8]}...(argument truncated)" if isinstance(v, str) and len(v) > 8 else v for k, v in given.items()}
    return {**call, "function": {**call["function"], "arguments": json.dumps(cut)}}


def empty_content(messages: Messages, made: int) -> Messages:
    """What was not said is null, an empty text or not there."""
    for m in messages:
        if m.get("tool_calls") and not m.get("content"):
            m["content"] = "" if made % 2 else None
            if made % 3 == 2:
                del m["content"]
    return messages


def names(messages: Messages, _made: int) -> Messages:
    """Messages carry the name of who speaks, and an id of the framework's own."""
    for at, m in enumerate(messages):
        m |= {"name": "clerk", "id": f"msg_{at}"}
    return messages


def whitespace(messages: Messages, made: int) -> Messages:
    """Line ends and margins differ."""
    for m in _texts(messages):
        m["content"] = f"\n{m['content']}  " if made % 2 else m["content"].replace(". ", ".\n")
    return messages


def reasoning_dropped(messages: Messages, _made: int) -> Messages:
    """What the engine sent as reasoning is not sent back, or stands in another field."""
    for m in messages:
        m.pop("reasoning_content", None)
    return messages


def split_messages(messages: Messages, made: int) -> Messages:
    """A message of several blocks is sent as several messages."""
    sent: Messages = []
    for m in messages:
        if m["role"] == "user" and isinstance(m["content"], list) and made % 2:
            sent += [{**m, "content": part["text"]} for part in m["content"]]
        else:
            sent.append(m)
    return sent


def calls_as_text(messages: Messages, _made: int) -> Messages:
    """Tool calls and their results are told as text, with the calls' ids."""
    sent: Messages = []
    for m in messages:
        if m.get("tool_calls"):
            said = [{"id": c["id"], "type": "function", "function": c["function"]} for c in m["tool_calls"]]
            sent.append({"role": "assistant", "content": f"{m.get('content') or ''}\nCalling tools:\n{said}"})
        elif m["role"] == "tool":
            sent.append({"role": "user", "content": f"Observation:\n{m['content']}"})
        else:
            sent.append(m)
    return sent


HARMLESS: dict[str, Callable[[Messages, int], Messages]] = {
    f.__name__: f
    for f in (
        reasoning_dropped,
        volatile_system,
        reminders,
        whitespace,
        cleared_results,
        result_order,
        cut_arguments,
        arguments,
        empty_content,
        blocks,
        cache_marks,
        split_messages,
        system_inside,
        names,
    )
}
"""Those that may all be made at once, in this order; `calls_as_text` leaves nothing for the others."""
