"""Tokens that an older policy version sampled: kept, left out, or trained with less weight. Numpy only.

A trajectory may span several swaps, so staleness is a token's, not a trajectory's: how many versions lie between the
one that sampled it and the one from which training starts.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from trainer.sequences import UNTRAINED_VERSION, Sequence

Policy = Literal["keep", "mask", "weight", "drop"]


@dataclass(frozen=True, slots=True)
class Staleness:
    """What becomes of tokens that are more than `fresh` versions old."""

    policy: Policy = "keep"
    """`mask` leaves these tokens out, `weight` multiplies their advantage, `drop` leaves their whole sequence out."""
    fresh: int = 0
    """Versions behind up to which a token counts as fresh."""
    decay: float = 0.5
    """Factor of `weight` for each version beyond."""


def settle(sequences: list[Sequence], version: int, rule: Staleness) -> tuple[list[Sequence], Counter[str]]:
    """Return what is trained from the live `version`, and reason -> tokens that are left out or weighted down.

    Sequences without a trained token are gone; what is left keeps its positions and prefixes.
    """
    settled: list[Sequence] = []
    counted: Counter[str] = Counter()
    for sequence in sequences:
        beyond_L = np.where(sequence.mask_L, np.maximum(version - sequence.versions_L - rule.fresh, 0), 0)
        stale_L = beyond_L > 0
        if rule.policy == "keep" or not stale_L.any():
            settled.append(sequence)
        elif rule.policy == "weight":
            counted["token_weighted_down"] += int(stale_L.sum())
            weights_L = np.power(rule.decay, beyond_L).astype(np.float32)
            settled.append(replace(sequence, advantages_L=sequence.advantages_L * weights_L))
        elif rule.policy == "drop":
            counted["token_in_stale_sequence"] += sequence.n_trained
        else:
            counted["token_stale"] += int(stale_L.sum())
            if (sequence.mask_L & ~stale_L).any():
                settled.append(_without(sequence, stale_L))
    return settled, counted


def _without(sequence: Sequence, stale_L: np.ndarray) -> Sequence:
    """The sequence with these tokens as context only."""
    mask_L = sequence.mask_L & ~stale_L
    return replace(
        sequence,
        mask_L=mask_L,
        logprobs_L=np.where(mask_L, sequence.logprobs_L, 0).astype(np.float32),
        advantages_L=np.where(mask_L, sequence.advantages_L, 0).astype(np.float32),
        versions_L=np.where(mask_L, sequence.versions_L, UNTRAINED_VERSION).astype(np.int32),
        prompt_len=int(np.argmax(mask_L)),
        spans=tuple(span for span in sequence.spans if mask_L[span.start : span.end].any()),
    )
