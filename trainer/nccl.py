"""Weights from GPU to GPU: vLLM's own sender (`vllm.distributed.weight_transfer`), for one engine at a time.

Written after vLLM 0.32's source; it has not been run, since no GPU was at hand. What `publish` checks afterwards
(logprobs against the checkpoint's own) holds for it as for every other way.
"""

from pathlib import Path

from mosaic.errors import PublishError, SettingsError
from mosaic.urls import shown_url
from trainer.checkpoints import load_model


def check_devices() -> None:
    """Raises `SettingsError` when this machine cannot send weights from GPU to GPU."""
    import torch

    if not torch.cuda.is_available():
        raise SettingsError(
            'transport = "nccl" sends weights from GPU to GPU, and this machine has no CUDA device.',
            'Set transport = "disk" under [train]: the engine reads the checkpoint from a folder that both see.',
        )


def send(base_url: str, checkpoint: Path, workers: int) -> None:
    """Send a checkpoint to an engine of so many workers (GPUs). Raises `PublishError`."""
    check_devices()
    import torch
    from vllm.distributed.weight_transfer.base import ModuleSource
    from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine

    from trainer.engine import free_port

    model = load_model(checkpoint, "auto")
    where = NCCLTrainerInitInfo("127.0.0.1", free_port(), workers + 1, rank=0)
    try:
        sender = NCCLTrainerWeightTransferEngine.trainer_init(
            where, client=HTTPVLLMWeightSyncClient(base_url), source=ModuleSource(model.to("cuda"))
        )
        try:
            sender.send_weights()
        finally:
            sender.shutdown()
            torch.cuda.empty_cache()
    except Exception as error:
        raise PublishError(
            f"{shown_url(base_url)} did not take the weights by NCCL: {error}", 'Set transport = "disk" under [train].'
        ) from error
