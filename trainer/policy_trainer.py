"""One training round: stored sequences in, a new checkpoint out, with TRL's GRPO losses in between.

`PolicyTrainer` differs from TRL's `GRPOTrainer` at one point: where TRL would generate and score completions, it hands
over stored sequences with their advantages. Clipping, losses, accumulation, optimizer, mixed precision and multi-GPU
are TRL's, transformers' and Accelerate's. It must never generate, reach for the hub, or train a row twice in an epoch.

Importing this module takes about 12 s (TRL): import it only to train.

Suffixes: `_L` tokens of a sequence or columns of a micro-batch, `_B` rows, `_T` columns from the first trained one on;
rows are padded on the right.

    one optimizer step, with G trajectories, N_i trained tokens in trajectory i (mosaic.md 4.5):
        L = -(1/G) Σ_i (1/N_i) Σ_t  w_t · min(r_t A_t, clip(r_t, 1-ε, 1+ε_high) A_t)
    proximal = "engine":   r_t = π_θ/π_engine, w_t = 1       (PPO, the engine is the behaviour policy; no extra pass)
    proximal = "trainer":  r_t = π_θ/π_start,  w_t = π_start/π_engine, truncated  (decoupled PPO, 2110.00641)
"""

import os
import shutil
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the imports below read it: a checkpoint is always a local folder

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import AutoTokenizer, PrinterCallback

from mosaic.errors import NothingToTrain, TrainError
from mosaic.records import LogprobArray
from trainer.batches import MicroBatch, plan_epoch, pushed
from trainer.checkpoints import load_model
from trainer.observer import StepObserver, Tally
from trainer.round import (
    ADAPTER_CONFIG,
    LOGPROBS_FILE,
    OPTIMIZER_FILE,
    REPORT_FILE,
    TOKEN_MEAN_LOSSES,
    StepReport,
    TrainReport,
    TrainSettings,
)
from trainer.round_files import OptimizerState, save_checkpoint
from trainer.sequences import Sequence
from trainer.trained_logprobs import save_logprobs

with warnings.catch_warnings():
    # TRL names the vLLM versions that its own generation supports; we never use that.
    warnings.filterwarnings("ignore", message="TRL currently supports vLLM")
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer
    from trl.trainer.utils import use_adapter


def train(
    model_dir: Path,
    sequences: list[Sequence],
    settings: TrainSettings,
    output_dir: Path,
    *,
    optimizer_state: Path | None = None,
    on_step: Callable[[StepReport], None] | None = None,
) -> TrainReport:
    """Train the checkpoint in `model_dir` on the sequences and write the new one to `output_dir`.

    The new checkpoint (safetensors, tokenizer, chat template, config) appears whole or not at all. `optimizer_state` is
    the file that an earlier round reported. Raises NothingToTrain without sequences, TrainError when settings, files or
    data cannot be used, or the loss stops being finite.
    """
    started = time.monotonic()
    _check(model_dir, sequences, settings, output_dir)
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    working_dir = Path(tempfile.mkdtemp(prefix=f".{output_dir.name}-", dir=output_dir.parent))
    try:
        trainer = policy_trainer(model_dir, sequences, settings, working_dir)
        if optimizer_state is not None:
            trainer.add_callback(OptimizerState(trainer, optimizer_state, settings))
        recorder = StepObserver(trainer, on_step)
        trainer.add_callback(recorder)
        trainer.start()
        trainer.train()
        checkpoint = save_checkpoint(trainer, model_dir, working_dir, settings.save_optimizer)
        state_file = output_dir / OPTIMIZER_FILE if settings.save_optimizer else None
        said = gather_object([trainer.first_logprobs])  # each process has seen its own rows
        report = recorder.report(sequences, time.monotonic() - started, output_dir, state_file)
        if trainer.accelerator.is_main_process:
            report.save(checkpoint / REPORT_FILE)
            save_logprobs(checkpoint / LOGPROBS_FILE, sequences, {k: v for part in said for k, v in part.items()})
            checkpoint.rename(output_dir)
        trainer.accelerator.wait_for_everyone()
    finally:
        shutil.rmtree(working_dir, ignore_errors=True)
    return report


