"""The stage of a playbook: agents that speak, and for every call what is true of it.

A playbook is a function that lets agents speak; a `Play` is one copy of it and writes the calls down in the order in
which they ended. What a model samples comes from the play's voice, so that copies may say the same or not; what a user,
a system text or a tool says is the same in all copies, and tool-call ids never are, as behind the proxy. Nothing here
knows how lineage decides.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mosaic.capture import CallStatus, CapturedCall, Choice
from mosaic.records import Message, SessionKind

_WORDS = """
amber anchor barley basin beacon birch bramble brook candle canyon cedar cinder clover cobalt copper coral
cotton crane delta ember falcon fennel fern flint garnet ginger glacier granite hazel heron hollow indigo ivory
jasper juniper kelp lantern larch lichen linen maple meadow mica mulberry nettle oak olive onyx orchid otter
pebble pepper pine poplar quartz raven reed russet saffron sage sandal sedge slate sorrel spruce sumac teal
thistle topaz umber velvet walnut willow wren yarrow zinc
"""
WORDS = _WORDS.split()

Rewrite = Callable[[list[dict[str, Any]], int], list[dict[str, Any]]]
"""(The messages as they would be sent, how many calls the agent made before) -> as they are sent."""
Ids = Callable[["Agent"], tuple[dict[str, str], dict[str, Any]]]
"""The headers and parameters in which a framework says which agent calls."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What is true of a call."""

    trajectory: str
    session: str
    kind: SessionKind
    """How the session opened."""
    parent: str | None
    """The session that it came from."""
    auxiliary: str | None = None
    """What it does for the framework, or None when it serves the task."""
    summary: bool = False
    """True for the calls of a compaction: they belong to the session that it closes, and need no tag."""
    retry: bool = False
    """True when the same request was sent before."""


@dataclass(frozen=True, slots=True)
class Line:
    """A call and what is true of it."""

    call: CapturedCall
    truth: Truth


def nobody(_agent: "Agent") -> tuple[dict[str, str], dict[str, Any]]:
    """No ids at all."""
    return {}, {}


class Play:
    """One copy of a playbook."""

    def __init__(self, name: str, copy: int = 0, *, voice: int = 0, ids: bool = True, shared: bool = False) -> None:
        """`voice` seeds what is sampled; `ids` False strips what frameworks say of themselves; `shared` makes all
        copies say the same of themselves."""
        self.name = f"{name}/{copy}"
        self.task = f"Find out how many boats lie in the harbour of {name.title()}, and who owns them."
        self.lines: list[Line] = []
        self.with_ids = ids
        self._voice = random.Random(f"{name}/{voice}")
        self._unique = random.Random(f"{name}/{copy}/ids")
        self._said = random.Random(f"{name}/{'all' if shared else copy}/said")

    def say(self, text: str) -> str:
        """A text as the model samples it."""
        return f"{text} ({' '.join(self._voice.choices(WORDS, k=4))})"

    def new_id(self, prefix: str = "chatcmpl-tool-") -> str:
        """A tool-call id, globally unique."""
        return f"{prefix}{self._unique.getrandbits(96):024x}"

    def new_claim(self) -> str:
        """An id of the framework's own."""
        return f"{self._said.getrandbits(128):032x}"

    def agent(self, session: str = "main", **more: Any) -> "Agent":
        """An agent with a context of its own."""
        return Agent(self, session, **more)

    def write(self, messages: Sequence[Message], replies: Sequence[Message], truth: Truth, **values: Any) -> Line:
        """Write down a call that has ended."""
        number = float(len(self.lines))
        params = values.pop("params", {})
        choices = tuple(Choice(i, r, "stop", _NO_IDS, _NO_LOGPROBS) for i, r in enumerate(replies))
        call: dict[str, Any] = {
            "call_id": f"{self.name}/{len(self.lines)}",
            "wire": "chat",
            "status": CallStatus.OK,
            "http_status": 200,
            "messages": tuple(messages),
            "params": {"model": "policy", **params},
            "choices": choices,
            "prompt_ids_P": _NO_IDS,
            "usage": None,
            "inexact_reason": None,
            "started_at": number,
            "first_byte_at": number + 0.25,
            "ended_at": number + 0.5,
            "client": "agent",
        }
        line = Line(CapturedCall(**{**call, **values}), replace(truth, trajectory=f"{self.name}:{truth.trajectory}"))
        self.lines.append(line)
        return line


_NO_IDS = np.zeros(0, np.int32)
_NO_LOGPROBS = np.zeros(0, np.float32)


