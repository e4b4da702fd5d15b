"""What a training round is told and what it reports; free of torch, so that settings can be read without it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from trainer.batches import Normalisation

ADAPTER_CONFIG = "adapter_config.json"
"""What tells the folder of a LoRA adapter from a checkpoint."""
OPTIMIZER_FILE = Path("trainer_state") / "optimizer.pt"
"""Where a checkpoint keeps the optimizer's state; in a folder of its own, out of sight of weight loaders."""
REPORT_FILE = Path("trainer_state") / "report.json"
"""Where it keeps the report of the round that made it."""
LOGPROBS_FILE = Path("trainer_state") / "logprobs.npz"
"""Where it keeps what the trainer said of the tokens that it trained."""
TOKEN_MEAN_LOSSES = ("dapo", "cispo", "vespo")
"""TRL's losses that are homogeneous in the advantage and normalised by `num_items_in_batch`."""


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How one round trains; the defaults are for full fine-tuning of a model that fits one device."""

    learning_rate: float = 1e-6
    """Constant over the round; it replaces the rate in a carried-over optimizer state."""
    epochs: int = 1
    """Passes over the round's sequences."""
    minibatches: int = 1
    """Optimizer steps per epoch; trajectories are divided among them."""
    micro_batch_tokens: int = 8192
    """Most tokens of one forward pass, padding included; a longer sequence goes alone."""
    normalisation: Normalisation = Normalisation.TRAJECTORY_MEAN
    """What a token weighs in its step."""
    loss_type: str = "dapo"
    """TRL's loss: `dapo` (clipped), `cispo` or `vespo`."""
    epsilon: float = 0.2
    """Lower clip: the ratio is held above 1 - epsilon."""
    epsilon_high: float = 0.28
    """Upper clip: the ratio is held below 1 + epsilon_high (for `cispo`: below epsilon_high)."""
    proximal: Literal["engine", "trainer"] = "engine"
    """Whose logprobs the ratio starts from; `trainer` costs one more forward pass over the round."""
    importance_mode: Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = "token_truncate"
    """How the weights π_start/π_engine are bounded with `proximal = "trainer"`; a sequence is a session."""
    importance_max: float | None = 2.0
    """Upper bound of these weights; None for no bound."""
    importance_min: float | None = None
    """Lower bound of these weights; None for no bound."""
    beta: float = 0.0
    """Weight of the KL term to the reference; averaged over tokens whatever `normalisation` says. 0: no reference."""
    reference_dir: Path | None = None
    """Checkpoint of the reference policy; None: the round's starting weights. Used only when beta is not 0."""
    temperature: float = 1.0
    """Sampling temperature that the engine's logprobs are for (vLLM reports raw logprobs, that is 1.0, by default)."""
    weight_decay: float = 0.0
    """Decoupled weight decay of AdamW."""
    max_grad_norm: float = 1.0
    """The gradient of a step is scaled down to this norm; 0 turns that off."""
    bf16: bool = False
    """Mixed precision; weights and optimizer stay float32."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about 30 % more time."""
    seed: int = 0
    """Order of trajectories over the steps."""
    save_optimizer: bool = True
    """Write the optimizer's state (twice the size of the weights) into the checkpoint."""
    trl: Mapping[str, Any] = field(default_factory=dict)
    """Further options of TRL's `GRPOConfig`, for example `delta`, `off_policy_mask_threshold` or `entropy_coef`."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimizer step. Means run over the step's trained tokens; with several processes, over the first one's."""

    step: int
    """From 1."""
    steps: int
    """Steps of the round."""
    loss: float
    grad_norm: float
    """Before clipping to `max_grad_norm`."""
    tokens: int
    """Trained tokens."""
    mean_ratio: float
    """Mean of π_θ/π_engine before the step; 1 when engine and trainer agree and the data is on-policy."""
    clip_fraction: float
    """Share of tokens whose gradient was clipped away."""
    entropy: float
    """Mean entropy of the policy's next-token distribution, in nats."""
    kl: float | None = None
    """Mean of TRL's estimate of KL(policy || reference), in nats; None without a reference (`beta` is 0)."""


@dataclass(frozen=True, slots=True)
class TrainReport:
    """One round; figures are means over its steps unless said otherwise."""

    loss: float
    grad_norm: float
    mean_ratio: float
    clip_fraction: float
    entropy: float
    logprob_gap_mean: float
    """Mean |trainer - engine| logprob in nats before the first update, over the tokens of the newest policy version in
    the first step: numerical disagreement, without policy lag."""
    logprob_gap_max: float
    """The largest of these."""
    tokens_trained: int
    """Over all epochs."""
    pushed_tokens: int
    """Tokens that went through the model in one epoch, prompts included, padding not."""
    padding_waste: float
    """Share of padding among all that went through it."""
    sequences_trained: int
    trajectories_trained: int
    steps: int
    """Optimizer steps."""
    train_seconds: float
    """Wall time with loading and saving, without importing TRL."""
    checkpoint: Path
    """Folder of the new checkpoint."""
    optimizer_state: Path | None
    """To be handed to the next round."""
    kl: float | None = None
    """None without a reference."""

    def save(self, file: Path) -> None:
        """Write the report beside the checkpoint that it is about."""
        file.write_text(json.dumps(asdict(self), default=str), encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> "TrainReport":
        """The report of a round of which only the checkpoint is left."""
        values = json.loads(file.read_text(encoding="utf-8"))
        paths = {name: Path(values[name]) if values[name] else None for name in ("checkpoint", "optimizer_state")}
        return cls(**{**values, **paths})
