"""What a checkpoint itself says: its tensors, and its logprobs of a token sequence.

That is what is compared before an engine loads it, and after. Loads torch and transformers (3 s), never TRL.
"""

from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mosaic.errors import PublishError
from mosaic.records import IdArray, LogprobArray
from trainer.checkpoints import load_model


def checkpoint_logprobs(model_dir: Path, ids_L: IdArray) -> LogprobArray:
    """Return the natural-log probability of each token after the first, (L-1,), computed in float32 on the CPU.

    Raises PublishError when the folder cannot be loaded.
    """
    import torch

    try:
        model = load_model(model_dir)
    except (OSError, ValueError, RuntimeError) as error:
        raise PublishError(
            f"{model_dir} cannot be loaded as a checkpoint: {error}", "Train it again, or publish another version."
        ) from error
    model.train(False)
    ids_1L = torch.from_numpy(ids_L.astype(np.int64))[None]
    with torch.no_grad():
        logps_LV = torch.log_softmax(model(input_ids=ids_1L).logits[0, :-1].float(), dim=-1)
    logps_L = logps_LV.gather(1, ids_1L[0, 1:, None]).squeeze(1)
    return cast(NDArray[np.float32], logps_L.numpy())


class CheckpointLogprobs:
    """Logprobs of checkpoints, each computed once for the same ids."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, bytes], LogprobArray] = {}

    def last(self, model_dir: Path, ids_L: IdArray, n: int) -> LogprobArray:
        """Return those of the last `n` tokens."""
        key = (model_dir, ids_L.tobytes())
        if key not in self._known:
            self._known[key] = checkpoint_logprobs(model_dir, ids_L)
        return self._known[key][-n:]


def checkpoint_shapes(model_dir: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a checkpoint, from the headers of its safetensors files.

    Raises PublishError when there is none, or one of them cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    try:
        for file in sorted(model_dir.glob("*.safetensors")):
            with safe_open(file, framework="numpy") as tensors:
                shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise PublishError(f"{file} cannot be read: {error}", "Train it again, or publish another version.") from error
    if not shapes:
        raise PublishError(f"{model_dir} holds no safetensors file.", "Give the folder of a saved model.")
    return shapes
