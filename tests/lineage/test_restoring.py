"""Lineage that is restored from what was placed before goes on as if it had been there all the time."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adapters.harnesses import HARNESSES
from mosaic.lineage import Lineage, Placement
from tests.lineage.corpus import PLAYBOOKS
from tests.lineage.corpus.stage import Line
from tests.lineage.corpus.variants import Variant, run

VARIANTS = {"different": Variant(copies=2), "identical": Variant(copies=2, identical=True, ids=False)}
STEP = 3
"""Calls between the places at which a process is started anew."""


def restored(lines: Sequence[Line], placements: Sequence[Placement]) -> Lineage:
    """A lineage that takes in calls as the store keeps them: with each link as it was last told."""
    links = {k.session_id: k for p in placements for k in (p.opened, *p.relinked) if k is not None}
    lineage = Lineage(HARNESSES)
    for line, placement in zip(lines, placements, strict=True):
        link = links[placement.session_id] if placement.opened else None
        summaries = tuple(link.evidence.get("summary_calls", ())) if link else ()
        lineage.restore(line.call, replace(placement, opened=link, confirmed=summaries, relinked=()))
    return lineage


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_a_restarted_process_places_what_comes_as_the_old_one_would_have(playbook: str, variant: str) -> None:
    lines = run(playbook, VARIANTS[variant])
    live = Lineage(HARNESSES)
    placements = [live.place(line.call) for line in lines]
    for cut in range(1, len(lines), STEP):
        lineage = restored(lines[:cut], placements[:cut])
        again = [lineage.place(line.call) for line in lines[cut:]]
        assert [where(p) for p in again] == [where(p) for p in placements[cut:]]


def where(placement: Placement) -> tuple[object, ...]:
    """Where a call stands, why, and what it changed of others."""
    why = (placement.why.rung, placement.why.score)
    return placement.session_id, placement.parent_call_id, placement.auxiliary, placement.confirmed, why
