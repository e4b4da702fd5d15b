"""How stored sequences become optimizer steps and micro-batches, and how much each trained token weighs.

The trajectory is the unit: all its sequences stand in one step, and with the default normalisation every trajectory of
a step weighs the same however many sessions, sequences and tokens it became (DESIGN.md, invariant 15). Every sequence
stands in exactly one micro-batch of an epoch. Numpy only.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from trainer.sequences import Sequence


class Normalisation(StrEnum):
    """Weight of a trained token of trajectory i, session k, in a step of G (mosaic.md, "Loss normalisation")."""

    TRAJECTORY_MEAN = "trajectory-mean"
    """1 / (G · N_i): every trajectory equal (slime, agent-lightning; with one call per trajectory, GRPO)."""
    AGENT_MEAN = "agent-mean"
    """1 / (G · K_i · T_ik): every trajectory equal, and every session equal inside it (WideSeek-R1)."""
    SEQUENCE_MEAN = "sequence-mean"
    """1 / (S · T_s) over the S sequences of the step: trajectories weigh by their number of sequences."""
    TOKEN_MEAN = "token-mean"
    """1 / Σ_i N_i: trajectories weigh by their number of tokens (DAPO, 2503.14476)."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The rows of one forward and backward pass."""

    rows: tuple[int, ...]
    """Indices into the round's sequences; empty for a filler that trains nothing."""
    factors: tuple[float, ...]
    """Per row: what its advantages are multiplied by before the token-mean loss of the step."""
    step_tokens: int
    """Trained tokens of the whole optimizer step, the denominator of the token-mean loss."""


def plan_epoch(
    sequences: list[Sequence], normalisation: Normalisation, n_steps: int, max_tokens: int, seed: int
) -> list[list[MicroBatch]]:
    """Divide the sequences into `n_steps` optimizer steps by trajectory, and each step into micro-batches.

    A micro-batch holds at most `max_tokens` tokens, padding included, or one sequence. All steps get the same number of
    micro-batches, because the trainer accumulates over a fixed number: short steps end with fillers. There are fewer
    steps when there are fewer trajectories.
    """
    trajectory_ids = list(dict.fromkeys(sequence.trajectory_id for sequence in sequences))
    np.random.default_rng(seed).shuffle(trajectory_ids)
    steps = []
    for part in np.array_split(np.asarray(trajectory_ids, dtype=object), min(n_steps, len(trajectory_ids))):
        members = set(part.tolist())
        rows = [row for row, sequence in enumerate(sequences) if sequence.trajectory_id in members]
        steps.append(_plan_step(sequences, rows, normalisation, max_tokens))
    longest = max(len(step) for step in steps)
    return [step + [MicroBatch((), (), step[0].step_tokens)] * (longest - len(step)) for step in steps]


def _plan_step(
    sequences: list[Sequence], rows: list[int], normalisation: Normalisation, max_tokens: int
) -> list[MicroBatch]:
    factors = dict(zip(rows, token_factors([sequences[row] for row in rows], normalisation), strict=True))
    step_tokens = sum(sequences[row].n_trained for row in rows)
    batches: list[list[int]] = []
    # From long to short: the first row of a batch sets its width, rows of like length share one, padding is small.
    for row in sorted(rows, key=lambda row: -len(sequences[row].ids_L)):
        width = len(sequences[batches[-1][0]].ids_L) if batches else 0
        if batches and (len(batches[-1]) + 1) * width <= max_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return [MicroBatch(tuple(batch), tuple(factors[row] for row in batch), step_tokens) for batch in batches]


def token_factors(sequences: list[Sequence], normalisation: Normalisation) -> list[float]:
    """Return, per sequence of a step, its token weight divided by the token-mean's weight 1/Σ_j N_j.

    TRL's clipped losses are positively homogeneous in the advantage, so multiplying advantages by this factor and
    taking the token-mean loss gives the chosen normalisation exactly. It does not touch a KL or entropy term.
    """
    trained = [sequence.n_trained for sequence in sequences]
    total = sum(trained)
    if normalisation is Normalisation.TOKEN_MEAN:
        return [1.0] * len(sequences)
    if normalisation is Normalisation.SEQUENCE_MEAN:
        return [total / (len(sequences) * n_tokens) for n_tokens in trained]
    per_trajectory: Counter[str] = Counter()
    per_session: Counter[tuple[str, str]] = Counter()
    for sequence, n_tokens in zip(sequences, trained, strict=True):
        per_trajectory[sequence.trajectory_id] += n_tokens
        per_session[sequence.trajectory_id, sequence.session_id] += n_tokens
    n_trajectories = len(per_trajectory)
    if normalisation is Normalisation.TRAJECTORY_MEAN:
        return [total / (n_trajectories * per_trajectory[sequence.trajectory_id]) for sequence in sequences]
    n_sessions = Counter(trajectory_id for trajectory_id, _ in per_session)
    factors = []
    for sequence in sequences:
        n_tokens = per_session[sequence.trajectory_id, sequence.session_id]
        factors.append(total / (n_trajectories * n_sessions[sequence.trajectory_id] * n_tokens))
    return factors


@dataclass(frozen=True, slots=True)
class Pushed:
    """What goes through the model in one epoch, in tokens."""

    real: int
    """Of the sequences: prompts and samples."""
    padding: int

    @property
    def waste(self) -> float:
        """Share of padding."""
        return self.padding / max(self.real + self.padding, 1)


def pushed(sequences: list[Sequence], epoch: list[list[MicroBatch]]) -> Pushed:
    """Count the tokens of an epoch's forward passes."""
    real = padded = 0
    for batch in (batch for step in epoch for batch in step if batch.rows):
        lengths = [len(sequences[row].ids_L) for row in batch.rows]
        real += sum(lengths)
        padded += max(lengths) * len(lengths)
    return Pushed(real, padded - real)