@dataclass
class Agent:
    """An agent: its history, and what its framework sends with it."""

    play: Play
    session: str
    kind: SessionKind = SessionKind.ROOT
    parent: "Agent | None" = None
    system: str = "You are a patient clerk of the harbour office. Look things up before you answer."
    tools: str = "look count"
    """Names, parted by spaces."""
    ids: Ids = nobody
    rewrite: Rewrite | None = None
    """What the framework does to the history whenever it sends it."""
    trajectory: str = ""
    """Told apart within a copy that makes several attempts."""

    def __post_init__(self) -> None:
        self.history: list[dict[str, Any]] = []
        self.open: list[str] = []
        """Ids of the newest tool calls."""
        self.made = 0
        """Calls so far."""
        self.window = 0
        """Compactions so far."""
        self.reply: dict[str, Any] = {}
        """The newest reply, as the engine sent it."""
        self.claim = self.play.new_claim()
        if self.parent is not None:
            self.trajectory = self.parent.trajectory

    @property
    def truth(self) -> Truth:
        parent = self.parent.session if self.parent else None
        return Truth(self.trajectory, self._name(self.session) or "", self.kind, self._name(parent))

    def _name(self, session: str | None) -> str | None:
        return f"{self.play.name}:{session}" if session is not None else None

    def hears(self, *texts: str) -> "Agent":
        """The user says something; several texts are blocks of one message."""
        content = texts[0] if len(texts) == 1 else [{"type": "text", "text": t} for t in texts]
        self.history.append({"role": "user", "content": content})
        return self

    def says(self, text: str, **changes: Any) -> str:
        """A call that is answered with a text; returns the text."""
        return self.calls(text, **changes)

    def calls(self, text: str | None, *calls: tuple[str, Mapping[str, Any]], **changes: Any) -> str:
        """A call that is answered with tool calls; returns the text that goes with them."""
        said = self.play.say(text) if text else ""
        self.reply = reply(said, *[(self.play.new_id(), name, arguments) for name, arguments in calls])
        self.sends(self.reply, **changes)
        self.open = [c["id"] for c in self.reply.get("tool_calls", ())]
        self.history.append(self.reply)
        return said

    def sends(self, *replies: Message, **changes: Any) -> Line:
        """A call that leaves the history as it is. `changes`: `messages`, `system`, `tools`, a Truth's or a call's."""
        messages = changes.pop("messages", None) or self.history
        system = changes.pop("system", self.system)
        sent = [*([{"role": "system", "content": system}] if system else []), *messages]
        if self.rewrite is not None:
            sent = self.rewrite([dict(m) for m in sent], self.made)
        headers, params = self.ids(self) if self.play.with_ids else ({}, {})
        tools = changes.pop("tools", self.tools).split()
        params = {**params, **({"tools": [{"function": {"name": n}} for n in tools]} if tools else {})}
        truth = replace(self.truth, **{k: changes.pop(k) for k in _OF_TRUTH if k in changes})
        self.made += 1
        return self.play.write(sent, replies, truth, **{"headers": headers, "params": params, **changes})

    def gets(self, *texts: str, order: Sequence[int] | None = None) -> "Agent":
        """The results of the newest tool calls, in the order of the calls unless another is given."""
        results = [{"role": "tool", "tool_call_id": i, "content": t} for i, t in zip(self.open, texts, strict=True)]
        self.history += [results[at] for at in order or range(len(results))]
        return self

    def works(self, *places: str) -> "Agent":
        """Looks at places, one call each."""
        for place in places:
            self.calls(f"I look at the {place}.", ("look", {"place": self.play.say(place), "depth": 2}))
            self.gets(f"The {place} holds three ropes and a ledger.")
        return self

    def spawns(self, session: str, **more: Any) -> "Agent":
        """A subagent, with a context of its own."""
        given: dict[str, Any] = {"system": "You are a helper of the clerk. Be brief.", "ids": self.ids, **more}
        return Agent(self.play, session, given.pop("kind", SessionKind.SPAWN), self, **given)

    def compacted(self, session: str, **more: Any) -> "Agent":
        """The same agent in a new context, after a compaction."""
        values = {"system": self.system, "tools": self.tools, "ids": self.ids, "rewrite": self.rewrite, **more}
        after = Agent(self.play, session, SessionKind.COMPACTION, self, **values)
        after.claim, after.window, after.made = self.claim, self.window + 1, self.made
        return after


_OF_TRUTH = ("auxiliary", "summary", "retry", "session", "kind", "parent")


def reply(text: str, *calls: tuple[str, str, Mapping[str, Any]]) -> dict[str, Any]:
    """An assistant message; `calls` are (id, tool, arguments)."""
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(dict(a))}}
            for i, n, a in calls
        ]
    return message
