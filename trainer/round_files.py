"""The files of a round: the checkpoint that it leaves, and the optimizer's state from round to round.

The state is kept by names of parameters, in one piece, so that it fits any number of processes. Suffixes as in
`policy_trainer`.
"""

import pickle
import shutil
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from transformers import TrainerCallback

from mosaic.errors import TrainError
from trainer.round import OPTIMIZER_FILE, TrainSettings

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Trained(Protocol):
    """The slice of a trainer that has files."""

    model: Any
    model_wrapped: Any
    optimizer: Any
    accelerator: Any

    def save_model(self, output_dir: str) -> None:
        """Write the weights; called in every process."""
        ...


def save_checkpoint(trainer: Trained, model_dir: Path, working_dir: Path, save_optimizer: bool) -> Path:
    """Write the checkpoint beside its place, from where it is moved there in one step."""
    checkpoint = working_dir / "checkpoint"
    trainer.save_model(str(checkpoint))
    state = None
    if save_optimizer:  # every process has its part in it
        assert trainer.optimizer is not None
        state = get_optimizer_state_dict(trainer.model_wrapped, trainer.optimizer, options=WHOLE)
    if trainer.accelerator.is_main_process:
        (checkpoint / "training_args.bin").unlink(missing_ok=True)
        shutil.rmtree(checkpoint / "ref", ignore_errors=True)  # the frozen copy of an adapter, for the KL term
        for file in model_dir.iterdir():
            # Config, tokenizer and template stay byte for byte those of the model that the engine was started with.
            if file.is_file() and file.suffix not in {".safetensors", ".bin", ".pt"} and "index.json" not in file.name:
                shutil.copyfile(file, checkpoint / file.name)
        (checkpoint / OPTIMIZER_FILE).parent.mkdir()
        if state is not None:
            torch.save(state, checkpoint / OPTIMIZER_FILE)
    return checkpoint


class OptimizerState(TrainerCallback):
    """Puts a carried-over optimizer state in place once the model is wrapped, however it is sharded now."""

    def __init__(self, trainer: Trained, file: Path, settings: TrainSettings) -> None:
        self._trainer = trainer
        self._settings = settings
        self._file = file
        try:
            self._state = torch.load(file, map_location="cpu", weights_only=True)
            _check_shapes(self._state, trainer.model)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
            raise self._error(error) from error

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Before the first step."""
        optimizer = self._trainer.optimizer
        assert optimizer is not None
        try:
            set_optimizer_state_dict(self._trainer.model_wrapped, optimizer, self._state, options=WHOLE)
        except (ValueError, KeyError, RuntimeError, AssertionError) as error:
            raise self._error(error) from error
        for group in optimizer.param_groups:
            group["lr"] = self._settings.learning_rate
            group.pop("initial_lr", None)

    def _error(self, error: Exception) -> TrainError:
        return TrainError(
            f"The optimizer state {self._file} cannot be used: {error}",
            "Remove it (the optimizer then starts afresh), or give the state of a round of the same model.",
        )


def _check_shapes(state: dict[str, Any], model: Any) -> None:
    # torch would fail in the middle of the round, or not at all.
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    for name, values in state["state"].items():
        for key, value in values.items():
            if isinstance(value, torch.Tensor) and value.dim() and tuple(value.shape) != shapes.get(name):
                raise ValueError(f"{key} of {name} has shape {tuple(value.shape)}, its parameter {shapes.get(name)}")
