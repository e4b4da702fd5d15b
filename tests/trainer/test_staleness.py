"""Stale tokens: what each policy leaves, by token; whatever stays keeps its position, prefix and logprob."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.sequences import Cause, Sequence, Span
from trainer.staleness import Policy, Staleness, settle

POLICIES: list[Policy] = ["keep", "mask", "weight", "drop"]


def made(runs: list[tuple[int, int, int]], name: str = "t") -> Sequence:
    """A sequence of (untrained tokens, trained tokens, version of these) runs."""
    mask = [flag for gap, n, _ in runs for flag in [False] * gap + [True] * n]
    versions = [v for gap, n, version in runs for v in [-1] * gap + [version] * n]
    mask_L = np.array(mask)
    ends = np.cumsum([gap + n for gap, n, _ in runs]).tolist()
    spans = tuple(Span(f"c{k}", 0, end - n, end) for k, (end, (_, n, _)) in enumerate(zip(ends, runs, strict=True)))
    return Sequence(
        trajectory_id=name,
        session_id=name,
        cause=Cause.ROOT,
        ids_L=np.arange(len(mask), dtype=np.int32),
        mask_L=mask_L,
        logprobs_L=np.where(mask_L, -0.25, 0).astype(np.float32),
        advantages_L=np.where(mask_L, 2.0, 0).astype(np.float32),
        versions_L=np.array(versions, dtype=np.int32),
        prompt_len=runs[0][0],
        spans=spans,
    )


RUNS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=5)


@given(runs=RUNS, policy=st.sampled_from(POLICIES), fresh=st.integers(0, 3))
def test_fresh_tokens_are_untouched_and_every_stale_one_is_treated_and_counted(
    runs: list[tuple[int, int, int]], policy: Policy, fresh: int
) -> None:
    before = made(runs)
    stale_L = before.mask_L & (6 - before.versions_L > fresh)
    settled, counted = settle([before], 6, Staleness(policy, fresh))
    if policy == "keep" or not stale_L.any():
        assert settled == [before]
        assert not counted
        return
    if policy == "drop" or (policy == "mask" and (stale_L == before.mask_L).all()):
        assert settled == []
        return
    (after,) = settled
    kept_L = before.mask_L & ~stale_L
    assert counted.total() == stale_L.sum()
    for name in ("logprobs_L", "advantages_L", "versions_L"):
        assert (getattr(after, name)[kept_L] == getattr(before, name)[kept_L]).all()
    assert (after.ids_L == before.ids_L).all()
    if policy == "mask":
        assert (after.mask_L == kept_L).all()
        assert not after.advantages_L[~kept_L].any()
        assert after.mask_L[after.prompt_len]
        assert not after.mask_L[: after.prompt_len].any()
    else:
        assert (after.mask_L == before.mask_L).all()
        beyond_L = (6 - before.versions_L - fresh)[stale_L]
        assert after.advantages_L[stale_L] == pytest.approx(2.0 * 0.5**beyond_L)
