"""What the engine returns when it is really asked: ids and logprobs, prompts that only grow, ids of tool calls.

Read by the code that reads every recorded call. Takes a few tokens of the engine's time.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adapters.wires.chat import Answer, Captured, upstream_body
from adapters.wires.sse import EventSplitter
from mosaic.errors import EngineError
from proxy.doctor.asking import LONG_S, Answered, Engine
from proxy.doctor.finding import Finding, Level, in_words, note, ok, warning, wrong
from proxy.doctor.subject import Subject

Json = dict[str, Any]

TOKENS = 8
"""Most tokens of a reply, where it does not matter what it says."""
ASKED: Json = {"role": "user", "content": "Say hello."}
TOOL: Json = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a city up.",
        # With few names even a small model comes to the end of a call.
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string", "enum": ["Oslo", "Rome"]}},
            "required": ["name"],
        },
    },
}
TOOLS_ON = "Start vLLM with --enable-auto-tool-choice and the --tool-call-parser of its model."
KINDS: Mapping[str, Json] = {"whole": {}, "streamed": {"stream": True}, "with tools": {"tools": [TOOL], "stream": True}}
EXACT = 'Set fidelity = "exact" (vLLM with --enable-scale-out), or give vLLM a template that keeps history as it was.'


def capture(subject: Subject) -> Iterator[Finding]:
    """Ids and logprobs arrive and agree with the usage, in whole answers, in streams and with tools."""
    for engine in _sampled(subject):
        for kind, more in KINDS.items():
            answered, captured = _call(engine, subject, [ASKED], more)
            yield _captured(engine, kind, answered, captured)
    if not subject.sampling:
        yield note("the engine was not asked for tokens", "", "`mosaic doctor` on the command line asks.")


def _captured(engine: Engine, kind: str, answered: Answered, captured: Captured) -> Finding:
    if answered.status != 200:
        level, step = (Level.WARNING, TOOLS_ON) if kind == "with tools" else (Level.WRONG, "Look at its log.")
        what = f"engine {engine.base} refuses a call, {kind}: {answered.status} {answered.message}"
        return Finding(level, what, "An agent's calls of this kind fail in the same way.", step)
    if captured.inexact_reason is not None:
        why = "Such calls are recorded, and never trained: nothing is made up for what is missing."
        step = "Use vLLM 0.32 or newer, with nothing between it and Mosaic that drops fields."
        return wrong(f"ids and logprobs do not arrive, {kind}: {in_words(captured.inexact_reason)}", why, step)
    sampled = sum(len(choice.ids_T) for choice in captured.choices)
    return ok(f"ids and logprobs arrive, {kind}: {len(captured.prompt_ids_P)} in the prompt, {sampled} sampled")


def template(subject: Subject) -> Iterator[Finding]:
    """A conversation that goes on has its earlier prompt, and what was sampled, at the beginning of the next prompt."""
    for engine in _sampled(subject)[:1]:
        _, first = _call(engine, subject, [ASKED])
        if not len(first.prompt_ids_P) or not first.choices:
            return
        yield _grows(subject, "a reply", engine, [{"role": "assistant", "content": "Hello."}, _on("user")], {})
        call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"name": "Oslo"}'}}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        answer = {**_on("tool"), "tool_call_id": "call_1"}
        yield _grows(subject, "a tool's result", engine, [said, answer], {"tools": [TOOL]})
        yield _returns(subject, engine, first)


def _on(role: str) -> Json:
    return {"role": role, "content": "Go on."}


def _grows(subject: Subject, what: str, engine: Engine, more: Sequence[Json], given: Json) -> Finding:
    _, before = _call(engine, subject, [ASKED], {**given, "max_tokens": 1})
    answered, after = _call(engine, subject, [ASKED, *more], {**given, "max_tokens": 1})
    short, long = before.prompt_ids_P.tolist(), after.prompt_ids_P.tolist()
    if not short or not long:
        return note(f"whether the template grows by {what} is not known: {answered.message}", "", "")
    if long[: len(short)] == short:
        return ok(f"the template is append-only: {what} is added behind the prompt")
    return _cut(subject, f"the template is not append-only: with {what} the earlier prompt changes")


def _returns(subject: Subject, engine: Engine, first: Captured) -> Finding:
    """What was sampled comes back as it was; the last tokens are left out, at which the reply was cut."""
    reply = first.choices[0]
    sampled = reply.ids_T.tolist()
    kept = [*first.prompt_ids_P.tolist(), *(sampled if reply.finish_reason == "stop" else sampled[:-2])]
    answered, after = _call(engine, subject, [ASKED, {**reply.message}, _on("user")], {"max_tokens": 1})
    if answered.status != 200:
        return note(f"whether a reply comes back as it was sampled is not known: {answered.message}", "", "")
    if after.prompt_ids_P.tolist()[: len(kept)] == kept:
        return ok("a reply comes back in the next prompt as it was sampled")
    return _cut(subject, "a reply comes back in the next prompt with other ids than were sampled")


def _cut(subject: Subject, what: str) -> Finding:
    if subject.settings.fidelity == "exact":
        return note(what, "Exact mode puts what was sampled into the prompt.", "")
    return warning(
        what, "Each turn starts a training sequence of its own, so the same tokens are computed often.", EXACT
    )


def tool_ids(subject: Subject) -> Iterator[Finding]:
    """Two calls of a tool have two ids."""
    forced = {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look_up"}}, "max_tokens": 256}
    for engine in _sampled(subject)[:1]:
        replies = [_ask(engine, subject, [ASKED], forced) for _ in range(2)]
        if any(reply.status != 200 for reply in replies):
            said = next(reply.message for reply in replies if reply.status != 200)
            yield note(f"whether ids of tool calls are unique is not known: {said}", "", TOOLS_ON)
            return
        ids = [one for reply in replies for one in _ids(engine, reply)]
        if len(ids) < 2:
            yield note("the model called no tool, so nothing is known of the ids of tool calls", "", "")
        elif all(ids) and len(set(ids)) == len(ids):
            yield ok("the engine's ids of tool calls are unique")
        elif all(ids):
            why = "They are the best evidence of lineage, so the proxy puts a mark of its own behind each of them."
            yield note(f"the engine repeats ids of tool calls ({ids[0]})", why, "Nothing need be done.")
        else:
            why = "Lineage loses its best evidence; what is left are texts and claims."
            yield warning("the engine gives tool calls no ids", why, "Choose another --tool-call-parser.")


def _ids(engine: Engine, reply: Answered) -> list[str | None]:
    """Of the calls in a reply. Raises `EngineError` for what is no reply."""
    try:
        calls = reply.json["choices"][0]["message"].get("tool_calls") or ()
        return [str(call["id"]) if call.get("id") else None for call in calls]
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise _no_answer(engine, reply) from error


def _no_answer(engine: Engine, answered: Answered) -> EngineError:
    said = f"{answered.status} {answered.body[:80].decode('utf-8', 'replace')}"
    step = "Look at its log; upstream must be the address of an OpenAI-compatible server."
    return EngineError(f"engine {engine.base} answers a call with what is no answer: {said}", step)


def _sampled(subject: Subject) -> list[Engine]:
    """The engines that may be asked for tokens now."""
    return [engine for engine in subject.up if engine.models and not engine.paused] if subject.sampling else []


def _call(
    engine: Engine, subject: Subject, messages: Sequence[Json], more: Mapping[str, Any] | None = None
) -> tuple[Answered, Captured]:
    """A call with all that the proxy would ask for, and what the record would keep of it."""
    answered = _ask(engine, subject, messages, more or {})
    kept = Answer("doctor")
    if not (more or {}).get("stream"):
        kept.whole(answered.body)
    else:
        events = EventSplitter()
        for event in (*events.feed(answered.body), events.last()):
            kept.event(event, 0.0)
    return answered, kept.captured()


def _ask(engine: Engine, subject: Subject, messages: Sequence[Json], more: Mapping[str, Any]) -> Answered:
    asked = {"model": subject.model, "messages": messages, "max_tokens": TOKENS, "temperature": 0.0, **more}
    raw, _ = upstream_body(json.dumps(asked).encode(), asked)
    return engine.ask("/v1/chat/completions", raw, LONG_S)