def _check(model_dir: Path, sequences: list[Sequence], settings: TrainSettings, output_dir: Path) -> None:
    if not sequences:
        raise NothingToTrain("No sequence to train on.", "Score more trajectories, or see `mosaic doctor`.")
    if not any((model_dir / name).is_file() for name in ("config.json", ADAPTER_CONFIG)):
        raise TrainError(f"{model_dir} holds no checkpoint (no config.json).", "Give the folder of a saved model.")
    if output_dir.exists():
        raise TrainError(f"{output_dir} exists already.", "Remove it, or train into a new folder.")
    if settings.reference_dir is not None and (model_dir / ADAPTER_CONFIG).is_file():
        raise TrainError("An adapter's reference is the adapter as it was.", "Leave reference_dir unset.")
    if settings.loss_type not in TOKEN_MEAN_LOSSES:
        raise TrainError(
            f"Loss {settings.loss_type!r} does not fit the normalisation per trajectory.",
            f"Choose one of {', '.join(TOKEN_MEAN_LOSSES)}.",
        )
    for sequence in sequences:
        if not np.isfinite(sequence.advantages_L).all():
            raise TrainError(
                f"Session {sequence.session_id} of trajectory {sequence.trajectory_id} has an advantage that is not "
                "finite.",
                "Check its rewards with `mosaic trajectories`.",
            )
        if sequence.n_trained == 0 or sequence.prompt_len < 1:
            raise TrainError(f"A sequence of session {sequence.session_id} has no trained token or no prompt.")


def policy_trainer(
    model_dir: Path, sequences: list[Sequence], settings: TrainSettings, working_dir: Path
) -> "PolicyTrainer":
    """Load model and tokenizer and build the trainer for one round; `working_dir` is scratch space."""
    model = load_model(model_dir, trainable=True)
    if settings.reference_dir is not None:
        # TRL loads the reference from the path that the model's config names.
        model.config._name_or_path = str(settings.reference_dir)
    tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    epoch = plan_epoch(
        sequences, settings.normalisation, settings.minibatches, settings.micro_batch_tokens, settings.seed
    )
    config = _config(settings, len(epoch) * settings.epochs, len(epoch[0]), working_dir)
    return PolicyTrainer(
        model=model, tokenizer=tokenizer, config=config, sequences=sequences, epoch=epoch, settings=settings
    )


def _config(settings: TrainSettings, n_steps: int, n_micro_batches: int, working_dir: Path) -> GRPOConfig:
    n_processes = PartialState(cpu=not torch.cuda.is_available()).num_processes
    options: dict[str, Any] = {
        "output_dir": str(working_dir),
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": "constant",
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.max_grad_norm,
        "max_steps": n_steps,
        "gradient_accumulation_steps": n_micro_batches,
        # One dataset row is one micro-batch, drawn anew for each: TRL repeats a row `num_generations` times over the
        # processes, and each of them takes its share of that micro-batch. So TRL's divisibility rules never matter.
        "per_device_train_batch_size": 2,
        "num_generations": 2 * n_processes,
        "steps_per_generation": 1,
        "num_iterations": 1,
        "shuffle_dataset": False,
        "loss_type": settings.loss_type,
        "epsilon": settings.epsilon,
        "epsilon_high": settings.epsilon_high,
        "beta": settings.beta,
        "temperature": settings.temperature,
        "vllm_importance_sampling_mode": settings.importance_mode,
        "vllm_importance_sampling_clip_max": settings.importance_max,
        "vllm_importance_sampling_clip_min": settings.importance_min,
        "bf16": settings.bf16,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "use_cpu": not torch.cuda.is_available(),
        "seed": settings.seed,
        "save_strategy": "no",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": torch.cuda.is_available(),
    }
    try:
        return GRPOConfig(**(options | dict(settings.trl)))
    except (TypeError, ValueError) as error:
        raise TrainError(f"TRL refuses the settings: {error}", "Correct the training settings.") from error


