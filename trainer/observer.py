"""What a training round reports: figures per optimizer step, taken while TRL trains.

Suffixes as in `policy_trainer`: `_B` rows, `_L` columns of a micro-batch, `_T` columns from the first trained one on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from transformers import TrainerCallback

from mosaic.errors import TrainError
from trainer.batches import Pushed
from trainer.round import StepReport, TrainReport
from trainer.sequences import Sequence


class Observed(Protocol):
    """The slice of the trainer that is looked at."""

    tally: "Tally"
    step_tokens: list[int]
    pushed: Pushed
    _metrics: dict[str, Any]
    """TRL's own figures by mode and name, one entry per micro-batch."""


@dataclass(slots=True)
class Tally:
    """Sums over the trained tokens of one optimizer step."""

    newest_version: int
    tokens: list[int] = field(default_factory=list)
    """Trained tokens per micro-batch."""
    ratio_sum: float = 0.0
    gap_sum: float = 0.0
    gap_max: float = 0.0
    gap_tokens: int = 0

    def add(self, logps_BL: torch.Tensor, batch: dict[str, torch.Tensor]) -> None:
        """Take in one micro-batch: the trainer's logprobs before the step, and what the engine had said."""
        trained_BT = batch["tool_mask"].bool()
        gaps = (logps_BL[:, -trained_BT.size(1) :] - batch["sampling_per_token_logps"])[trained_BT]
        self.tokens.append(gaps.numel())
        self.ratio_sum += float(gaps.exp().sum())
        newest = gaps[batch["versions"][trained_BT] == self.newest_version].abs()
        if newest.numel():
            self.gap_sum += float(newest.sum())
            self.gap_max = max(self.gap_max, float(newest.max()))
            self.gap_tokens += newest.numel()


class StepObserver(TrainerCallback):
    """Collects one report per optimizer step, and the whole round's."""

    def __init__(self, trainer: Observed, on_step: Callable[[StepReport], None] | None) -> None:
        self.trainer = trainer
        self.on_step = on_step
        self.steps: list[StepReport] = []
        self.first: Tally | None = None
        self._figures: dict[str, Any] = {}

    def on_step_end(self, args: Any, *_: Any, **__: Any) -> None:
        """Take the step's figures, weighted by tokens, before TRL averages them over micro-batches and clears them."""
        tally, metrics = self.trainer.tally, self.trainer._metrics["train"]
        self.first = self.first or tally
        n_tokens = max(sum(tally.tokens), 1)

        def token_mean(name: str) -> float:
            values: list[float] = metrics.get(name) or [0.0] * len(tally.tokens)
            return sum(value * n for value, n in zip(values, tally.tokens, strict=True) if n) / n_tokens

        clipped = "cispo_clip_ratio" if args.loss_type == "cispo" else "clip_ratio/region_mean"
        self._figures = {
            "tokens": self.trainer.step_tokens[len(self.steps) % len(self.trainer.step_tokens)],
            "mean_ratio": tally.ratio_sum / n_tokens,
            "clip_fraction": token_mean(clipped),
            "entropy": token_mean("entropy"),
            "kl": token_mean("kl") if "kl" in metrics else None,
        }
        self.trainer.tally = Tally(tally.newest_version)

    def on_log(self, *event: Any, logs: Any = None, **_: Any) -> None:
        """Complete the step with loss and gradient norm, which transformers knows only now."""
        if not logs or "loss" not in logs or not self._figures:
            return
        _, state, _ = event
        loss, grad_norm = float(logs["loss"]), float(logs["grad_norm"])
        if not (np.isfinite(loss) and np.isfinite(grad_norm)):
            raise TrainError(
                f"Step {state.global_step}: loss {loss} or gradient norm {grad_norm} is not finite; nothing was saved.",
                "Lower the learning rate, or look for extreme logprobs and rewards in this round's trajectories.",
            )
        step = StepReport(state.global_step, state.max_steps, loss, grad_norm, **self._figures)
        self.steps.append(step)
        self._figures = {}
        if self.on_step is not None:
            self.on_step(step)

    def report(
        self, sequences: list[Sequence], seconds: float, checkpoint: Path, optimizer_state: Path | None
    ) -> TrainReport:
        """Sum the round up."""

        def mean(name: str) -> float:
            return float(np.mean([getattr(step, name) for step in self.steps]))

        first = self.first or Tally(-1)
        return TrainReport(
            loss=mean("loss"),
            grad_norm=mean("grad_norm"),
            mean_ratio=mean("mean_ratio"),
            clip_fraction=mean("clip_fraction"),
            entropy=mean("entropy"),
            kl=None if any(step.kl is None for step in self.steps) else mean("kl"),
            logprob_gap_mean=first.gap_sum / max(first.gap_tokens, 1),
            logprob_gap_max=first.gap_max,
            tokens_trained=sum(step.tokens for step in self.steps),
            pushed_tokens=self.trainer.pushed.real,
            padding_waste=self.trainer.pushed.waste,
            sequences_trained=len(sequences),
            trajectories_trained=len({sequence.trajectory_id for sequence in sequences}),
            steps=len(self.steps),
            train_seconds=seconds,
            checkpoint=checkpoint,
            optimizer_state=optimizer_state,
        )
