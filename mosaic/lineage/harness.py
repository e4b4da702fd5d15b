"""What is known of a framework, as data: where its ids stand, and the words of its own calls.

Lineage works without any of it; a harness only adds claims, which are checked against content, and names for calls
that serve the framework. The tables themselves are in `adapters/harnesses`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import orjson

from mosaic.lineage.wording import Words

GENERIC = "generic"
"""Name of the table of frameworks that nobody has looked at: its words may also be a user's."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What a request says of itself. Claims are used, and checked."""

    agent: str | None = None
    """The agent whose context this is: equal in all calls of a session (and of those that go on from it)."""
    parent: str | None = None
    """The agent that started this one."""
    trajectory: str | None = None
    """What all agents of one attempt share."""
    window: str | None = None
    """Changes when the agent's context is compacted."""
    kind: str | None = None
    """`turn` or `compaction`, where the framework says it."""


@dataclass(frozen=True, slots=True)
class Harness:
    """One framework. Sources name a header (`x-thing`) or a parameter (`params:metadata.user_id.session_id`)."""

    name: str
    session: tuple[str, ...] = ()
    """Sources of the id of the agent; the first one that is there counts."""
    agent: tuple[str, ...] = ()
    """Sources of an id that tells a subagent from the main one, where both send the same session."""
    parent: tuple[str, ...] = ()
    """Sources of the parent's id, of the kind of `agent` where that is given, else of `session`."""
    trajectory: tuple[str, ...] = ()
    """Sources of an id that a subagent shares with its parent."""
    window: tuple[str, ...] = ()
    """Sources of a number that changes when the context is compacted."""
    request_kind: tuple[str, ...] = ()
    """Sources of a word that tells a compaction from a turn."""
    spawns: Mapping[str, str] = field(default_factory=dict)
    """Tool by which a subagent is started -> the argument with its prompt."""
    handoffs: tuple[str, ...] = ()
    """Patterns of names of tools by which an agent gives its history to another."""
    summary: tuple[str, ...] = ()
    """Patterns of the user text with which it asks for a summary of the history."""
    auxiliary: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Kind of auxiliary call -> patterns of its opening system or user text."""
    asides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Kind of auxiliary call -> patterns of a newest user text that no user writes: with it, the call serves the
    framework even when it goes on with the history, under the same tools."""
    helper: tuple[str, ...] = ()
    """Patterns of the opening text of further calls that belong to a compaction."""


