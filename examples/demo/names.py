"""Made-up worlds for the teacher: questions and facts about names that are mostly invented on the spot.

A policy that is taught in them cannot recite geography: it has to copy what it reads. Real names are mixed in
(never a held-out city), so that their spelling is familiar.
"""

import random
from functools import cache

from .corpus import facts
from .questions import ENDS, OPENINGS, STEPS, Chain, questions

REAL_SHARE = 0.35
"""How many of the names are real ones (in a wrong place)."""

FORK_SHARE = 0.55
"""How many of the demonstrations are forks."""

_UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@cache
def real_names() -> tuple[str, ...]:
    """Cities (without the held-out ones), capitals and countries, each once."""
    hidden = {chain.start for question in questions("heldout") for chain in question.chains}
    names = {fact.entity for fact in facts()} | {fact.value for fact in facts() if fact.relation == "capital"}
    return tuple(sorted(names - hidden))


@cache
def _followers() -> dict[str, str]:
    """For each two letters, the letters that follow them in real names ('$' ends a name)."""
    table: dict[str, str] = {}
    for name in real_names():
        padded = "^^" + name.lower() + "$"
        for i in range(len(padded) - 2):
            table[padded[i : i + 2]] = table.get(padded[i : i + 2], "") + padded[i + 2]
    return table


def spelled_name(rng: random.Random) -> str:
    """A name that sounds like a place and almost surely is none."""
    text = "^^"
    while not text.endswith("$"):
        text += rng.choice(_followers()[text[-2:]]) if len(text) < 16 else "$"
    name = text[2:-1].strip(" -'").title()
    return name if len(name) > 2 and name.isascii() else spelled_name(rng)


def spelled_names(rng: random.Random, count: int) -> list[str]:
    """`count` of them."""
    return [spelled_name(rng) for _ in range(count)]


class MadeUpWorld:
    """A world whose facts are drawn when they are first asked for, and then stay."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._known: dict[tuple[str, str], str] = {}

    def name(self) -> str:
        """A fresh name, real or made up."""
        return self._rng.choice(real_names()) if self._rng.random() < REAL_SHARE else spelled_name(self._rng)

    def value(self, entity: str, relation: str) -> str:
        """What this world says about `entity`."""
        if (entity, relation) not in self._known:
            self._known[entity, relation] = self._draw(relation)
        return self._known[entity, relation]

    def _draw(self, relation: str) -> str:
        if relation in ("currency", "code"):
            return "".join(self._rng.choices(_UPPER, k=3))
        if relation == "domain":
            return "." + "".join(self._rng.choices(_UPPER.lower(), k=2))
        return self.name()


def demonstration_chains(rng: random.Random, world: MadeUpWorld) -> tuple[Chain, ...]:
    """What a question asks: two short chains or a long one, as in the demo."""

    def chain(steps: int, opening: str = "From") -> Chain:
        return Chain(world.name(), ("country", *rng.sample(STEPS, steps), rng.choice(ENDS)), opening)

    if rng.random() < FORK_SHARE:
        return tuple(chain(0, opening) for opening in OPENINGS)
    return (chain(rng.choice((2, 2, 3))),)
