"""Steps and micro-batches: trajectories stay whole, every sequence stands once, weights are those of the formulas."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.batches import Normalisation, plan_epoch, pushed, token_factors
from trainer.sequences import Cause, Sequence


def sequence(trajectory: int, session: int, prompt: int, trained: int) -> Sequence:
    mask_L = np.arange(prompt + trained) >= prompt
    zeros_L = np.zeros(prompt + trained, np.float32)
    ids_L = zeros_L.astype(np.int32)
    return Sequence(f"t{trajectory}", f"s{session}", Cause.ROOT, ids_L, mask_L, zeros_L, zeros_L, ids_L, prompt, ())


shapes = st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(1, 30), st.integers(1, 30))
rounds = st.lists(shapes, min_size=1, max_size=40).map(lambda items: [sequence(*item) for item in items])


@given(sequences=rounds, n_steps=st.integers(1, 9), max_tokens=st.integers(1, 200), seed=st.integers(0, 3))
def test_an_epoch_holds_every_sequence_once_and_no_trajectory_in_two_steps(
    sequences: list[Sequence], n_steps: int, max_tokens: int, seed: int
) -> None:
    epoch = plan_epoch(sequences, Normalisation.TRAJECTORY_MEAN, n_steps, max_tokens, seed)
    rows = [row for step in epoch for batch in step for row in batch.rows]
    assert sorted(rows) == list(range(len(sequences)))
    assert len(epoch) == min(n_steps, len({s.trajectory_id for s in sequences}))
    assert len({len(step) for step in epoch}) == 1
    steps_of = defaultdict(set)
    for number, step in enumerate(epoch):
        for batch in step:
            padded = len(batch.rows) * max((len(sequences[row].ids_L) for row in batch.rows), default=0)
            assert padded <= max_tokens or len(batch.rows) == 1
            for row in batch.rows:
                steps_of[sequences[row].trajectory_id].add(number)
        assert {batch.step_tokens for batch in step} == {
            sum(sequences[row].n_trained for batch in step for row in batch.rows)
        }
    assert {len(steps) for steps in steps_of.values()} == {1}


@given(sequences=rounds)
def test_factors_turn_the_token_mean_into_the_named_weight(sequences: list[Sequence]) -> None:
    total = sum(s.n_trained for s in sequences)
    trajectories = {s.trajectory_id for s in sequences}
    weights = {
        rule: np.array(token_factors(sequences, rule)) / total * np.array([s.n_trained for s in sequences])
        for rule in Normalisation
    }
    for rule, weights_S in weights.items():
        assert weights_S.sum() == pytest.approx(1.0), rule
    for trajectory in trajectories:
        members = [n for n, s in enumerate(sequences) if s.trajectory_id == trajectory]
        for rule in (Normalisation.TRAJECTORY_MEAN, Normalisation.AGENT_MEAN):
            assert weights[rule][members].sum() == pytest.approx(1 / len(trajectories))
        sessions = {sequences[n].session_id for n in members}
        for name in sessions:
            own = [n for n in members if sequences[n].session_id == name]
            assert weights[Normalisation.AGENT_MEAN][own].sum() == pytest.approx(1 / len(trajectories) / len(sessions))
    assert weights[Normalisation.SEQUENCE_MEAN] == pytest.approx(np.full(len(sequences), 1 / len(sequences)))


@given(sequences=rounds, max_tokens=st.integers(1, 200))
def test_what_is_pushed_is_every_token_once_and_rows_as_wide_as_the_longest(
    sequences: list[Sequence], max_tokens: int
) -> None:
    epoch = plan_epoch(sequences, Normalisation.TRAJECTORY_MEAN, 2, max_tokens, 0)
    found = pushed(sequences, epoch)
    assert found.real == sum(len(s.ids_L) for s in sequences)
    widths = [max(len(sequences[r].ids_L) for r in b.rows) * len(b.rows) for step in epoch for b in step if b.rows]
    assert found.real + found.padding == sum(widths)
    assert 0 <= found.waste < 1


def test_sequences_of_like_length_share_a_batch() -> None:
    """From long to short: one long row does not widen all the short ones."""
    sequences = [sequence(n, 0, 5, 5) for n in range(8)] + [sequence(8, 0, 90, 10)]
    found = pushed(sequences, plan_epoch(sequences, Normalisation.TRAJECTORY_MEAN, 1, 100, 0))
    assert found.padding == 0
