"""A call with everything that placing it needs, computed once: what every call needs at the beginning, the rest when it
is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import takewhile

from mosaic.capture import CallStatus, CapturedCall
from mosaic.lineage import canonical
from mosaic.lineage.canonical import Item
from mosaic.lineage.harness import Claims, Harnesses

SYSTEM_WORDS = 48
"""Words of a system text by which agents are told apart."""
SAME_SYSTEM = 0.6
"""Share of these words in common from which two system texts are one that changed."""
SAME_TOOLS = 0.5
"""Share of tools in common from which two tool lists are one that changed."""


@dataclass(slots=True)
class Reply:
    """One choice of the answer."""

    items: list[Item]
    end: int
    """Hash of the request with it."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of its tool calls, sorted."""
        return tuple(sorted([i.tool_call_id for i in self.items if i.tool_call_id]))


class Request:
    """One call as lineage reads it."""

    def __init__(self, call: CapturedCall, harnesses: Harnesses) -> None:
        self.call = call
        self.harnesses = harnesses
        self.ok = call.status is CallStatus.OK
        """Whether it was answered."""
        self.items: list[Item] = canonical.items(call.messages)
        self.chain = canonical.chain(self.items)
        self.tools = call.tool_names
        self.claims: Claims = harnesses.claims(call.headers, call.params)
        self.system_text = canonical.system_text(call.messages)
        self.system_words = _opening_words(self.system_text[:600])
        """The words that its system text opens with."""
        self.first_user = next((i.text for i in self.items if i.role == "user"), "")
        """The first thing that the user said."""
        self.fresh = canonical.SAMPLED.isdisjoint([i.role for i in self.items])
        """True when its history holds nothing that a model said."""
        self.digest = self._digest()
        """Equal for requests that say and offer the same, with the same tool-call ids."""
        said = [canonical.items([choice.message]) for choice in call.choices] if self.ok else []
        self.replies = [Reply(s, self._end(s)) for s in said if s]
        """What was answered, choice by choice; an empty one is left out."""
        texts = [c.message.get("content") for c in call.choices]
        calls = [c.message.get("tool_calls") for c in call.choices]
        self.answered_in_text = any(texts) and not any(calls)
        """Whether the reply has text and no tool calls."""
        closes = bool(self.items) and call.messages[-1].get("role") == "system"
        self.closing = canonical.collapse(canonical.text_of(call.messages[-1].get("content"))) if closes else ""
        """The system text that the conversation ends with: it asks for something, as a user's text does."""

    def _digest(self) -> int:
        ids = tuple(sorted([i.tool_call_id or "" for i in self.items if i.role in ("call", "result")]))
        return hash(("sent", self.chain[-1] if self.chain else 0, self.system_text, self.tools, ids))

    def _end(self, said: list[Item]) -> int:
        """Hash of the request with what is said next. Only its end is hashed again: what may be joined with it, and
        the batch of results before that."""
        at = max(0, len(self.items) - 1)
        while at > 0 and self.items[at - 1].role == "result":
            at -= 1
        before = self.chain[at - 1] if at > 0 else 0
        return canonical.chain(canonical.joined([*self.items[at:], *said]), before)[-1]

    @property
    def newest_turn(self) -> tuple[int, tuple[str, ...]]:
        """Hash of all up to the newest thing that a model said, and the ids of its newest tool calls, sorted."""
        if self.fresh:
            return 0, ()
        last = next(k for k in range(len(self.items) - 1, -1, -1) if self.items[k].sampled)
        turn = takewhile(lambda item: item.role == "call", reversed(self.items[: last + 1]))
        return self.chain[last], tuple(sorted([i.tool_call_id for i in turn if i.tool_call_id]))

    @cached_property
    def asks_for_summary(self) -> bool:
        """Whether its newest user text, or its system text, asks the model to write the history up."""
        asks = self.harnesses.asks_for_summary
        return asks(self.newest_asked) or asks(self.system_text)

    @property
    def surely_asks_for_summary(self) -> bool:
        """The same in a certain framework's own words."""
        surely = self.harnesses.surely_asks_for_summary
        return surely(self.newest_asked) or surely(self.system_text)

    @property
    def first_item(self) -> int:
        """Hash of the first thing that was said."""
        return self.chain[0] if self.chain else 0

    @cached_property
    def ids(self) -> list[str]:
        """The tool-call ids in its history, oldest first."""
        return [i.tool_call_id for i in self.items if i.tool_call_id and i.role == "call"]

    def asked(self, after: int = -1) -> str:
        """What the user said after item `after`, outside of tool results."""
        said = [i.text for i in self.items[after + 1 :] if i.role == "user"]
        return " ".join([*said, self.closing] if self.closing else said)

    @cached_property
    def newest_asked(self) -> str:
        """The newest user text, when it is the last thing that was said."""
        return self.closing or (self.items[-1].text if self.items and self.items[-1].role == "user" else "")

    @cached_property
    def told(self) -> list[str]:
        """The words of all that the user said and of texts that the assistant is made to have said.

        Without tools also those of the system text: a transcript may stand there.
        """
        said = [i.text for i in self.items if i.role in ("user", "assistant")]
        return canonical.words(" ".join([self.system_text, *said] if self.fresh and not self.tools else said))

    @cached_property
    def blocks(self) -> list[str]:
        """The texts of what the user said, block by block."""
        return list(canonical.blocks(self.call.messages))

    def same_system(self, system: frozenset[str], least: float = SAME_SYSTEM) -> bool:
        """Whether its system text is an agent's, or one like it."""
        return _share(self.system_words, system) >= least

    def other_agent(self, system: frozenset[str], tools: frozenset[str]) -> bool:
        """Whether it offers other tools under another system text than an agent's."""
        shared = _share(self.tools, tools)
        if not self.tools or shared >= SAME_TOOLS:
            return False
        return not self.same_system(system) or (bool(tools) and not shared and self.system_words != system)

    def same_agent(self, system: frozenset[str], tools: frozenset[str]) -> bool:
        """Whether it offers the same tools under the same system text."""
        return _share(self.tools, tools) >= SAME_TOOLS and self.same_system(system)


@lru_cache(512)  # an agent says the same in every call
def _opening_words(text: str) -> frozenset[str]:
    return frozenset(canonical.words(text)[:SYSTEM_WORDS])


def _share(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one or other else 1.0


def contains(words: Sequence[str], text: str) -> bool:
    """Whether the words of `text` stand in `words` as they are."""
    wanted = " ".join(canonical.words(text))
    return bool(wanted) and f" {wanted} " in f" {' '.join(words)} "
