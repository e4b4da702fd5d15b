"""Training on a GPU: seconds, tokens and memory of a step, against plain TRL GRPO on the same sequences.

Two random Llamas (135 M and 1.2 B parameters), bf16, each way in a process of its own; about five minutes. Writes
`results/gpu.json`. Plain TRL gets the stored ids where it would generate, pads to the longest of the step and takes
equally many rows at a time; both may have as many tokens, padding included, in a forward pass.

**Not run on a GPU yet**: none was at hand. `--tiny` runs all of it on a CPU with a model of a few thousand parameters.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import NONE, RESULTS, Bar, write
from trainer.round import TrainSettings
from trainer.sequences import Cause, Span
from trainer.sequences import Sequence as Row

WAYS = ("mosaic", "trl")
WARM_UP = 1
"""Steps that are not measured."""
CHILD_S = 150
"""Seconds that one way gets on one model: four of them stay within ten minutes."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model, and what is trained on it."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    rows: int
    lengths: tuple[int, int]
    """Shortest and longest sequence; the first half of each is its prompt."""
    micro_batch_tokens: int
    steps: int


SHAPES = {
    "135m": Shape("135m", 576, 1536, 30, 9, 3, 49152, 32, (512, 4096), 8192, 4),
    "1b": Shape("1b", 2048, 8192, 16, 32, 8, 128256, 32, (512, 4096), 8192, 4),
    "tiny": Shape("tiny", 32, 64, 2, 2, 2, 320, 4, (16, 48), 96, 3),
}
"""The first two are SmolLM2's 135 M and Llama 3.2's 1 B."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one way took."""

    seconds: list[float]
    """Per step, those of the warm-up left out."""
    tokens: int
    """Of all sequences, prompts included, padding not: what a step has to push."""
    peak_gib: float | None
    """Largest memory allocated on the GPU; None on a CPU."""
    device: str