class PolicyTrainer(GRPOTrainer):
    """`GRPOTrainer` that is handed stored sequences where it would generate."""

    def __init__(
        self,
        *,
        model: Any,
        tokenizer: Any,
        config: GRPOConfig,
        sequences: list[Sequence],
        epoch: list[list[MicroBatch]],
        settings: TrainSettings,
    ) -> None:
        self.sequences = sequences
        self.micro_batches = [micro_batch for step in epoch for micro_batch in step]
        self.settings = settings
        self.step_tokens = [step[0].step_tokens for step in epoch]
        """Trained tokens of each step of an epoch, over all processes."""
        self.pushed = pushed(sequences, epoch)
        self.tally = Tally(newest_version=max(int(sequence.versions_L.max()) for sequence in sequences))
        self.first_logprobs: dict[int, LogprobArray] = {}
        """Row -> its logprobs (L,) before the step that first trained it; NaN where it is not trained."""
        self._proximal_logps: dict[int, torch.Tensor] = {}
        self._session_gaps: Counter[str] = Counter()
        """Σ_t log π_start/π_engine of each session, over all its rows."""
        indices = [str(index) for _ in range(settings.epochs) for index in range(len(self.micro_batches))]
        super().__init__(
            model=model,
            reward_funcs=_never,  # TRL wants one; credit has been given long before
            args=config,
            train_dataset=Dataset.from_dict({"prompt": indices}),
            processing_class=tokenizer,
        )
        self.remove_callback(PrinterCallback)
        model.register_forward_hook(self._observe)

    def start(self) -> None:
        """Compute the logprobs under the round's starting weights, where the settings ask for them."""
        if self.settings.proximal == "engine":
            return
        # Makes TRL's loss apply `importance_sampling_ratio`; there is no vLLM behind it.
        self.use_vllm = True
        for index, micro_batch in enumerate(self.micro_batches):
            batch = self._stored(micro_batch)
            self._proximal_logps[index] = self._logps(self.model, batch)
            if self.settings.importance_mode.startswith("sequence"):
                gaps_BT = (self._proximal_logps[index] - batch["sampling_per_token_logps"]) * batch["tool_mask"]
                for session_id, gap in zip(self._sessions(micro_batch), gaps_BT.sum(dim=-1).tolist(), strict=True):
                    self._session_gaps[session_id] += gap

        parts = gather_object([dict(self._session_gaps)])  # a session's rows may lie with several processes
        self._session_gaps = Counter()
        for part in parts:
            for session_id, gap in part.items():
                self._session_gaps[session_id] += gap

    def _sessions(self, micro_batch: MicroBatch) -> list[str]:
        """Return the session of each row that this process has of a micro-batch; a masked filler has none."""
        rank, n_processes = self.accelerator.process_index, self.accelerator.num_processes
        return [self.sequences[row].session_id for row in micro_batch.rows[rank::n_processes]] or [""]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the stored micro-batch that the dataset row names, in the form that TRL's loss expects."""
        index = int(inputs[0]["prompt"])
        batch = self._stored(self.micro_batches[index])
        if self.settings.proximal == "trainer":
            batch["old_per_token_logps"] = self._proximal_logps[index]
            batch["importance_sampling_ratio"] = self._importance_weights(batch, self.micro_batches[index])
        if self.beta != 0.0:
            batch["ref_per_token_logps"] = self._reference_logps(batch)
        return batch

    def _reference_logps(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return (B, T) logprobs under the reference; for an adapter, TRL keeps a frozen copy of it as `ref`."""
        if self.ref_model is not None:
            return self._logps(self.ref_model, batch)
        with use_adapter(self.accelerator.unwrap_model(self.model), "ref"):
            return self._logps(self.model, batch)

    def _stored(self, micro_batch: MicroBatch) -> dict[str, torch.Tensor]:
        """Return this process's rows of a micro-batch as tensors.

        Columns before the earliest trained token go into the prompt, which needs no padding; all others are completion,
        right-padded, with `tool_mask` marking what the policy sampled. Positions are those of sampling.
        """
        rank, n_processes = self.accelerator.process_index, self.accelerator.num_processes
        numbers = micro_batch.rows[rank::n_processes]
        rows = [self.sequences[row] for row in numbers]
        factors = micro_batch.factors[rank::n_processes]
        n_prompt = min((row.prompt_len for row in rows), default=1)
        width = max((len(row.ids_L) for row in rows), default=2)
        shape = (max(len(rows), 1), width)  # without rows: one that is masked throughout, for its zero gradient
        ids_BL = np.full(shape, self._tokenizer.pad_token_id, dtype=np.int64)
        real_BL, trained_BL = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        logps_BL, advantages_BL = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
        versions_BL = np.full(shape, -1, dtype=np.int64)
        real_BL[:, :n_prompt] = 1
        for b, (row, factor) in enumerate(zip(rows, factors, strict=True)):
            n_tokens = len(row.ids_L)
            ids_BL[b, :n_tokens] = row.ids_L
            real_BL[b, :n_tokens] = 1
            trained_BL[b, :n_tokens] = row.mask_L
            logps_BL[b, :n_tokens] = row.logprobs_L
            advantages_BL[b, :n_tokens] = row.advantages_L * factor
            versions_BL[b, :n_tokens] = row.versions_L
        device = self.accelerator.device
        split = {
            "prompt_ids": ids_BL[:, :n_prompt],
            "prompt_mask": real_BL[:, :n_prompt],
            "completion_ids": ids_BL[:, n_prompt:],
            "completion_mask": real_BL[:, n_prompt:],
            "tool_mask": trained_BL[:, n_prompt:],
            "advantages": advantages_BL[:, n_prompt:],
            "old_per_token_logps": logps_BL[:, n_prompt:],
            "sampling_per_token_logps": logps_BL[:, n_prompt:],
            "versions": versions_BL[:, n_prompt:],
        }
        batch = {name: torch.from_numpy(np.ascontiguousarray(array)).to(device) for name, array in split.items()}
        batch["rows"] = torch.tensor(numbers or [-1], device=device)
        # TRL multiplies this by the number of micro-batches of a step to get the step's token count.
        n_items = micro_batch.step_tokens / self.args.gradient_accumulation_steps
        batch["num_items_in_batch"] = torch.tensor(n_items, device=device)
        return batch

    @torch.no_grad()
    def _logps(self, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return (B, T) logprobs of the completion under a model, as it is now."""
        ids_BL = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        real_BL = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        logps_BT, _, _ = self._get_per_token_logps_and_entropies(
            model, ids_BL, real_BL, batch["completion_ids"].size(1)
        )
        assert isinstance(logps_BT, torch.Tensor)
        return logps_BT

    def _importance_weights(self, batch: dict[str, torch.Tensor], micro_batch: MicroBatch) -> torch.Tensor:
        """Return π_start/π_engine, bounded: (B, T), or (B, 1) in a sequence mode, where the sequence is the session.

        The rule and its options are those of TRL 1.16, which has it inside the method that `_generate_and_score_
        completions` replaces.
        """
        mode, low, high = self.settings.importance_mode, self.settings.importance_min, self.settings.importance_max
        log_weights = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]) * batch["tool_mask"]
        if mode.startswith("sequence"):
            of_rows = [[self._session_gaps[session_id]] for session_id in self._sessions(micro_batch)]
            log_weights = torch.tensor(of_rows, dtype=log_weights.dtype, device=log_weights.device)
        weights = torch.exp(log_weights)
        low, high = 0.0 if low is None else low, torch.inf if high is None else high
        if mode.endswith("truncate"):
            return weights.clamp(low, high)
        return weights.masked_fill((weights < low) | (weights > high), 0.0)

    def _observe(self, _module: Any, _args: Any, output: Any) -> None:
        """Forward hook: add the new logprobs to the step's figures; changes nothing."""
        # TRL shuffles the rows that it is given; these are what its loss sees.
        buffered: Any = self._buffered_inputs
        if torch.is_grad_enabled() and buffered:
            self.tally.add(output.log_probs.detach(), buffered[0])
            self._keep_first(output.log_probs.detach(), buffered[0])

    def _keep_first(self, logps_BL: torch.Tensor, batch: dict[str, torch.Tensor]) -> None:
        trained_BT = batch["tool_mask"].bool()
        n_prompt, width = batch["prompt_ids"].size(1), trained_BT.size(1)
        said_BT = logps_BL[:, -width:].masked_fill(~trained_BT, torch.nan).float().cpu().numpy()
        for row, said_T in zip(batch["rows"].tolist(), said_BT, strict=True):
            if row >= 0 and row not in self.first_logprobs:
                n_tokens = len(self.sequences[row].ids_L)
                whole_L: LogprobArray = np.full(n_tokens, np.nan, dtype=np.float32)
                whole_L[n_prompt:] = said_T[: n_tokens - n_prompt]
                self.first_logprobs[row] = whole_L


def _never(**_: Any) -> list[float | None]:
    raise AssertionError("stored sequences bring their advantages; no reward is ever computed here")
