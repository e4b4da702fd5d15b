"""A first LoRA adapter: random first matrices, zero second ones, so that it equals its base model.

Loads torch and peft.
"""

import json
import warnings
from pathlib import Path

from mosaic.errors import SettingsError
from trainer.checkpoints import load_model


def live_link(folder: Path) -> Path:
    """The symbolic link beside a first adapter, from which engines read the adapter that is live."""
    return folder.absolute().with_name(f"{folder.name}-live")


def make_adapter(base: Path, folder: Path, rank: int, seed: int = 0) -> None:
    """Write an adapter of all linear layers but the output head, with the base model's tokenizer in it and its link
    beside it.

    Raises `SettingsError` when there is no such model, or the folder or the link is taken.
    """
    if not (base / "config.json").is_file():
        raise SettingsError(f"{base} holds no checkpoint (no config.json).", "Give the folder that vLLM serves.")
    link = live_link(folder)
    for taken in (folder, link):
        if taken.exists() or taken.is_symlink():
            raise SettingsError(f"{taken} exists already.", "Give a new folder.")
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoTokenizer

    torch.manual_seed(seed)
    model = load_model(base)
    options = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        get_peft_model(model, options).save_pretrained(str(folder))
    AutoTokenizer.from_pretrained(base, local_files_only=True).save_pretrained(folder)
    # Wherever a job reads it, the base must be found.
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(base.resolve())
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True))
    link.symlink_to(folder.absolute())