def main(arguments: Sequence[str] | None = None) -> bool:
    """Measure and write the result; returns whether every goal is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU, to see that the script works")
    parser.add_argument("--folder", type=Path, help="for the result (default: benchmarks/results; tiny: none)")
    parser.add_argument("--one", nargs=2, metavar=("WAY", "MODEL"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        way, model = given.one
        print(json.dumps(asdict(measure(way, SHAPES[model]))))
        return True
    names = ["tiny"] if given.tiny else ["135m", "1b"]
    ask: Callable[[str, Shape], Measured] = measure if given.tiny else _in_a_process
    found = {name: {way: ask(way, SHAPES[name]) for way in WAYS} for name in names}
    bars: dict[str, Bar] = {}
    for name, ways in found.items():
        bars |= _bars(name, ways["mosaic"], ways["trl"])
    details = {name: {"shape": asdict(SHAPES[name]), **_told(ways)} for name, ways in found.items()}
    if given.tiny and given.folder is None:
        print(json.dumps(details))
        return True
    return write("gpu", bars, details, folder=given.folder or RESULTS)


def _told(ways: dict[str, Measured]) -> dict[str, Any]:
    return {way: asdict(one) for way, one in ways.items()}


def _in_a_process(way: str, shape: Shape) -> Measured:
    command = [sys.executable, "-m", "benchmarks.gpu", "--one", way, shape.name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=CHILD_S, check=True)
    return Measured(**json.loads(done.stdout.strip().splitlines()[-1]))


def _bars(name: str, ours: Measured, theirs: Measured) -> dict[str, Bar]:
    plain = "plain TRL GRPO on the same sequences"
    ratios = [their / our for our, their in zip(ours.seconds, theirs.seconds, strict=True)]
    rates = [ours.tokens / seconds for seconds in ours.seconds]
    told = f"{plain}: {theirs.tokens / statistics.median(theirs.seconds):.0f}"
    bars = {
        f"{name}_tokens_per_second": Bar("tokens/s", NONE, told, rates),
        f"{name}_step_speedup": Bar("times", ">= 1", plain, ratios),
    }
    if ours.peak_gib is not None and theirs.peak_gib is not None:
        told = f"{plain}: {theirs.peak_gib:.1f}"
        bars[f"{name}_peak_memory"] = Bar("GiB", f"<= {1.1 * theirs.peak_gib:.3g}", told, [ours.peak_gib])
    return bars


def measure(way: str, shape: Shape) -> Measured:
    """Train on the same sequences in one of the two ways."""
    import torch

    on_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory(prefix="mosaic-gpu-") as name:
        folder = Path(name)
        model, rows = _save_model(shape, folder / "model"), made_rows(shape)
        trainer = (mosaic_trainer if way == "mosaic" else trl_trainer)(model, rows, shape, folder / "scratch", on_gpu)
        ends = _clocked(trainer)
        trainer.train()
    return Measured(
        seconds=np.diff(ends)[WARM_UP:].tolist(),
        tokens=sum(len(row.ids_L) for row in rows),
        peak_gib=torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None,
        device=torch.cuda.get_device_name() if on_gpu else "CPU",
    )


def made_rows(shape: Shape) -> list[Row]:
    """Random sequences, each with one prompt and one sample, and an advantage of 1 or -1."""
    rng = np.random.default_rng(0)
    return [_row(number, length, shape, rng) for number, length in enumerate(rng.integers(*shape.lengths, shape.rows))]


def _row(number: int, length: int, shape: Shape, rng: np.random.Generator) -> Row:
    mask_L = np.arange(length) >= length // 2
    name = f"t{number}"
    return Row(
        trajectory_id=name,
        session_id=name,
        cause=Cause.ROOT,
        ids_L=rng.integers(3, shape.vocabulary, length).astype(np.int32),
        mask_L=mask_L,
        logprobs_L=np.where(mask_L, -np.log(shape.vocabulary), 0).astype(np.float32),
        advantages_L=np.where(mask_L, 1 - 2 * (number % 2), 0).astype(np.float32),
        versions_L=np.where(mask_L, 0, -1).astype(np.int32),
        prompt_len=length // 2,
        spans=(Span(name, 0, length // 2, length),),
    )


def _save_model(shape: Shape, folder: Path) -> Path:
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.lengths[1],
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {"<pad>": 0, "<unk>": 1, "</s>": 2}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return folder


def mosaic_trainer(model: Path, rows: list[Row], shape: Shape, scratch: Path, on_gpu: bool) -> Any:
    """Ours, as a job makes it."""
    from trainer.policy_trainer import policy_trainer

    settings = TrainSettings(epochs=shape.steps, micro_batch_tokens=shape.micro_batch_tokens, bf16=on_gpu)
    trainer = policy_trainer(model, rows, settings, scratch)
    trainer.start()
    return trainer


def trl_trainer(model: Path, rows: list[Row], shape: Shape, scratch: Path, on_gpu: bool) -> Any:
    """TRL's own, with its generation replaced by the stored ids."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    class Stored(GRPOTrainer):
        def _generate(self, _prompts: list[Any]) -> Any:
            prompt_ids = [row.ids_L[: row.prompt_len].tolist() for row in rows]
            completion_ids = [row.ids_L[row.prompt_len :].tolist() for row in rows]
            return prompt_ids, completion_ids, None, [""] * len(rows), None, {}, None, []

    at_once = max(1, shape.micro_batch_tokens // max(len(row.ids_L) for row in rows))
    at_once = next(size for size in range(at_once, 0, -1) if shape.rows % size == 0)
    config = GRPOConfig(
        output_dir=str(scratch),
        learning_rate=1e-6,
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=shape.rows // at_once,
        num_generations=shape.rows,
        max_steps=shape.steps,
        use_cpu=not on_gpu,
        bf16=on_gpu,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    rewards: list[float | None] = [float(row.advantages_L[-1]) for row in rows]
    return Stored(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        reward_funcs=lambda **_: rewards,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["x"]}),
        processing_class=AutoTokenizer.from_pretrained(model),
    )


def _clocked(trainer: Any) -> list[float]:
    """When training began and each step ended; filled while it trains."""
    import torch
    from transformers import TrainerCallback

    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.on_step_end()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    trainer.add_callback(Clock())
    return ends


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
