"""The goals of lineage, held on the labelled corpus."""

import pytest

from tests.lineage.corpus import PLAYBOOKS
from tests.lineage.corpus.variants import MIXED, VARIANTS, Variant, mixed, run
from tests.lineage.scoring import Score, place, score

DECIDABLE = ["alone", "alone stripped", "different", "stripped", MIXED]
"""Variants in which content or ids tell all there is to know."""


@pytest.fixture(scope="module")
def counted() -> dict[str, Score]:
    """Variant -> what was counted over all playbooks."""
    found = {name: Score() for name in VARIANTS}
    for name, variant in VARIANTS.items():
        for playbook in PLAYBOOKS:
            found[name].add(score(place(run(playbook, variant))))
    return {**found, MIXED: score(place(mixed()))}


@pytest.mark.parametrize("variant", DECIDABLE)
def test_a_found_session_holds_the_calls_of_one_session(counted: dict[str, Score], variant: str) -> None:
    found = counted[variant]
    assert found.purity == 1, found.wrong
    assert found.f1 >= 0.99, found.wrong


@pytest.mark.parametrize("playbook", PLAYBOOKS)
@pytest.mark.parametrize("copies", [1, 3])
def test_every_playbook_is_read_as_it_was_written(playbook: str, copies: int) -> None:
    found = score(place(run(playbook, Variant(copies=copies, ids=copies > 1))))
    assert (found.wrong, found.purity, found.f1, found.auxiliary_f1) == ([], 1, 1, 1)


@pytest.mark.parametrize("variant", DECIDABLE)
def test_sessions_open_as_they_truly_did(counted: dict[str, Score], variant: str) -> None:
    found = counted[variant]
    assert found.kind_accuracy >= 0.98, found.wrong
    assert found.parent_accuracy >= 0.98, found.wrong


@pytest.mark.parametrize("variant", DECIDABLE)
def test_calls_that_serve_the_framework_are_tagged(counted: dict[str, Score], variant: str) -> None:
    found = counted[variant]
    assert found.auxiliary_f1 >= 0.95, found.wrong


@pytest.mark.parametrize("variant", [*VARIANTS, MIXED])
def test_two_trajectories_are_never_merged_by_a_score_that_claims_to_be_sure(
    counted: dict[str, Score], variant: str
) -> None:
    found = counted[variant]
    assert found.sure_merges == 0, [m for m in found.merges if m["score"] >= 0.9]


WITH_IDS = [p for p in PLAYBOOKS if all(line.call.headers for line in run(p, VARIANTS["alone"]))]


@pytest.mark.parametrize("playbook", WITH_IDS)
def test_the_frameworks_ids_decide_where_content_cannot(playbook: str) -> None:
    found = score(place(run(playbook, VARIANTS["identical"])))
    assert found.merges == []
    assert (found.purity, found.f1, found.kind_accuracy) == (1, 1, 1), found.wrong


@pytest.mark.parametrize("variant", DECIDABLE)
def test_used_summaries_are_trained_with_the_session_that_they_close(counted: dict[str, Score], variant: str) -> None:
    found = counted[variant]
    assert found.summaries["trained"] / found.summaries["true"] >= 0.9


@pytest.mark.parametrize("variant", DECIDABLE)
def test_what_was_sent_again_is_no_new_sample(counted: dict[str, Score], variant: str) -> None:
    found = counted[variant]
    assert found.retries["both"] == found.retries["true"] == found.retries["found"]


def test_the_score_of_a_link_is_what_it_is_worth(counted: dict[str, Score]) -> None:
    """Over all variants, the undecidable ones too: links of a score in a bin are right about as often as it says."""
    whole = Score()
    for found in counted.values():
        whole.add(found)
    shares = {bound: bin["right"] / bin["all"] for bound, bin in whole.bins.items() if bin["all"] >= 50}
    assert all(share >= bound - 0.15 for bound, share in shares.items()), shares
    assert all(share >= 0.99 for bound, share in shares.items() if bound >= 0.95), shares
