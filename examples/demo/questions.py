"""The demo's questions: several hops over the corpus, one exact answer, train and held-out disjoint in cities.

Two kinds, so that both kinds of session appear. A *fork* asks for two independent chains, which the agent
should hand to subagents. A *chain* is one line of dependent hops, too long for the agent's context budget.
Answers are found by following the corpus, never written by hand. Scoring is exact match, 0 or 1.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from .corpus import facts

Kind = Literal["fork", "chain"]
Split = Literal["train", "heldout"]

SIZES: dict[Split, int] = {"train": 192, "heldout": 96}
"""Questions in each split, half of each kind; one kind after the other, alternating."""

ENDS = ("capital", "currency", "domain", "code")
"""Relations that end a chain (their value is not looked up again)."""

STEPS = ("largest neighbour", "smallest neighbour", "most populous neighbour", "least populous neighbour")
"""Relations that lead from one country to another."""

OPENINGS = ("From", "And from")
"""How the two chains of a fork begin."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A start and the relations to follow from it."""

    start: str
    """The entity to start from, usually a city."""
    relations: tuple[str, ...]
    """What to look up, in order, each of the value before it."""
    opening: str = "From"
    """How its text begins; a fork's second chain begins with `And from`, so that it can be told from the first."""

    @property
    def text(self) -> str:
        """How a question, a subagent's job or a summary says it."""
        return f"{self.opening} {self.start}: {', '.join(self.relations)}."


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt with its one answer."""

    kind: Kind
    """`fork` (two chains) or `chain` (one long one)."""
    chains: tuple[Chain, ...]
    """What has to be followed."""
    answer: str
    """The last values of the chains, joined by `; `."""

    @property
    def prompt(self) -> str:
        """The user's message."""
        return " ".join(chain.text for chain in self.chains)


@cache
def _table() -> dict[tuple[str, str], str]:
    return {(fact.entity, fact.relation): fact.value for fact in facts()}


def follow(chain: Chain) -> list[str] | None:
    """The values found hop by hop, or None where the corpus has no such fact."""
    values: list[str] = []
    here = chain.start
    for relation in chain.relations:
        found = _table().get((here, relation))
        if found is None:
            return None
        values.append(found)
        here = found
    return values


def score(question: Question, answer: str) -> float:
    """1.0 for the exact answer (case and white space aside), else 0.0."""
    return float(" ".join(answer.split()).casefold() == question.answer.casefold())


def questions(split: Split) -> tuple[Question, ...]:
    """All questions of one split, fork and chain alternating; the same on every machine."""
    return _splits()[split]


def cities() -> list[str]:
    """Cities in an order that takes countries in turn, so that no big country dominates a prefix of it."""
    by_country: dict[str, list[str]] = {}
    for fact in facts():
        if fact.relation == "country":
            by_country.setdefault(fact.value, []).append(fact.entity)
    rounds = max(map(len, by_country.values()))
    return [names[i] for i in range(rounds) for names in by_country.values() if i < len(names)]


def _chain(rng: random.Random, city: str, steps: int, opening: str = "From") -> Chain:
    return Chain(city, ("country", *rng.sample(STEPS, steps), rng.choice(ENDS)), opening)


def _question(kind: Kind, chains: Sequence[Chain]) -> Question | None:
    ends = [values[-1] for values in map(follow, chains) if values]
    return Question(kind, tuple(chains), "; ".join(ends)) if len(ends) == len(chains) else None


def _draw(rng: random.Random, pool: Iterator[str]) -> Iterator[Question]:
    while True:
        fork = None
        while fork is None:
            fork = _question("fork", [_chain(rng, next(pool), 0, opening) for opening in OPENINGS])
        yield fork
        chain = None
        while chain is None:
            chain = _question("chain", [_chain(rng, next(pool), rng.choice((2, 2, 3)))])
        yield chain


@cache
def _splits() -> dict[Split, tuple[Question, ...]]:
    rng = random.Random(20260101)
    names = cities()[: 8 * sum(SIZES.values()) // 3]
    rng.shuffle(names)
    stream = _draw(rng, iter(names))
    train = tuple(next(stream) for _ in range(SIZES["train"]))
    return {"train": train, "heldout": tuple(next(stream) for _ in range(SIZES["heldout"]))}