class Harnesses:
    """Several frameworks' tables, compiled to be asked for every call."""

    def __init__(self, known: Sequence[Harness] = ()) -> None:
        self._known = known
        self._headers = frozenset(
            s for h in known for s in (*h.session, *h.parent, *h.trajectory) if not s.startswith("params:")
        )
        self._params = frozenset(
            s.removeprefix("params:").partition(".")[0]
            for h in known
            for s in (*h.session, *h.parent, *h.trajectory)
            if s.startswith("params:")
        )
        self._auxiliary_in = lru_cache(512)(self._find_auxiliary)
        """Which kinds of auxiliary call a text belongs to: system texts are the same in many calls."""
        self._certain = Words(p for h in known if h.name != GENERIC for p in h.summary)
        self._handoffs = Words(p for h in known for p in h.handoffs)
        self.spawns: dict[str, set[str]] = {}
        """Tool by which subagents are started -> the arguments in which their prompts may stand."""
        for tool, argument in (spawn for h in known for spawn in h.spawns.items()):
            self.spawns.setdefault(tool, set()).add(argument)

    @cached_property
    def _summary(self) -> Words:
        return Words(p for h in self._known for p in h.summary)

    @cached_property
    def _helper(self) -> Words:
        return Words(p for h in self._known for p in h.helper)

    @cached_property
    def _auxiliary(self) -> list[tuple[str, Words]]:
        kinds = dict.fromkeys(kind for h in self._known for kind in h.auxiliary)
        return [(kind, Words(p for h in self._known for p in h.auxiliary.get(kind, ()))) for kind in kinds]

    @cached_property
    def _any_auxiliary(self) -> Words:
        return Words(p for h in self._known for patterns in h.auxiliary.values() for p in patterns)

    @cached_property
    def _asides(self) -> list[tuple[str, Words]]:
        kinds = dict.fromkeys(kind for h in self._known for kind in h.asides)
        return [(kind, Words(p for h in self._known for p in h.asides.get(kind, ()))) for kind in kinds]

    def claims(self, headers: Mapping[str, str], params: Mapping[str, Any]) -> Claims:
        """The claims of the first framework whose ids are there."""
        client = params.get("client_request")
        client = client if isinstance(client, Mapping) else {}
        if self._headers.isdisjoint(headers) and self._params.isdisjoint(params) and self._params.isdisjoint(client):
            return _NONE
        for harness in self._known:
            if (found := _claims(harness, headers, params, client)) is not None:
                return found
        return _NONE

    def asks_for_summary(self, text: str) -> bool:
        """Whether a user's newest text asks the model to write the history up."""
        ends = (text[:2000], text[-1000:]) if len(text) > 1000 else (text,)
        return any(self._summary.found_in(end) for end in ends)

    def surely_asks_for_summary(self, text: str) -> bool:
        """Whether a text is a certain framework's own, in which it asks for a summary."""
        return self._certain.found_in(text[:2000])

    def hands_over(self, tool: str) -> bool:
        """Whether a tool of that name gives the history to another agent."""
        return self._handoffs.found_in(tool)

    def helps_compaction(self, text: str) -> bool:
        """Whether a request of its own belongs to a compaction."""
        return self._helper.found_in(text[:2000])

    def auxiliary(self, system: str, user: str) -> str | None:
        """The kind of auxiliary call that these opening texts belong to."""
        texts = [system[:1500], user[:1500], *([user[-500:]] if len(user) > 500 else [])]
        first = min((found for text in texts for found in self._auxiliary_in(text)[:1]), default=None)
        return None if first is None else self._auxiliary[first][0]

    def _find_auxiliary(self, text: str) -> list[int]:
        if not self._any_auxiliary.found_in(text):
            return []
        return [number for number, (_, pattern) in enumerate(self._auxiliary) if pattern.found_in(text)]

    def aside(self, user: str) -> str | None:
        """The kind of auxiliary call that goes on with the history, by its newest user text."""
        return next((kind for kind, pattern in self._asides if pattern.found_in(user[:300])), None)


_NONE = Claims()


def _claims(
    harness: Harness, headers: Mapping[str, str], params: Mapping[str, Any], client: Mapping[str, Any]
) -> Claims | None:
    def first(sources: tuple[str, ...]) -> str | None:
        return next((v for s in sources if (v := _read(s, headers, params, client)) is not None), None)

    session, trajectory = first(harness.session), first(harness.trajectory)
    if session is None and trajectory is None:
        return None
    agent, parent = session, first(harness.parent)
    if harness.agent and session is not None:
        own = first(harness.agent)
        agent = f"{session}/{own or '-'}"
        parent = f"{session}/{parent or '-'}" if own is not None else None
        trajectory = trajectory or session
    return Claims(
        agent=agent,
        parent=parent if parent != agent else None,
        trajectory=trajectory,
        window=first(harness.window),
        kind=first(harness.request_kind),
    )


def _read(source: str, headers: Mapping[str, str], params: Mapping[str, Any], client: Mapping[str, Any]) -> str | None:
    if not source.startswith("params:"):
        name, _, path = source.partition(" ")
        return _inside(headers.get(name), path)
    name, _, path = source.removeprefix("params:").partition(".")
    return _inside(params[name] if name in params else client.get(name), path)


def _inside(value: object, path: str) -> str | None:
    """What stands at a dotted path of an object, which may be JSON in a text."""
    for key in path.split(".") if path else ():
        if isinstance(value, str) and value.startswith("{"):
            try:
                value = orjson.loads(value)
            except orjson.JSONDecodeError:
                return None
        value = value.get(key) if isinstance(value, Mapping) else None
    return str(value)[:200] if isinstance(value, str | int) and value != "" and not isinstance(value, bool) else None
