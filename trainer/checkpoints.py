"""The model of a checkpoint's folder, loaded without the hub and without a progress bar on standard error.

Loads torch and transformers (3 s), for an adapter peft as well.
"""

from pathlib import Path
from typing import Any

from trainer.round import ADAPTER_CONFIG


def load_model(folder: Path, dtype: Any = "float32", *, trainable: bool = False) -> Any:
    """Return the weights, or an adapter on its base; `trainable` readies the latter for training. Raises as
    `from_pretrained` does."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    if not trainable or not (folder / ADAPTER_CONFIG).is_file():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    from peft import AutoPeftModelForCausalLM

    return AutoPeftModelForCausalLM.from_pretrained(folder, is_trainable=True, dtype=dtype, local_files_only=True)
