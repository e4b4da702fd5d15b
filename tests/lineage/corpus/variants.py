"""The variants in which every playbook is run: alone, many copies at once, with and without what tells them apart."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tests.lineage.corpus import PLAYBOOKS, Playbook
from tests.lineage.corpus.stage import Line, Play

COPIES = 8


@dataclass(frozen=True, slots=True)
class Variant:
    """How the copies of a playbook are made."""

    copies: int = COPIES
    identical: bool = False
    """True when all copies sample the same texts."""
    ids: bool = True
    """False when what frameworks say of themselves is stripped."""
    shared: bool = False
    """True when all copies say the same of themselves: a wrong header, shared by several runs."""


VARIANTS: Mapping[str, Variant] = {
    "alone": Variant(copies=1),
    "alone stripped": Variant(copies=1, ids=False),
    "different": Variant(),
    "identical": Variant(identical=True),
    "stripped": Variant(ids=False),
    "identical stripped": Variant(identical=True, ids=False),
    "shared ids": Variant(shared=True),
}
MIXED = "all at once, stripped"
"""Two copies of every playbook at once, in one pool, headers stripped."""


def copies(name: str, playbook: Playbook, variant: Variant) -> list[list[Line]]:
    """The lines of each copy."""
    made = []
    for copy in range(variant.copies):
        voice = 0 if variant.identical else copy
        play = Play(name, copy, voice=voice, ids=variant.ids, shared=variant.shared)
        playbook(play)
        made.append(play.lines)
    return made


def run(name: str, variant: Variant, seed: int = 0) -> list[Line]:
    """A playbook's lines in the order in which they ended, all copies interleaved at random."""
    return interleaved(copies(name.replace("_", " "), PLAYBOOKS[name], variant), random.Random(f"{name}/{seed}"))


def mixed(seed: int = 0) -> list[Line]:
    """Two copies of every playbook at once."""
    variant = Variant(copies=2, ids=False)
    plays = [lines for name, p in PLAYBOOKS.items() for lines in copies(name.replace("_", " "), p, variant)]
    return interleaved(plays, random.Random(seed))


def interleaved(plays: Iterable[list[Line]], draw: random.Random) -> list[Line]:
    """Several plays as one, each in its own order, with times that rise."""
    plays = list(plays)
    order = [at for at, lines in enumerate(plays) for _ in lines]
    draw.shuffle(order)
    rest = [iter(lines) for lines in plays]
    woven = [next(rest[at]) for at in order]
    return [_at(line, float(number)) for number, line in enumerate(woven)]


def _at(line: Line, second: float) -> Line:
    call = replace(line.call, started_at=second, first_byte_at=second + 0.2, ended_at=second + 0.5)
    return replace(line, call=call)
