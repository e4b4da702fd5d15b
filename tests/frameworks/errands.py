"""What the frameworks are sent to do, what the scripted engine says to it, and what must then stand in the store.

The script looks only at what the conversation holds, never at roles: smolagents turns calls and results into text.
"""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from mosaic.records import Call, Session, Trajectory
from mosaic.store.checking import check
from tests.conftest import Proxy
from tests.engine import Fault, Turn
from tests.engine.scripted import Script

TASK = "Where are the keys, and how many are there?"
ANSWER = "There are 7 keys."

JOBS = {"keys": "Count all the keys in the house.", "coins": "Count all the coins in the house."}
"""What the lead hands to its two subagents: the thing -> the subagent's prompt."""
LEAD_TASK = "Tell me about the keys and the coins."
LEAD_ANSWER = "There are 7 keys. There are 7 coins."

PLACES = ("table", "drawer", "shelf", "cellar", "attic", "shed", "barn")
TOUR = "Look at each place in turn and tell me where keys are."
TOUR_ANSWER = "Keys are everywhere."
ROOM = 3
"""Looks that fit into the porter's context."""

SPAWNERS = ("ask_expert", "task", "expert")
"""Names of the tools by which a lead starts a subagent."""
HANDOFF = "transfer_to_expert"

Tool = Callable[..., str]


def look(place: str) -> str:
    """Look into a place.

    Args:
        place: Where to look.
    """
    return f"the {place} holds keys"


def count(things: str) -> str:
    """Count things.

    Args:
        things: What to count.
    """
    return f"7 {things}"


def survey(place: str) -> str:
    """Look at a place closely.

    Args:
        place: Where to look.
    """
    return f"the {place} holds keys. {'Dust lies on everything else there. ' * 40}"


@dataclass(frozen=True, slots=True)
class Errand:
    """One run of a framework."""

    url: str
    """Of the proxy, without `/v1`."""
    wire: str
    """`chat`, `responses` or `messages`."""
    stream: bool
    """Whether the framework asks for streams."""
    tools: tuple[Tool, ...] = (look, count)
    """Plain functions, which every framework turns into tools by itself."""
    task: str = TASK
    """The user's message."""
    system: str = "Find things."
    """The agent's own instructions."""
    expert: bool = False
    """True gives the agent an expert as its subagent, who alone has the tools."""
    handoff: bool = False
    """True gives it an expert to hand the conversation to instead."""
    compacts: bool = False
    """True makes it compact its context in the way that the framework has for it."""
    max_tokens: int = 500
    """Longest reply, in tokens."""

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"


def read(message: dict[str, Any]) -> dict[str, Any]:
    """A message as vLLM hands it to a chat template: parts of text are one text, arguments are parsed.

    The scripted engine renders what it gets, so without this a framework that sends parts or spaces its JSON would
    seem to change what was sampled.
    """
    flat = dict(message)
    if isinstance(message.get("content"), list):
        flat["content"] = "\n".join(part["text"] for part in message["content"] if part["type"] == "text")
    if calls := message.get("tool_calls"):
        flat["tool_calls"] = [{**call, "function": _compact(call["function"])} for call in calls]
    return flat


def _compact(function: dict[str, Any]) -> dict[str, Any]:
    return {**function, "arguments": json.dumps(json.loads(function["arguments"]), separators=(",", ":"))}


def as_vllm_reads(script: Script) -> Script:
    """The script, with the request made as vLLM reads it before it is rendered."""

    @wraps(script)
    def reading(body: dict[str, Any]) -> Turn:
        body["messages"] = [read(message) for message in body["messages"]]
        return script(body)

    return reading


def _named(body: dict[str, Any]) -> set[str]:
    return {tool["function"]["name"] for tool in body.get("tools") or []}


def _call(name: str, **arguments: str) -> tuple[str, str]:
    return name, json.dumps(arguments, separators=(",", ":"))


def _answer(body: dict[str, Any], text: str) -> Turn:
    """The last reply; smolagents wants it as a call."""
    if "final_answer" in _named(body):
        return Turn("I am done.", calls=(_call("final_answer", answer=text),))
    return Turn(text)


@as_vllm_reads
def finder(body: dict[str, Any]) -> Turn:
    """Looks at two places at once, then counts, then answers."""
    seen = json.dumps(body["messages"])
    if "7 keys" in seen:
        return _answer(body, ANSWER)
    if "holds keys" in seen:
        return Turn("I count.", calls=(_call("count", things="keys"),))
    return Turn("I look.", calls=(_call("look", place="table"), _call("look", place="drawer")))


def expert(body: dict[str, Any]) -> Turn:
    """Counts what it was asked to, then says how many there are."""
    seen = json.dumps(body["messages"])
    thing = next((thing for thing, job in JOBS.items() if job in seen), "keys")
    if f"7 {thing}" in seen:
        return _answer(body, f"There are 7 {thing}.")
    return Turn(f"I count the {thing}.", calls=(_call("count", things=thing),))


@as_vllm_reads
def lead(body: dict[str, Any]) -> Turn:
    """Starts two experts at once (or hands over to one), then puts their answers together.

    smolagents' managed agent is one object with one memory: it is asked one job after the other.
    """
    names = _named(body)
    if HANDOFF in names:
        return Turn("The expert shall do it.", calls=((HANDOFF, "{}"),))
    spawner = next((name for name in SPAWNERS if name in names), None)
    if spawner is None:
        return expert(body)
    seen = json.dumps(body["messages"])
    left = [job for thing, job in JOBS.items() if f"There are 7 {thing}." not in seen]
    if not left:
        return _answer(body, LEAD_ANSWER)
    at_once = left[:1] if spawner == "expert" else left
    return Turn("I ask.", calls=tuple(_spawn(spawner, job) for job in at_once))


def unlike(script: Script) -> Script:
    """The script, with other words each time: what goes with tool calls, and what a subagent is asked."""

    @wraps(script)
    def saying(body: dict[str, Any]) -> Turn:
        turn = script(body)
        if not turn.calls:
            return turn
        mark = uuid.uuid4().hex
        calls = tuple((name, given.replace(" house.", f" house. Call it {mark}.")) for name, given in turn.calls)
        return replace(turn, content=f"{turn.content} Mark {mark}.", calls=calls)

    return saying


@as_vllm_reads
def porter(body: dict[str, Any]) -> Turn:
    """Looks at all places, one after the other; what it writes without tools is a summary of what it has seen."""
    seen = json.dumps(body["messages"])
    done = [place for place in PLACES if f"the {place} holds keys" in seen]
    if not body.get("tools"):
        return Turn("What was found out so far: " + ", ".join(f"the {place} holds keys" for place in done) + ".")
    if len(done) == len(PLACES):
        return _answer(body, TOUR_ANSWER)
    place = PLACES[len(done)]
    return Turn(f"I look at the {place}.", calls=(_call("survey", place=place),))


def cramped_porter(body: dict[str, Any]) -> Turn:
    """The same in an engine whose context is full after a few looks."""
    looks = sum(message["role"] == "tool" for message in body["messages"])
    return Turn(fault=Fault.OVERFLOW) if body.get("tools") and looks > ROOM else porter(body)


@as_vllm_reads
def shell(body: dict[str, Any]) -> Turn:
    """Looks at two places at once in a shell, counts, and hands the answer in as mini-swe-agent asks for it."""
    seen = json.dumps(body["messages"])
    if "7 keys" in seen:
        submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo There are 7 $(echo keys)."
        return Turn("I am done.", calls=(_call("bash", command=submit),))
    if "holds keys" in seen:
        return Turn("I count.", calls=(_call("bash", command="echo 7 keys"),))
    looks = [_call("bash", command=f"echo the {place} holds keys") for place in ("table", "drawer")]
    return Turn("I look.", calls=tuple(looks))


def _spawn(name: str, job: str) -> tuple[str, str]:
    if name == "task":
        return _call(name, description=job, subagent_type="general-purpose")
    return _call(name, **{"task" if name == "expert" else "input": job})


def the_trajectory(proxy: Proxy) -> Trajectory:
    """The only one in the store, every call of the run in it, and every one exact."""
    assert check(proxy.store.database, deep=True) == []
    (summary,) = proxy.store.trajectories()
    trajectory = proxy.store.trajectory(summary.trajectory_id)
    calls = [call for session in trajectory.sessions for call in session.calls]
    assert len(calls) == len(proxy.engine.requests)
    assert [call.auxiliary for call in calls if call.auxiliary] == []
    for call in calls:
        check_exact(call)
    return trajectory


def check_exact(call: Call) -> None:
    """The scripted engine's ids are bytes: what was recorded spells what was said."""
    assert call.exact
    (sample,) = call.samples
    assert len(sample.ids_T) == len(sample.logprobs_T) > 0
    said = bytes(sample.ids_T[:-1].tolist()).decode()
    assert said.startswith(sample.message.get("content") or "")


def check_continuous(session: Session) -> None:
    """Each prompt goes on where the one before and its reply ended: one training sequence."""
    for before, after in zip(session.calls, session.calls[1:], strict=False):
        known = [*before.prompt_ids_P.tolist(), *before.samples[0].ids_T.tolist()]
        assert after.prompt_ids_P[: len(known)].tolist() == known
