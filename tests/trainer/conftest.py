"""A tiny random Llama with a tokenizer built on the spot, and sequences with logprobs of its own."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mosaic.records import IdArray, LogprobArray
from trainer.sequences import Cause, Sequence, Span

os.environ.setdefault("HF_HUB_OFFLINE", "1")

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 512

SaveModel = Callable[..., Path]
MakeSequence = Callable[..., Sequence]


def _save_tokenizer(directory: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    bpe = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog"] * 4, bpe)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory)


@pytest.fixture(scope="session")
def save_model() -> SaveModel:
    """Write a random Llama checkpoint with tokenizer and template."""

    def save(directory: Path, seed: int = 0, hidden: int = 32, layers: int = 2) -> Path:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 32 if hidden >= 64 else 2,
            num_key_value_heads=hidden // 32 if hidden >= 64 else 2,
            max_position_embeddings=1024,
            initializer_range=0.1,
            bos_token_id=None,
            eos_token_id=2,
            pad_token_id=0,
        )
        LlamaForCausalLM(config).save_pretrained(directory)
        _save_tokenizer(directory)
        return directory

    return save


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory, save_model: SaveModel) -> Path:
    """A random Llama of two small layers."""
    return save_model(tmp_path_factory.mktemp("model") / "policy")


@pytest.fixture(scope="session")
def save_adapter(model_dir: Path) -> Callable[[Path], Path]:
    """Write a first adapter of the model."""
    from trainer.adapter import make_adapter

    def save(folder: Path) -> Path:
        make_adapter(model_dir, folder, 4)
        return folder

    return save


@pytest.fixture(scope="session")
def logprobs_of(model_dir: Path) -> Callable[[IdArray], LogprobArray]:
    """The model's own logprobs of a token sequence, 0 for the first."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(model_dir)

    def logprobs(ids_L: IdArray) -> LogprobArray:
        ids_1L = torch.from_numpy(ids_L.astype(np.int64))[None]
        with torch.no_grad():
            logps_LV = torch.log_softmax(model(input_ids=ids_1L).logits[0, :-1], -1)
        values_L: LogprobArray = np.zeros(len(ids_L), dtype=np.float32)
        values_L[1:] = logps_LV.gather(1, ids_1L[0, 1:, None])[:, 0].numpy()
        return values_L

    return logprobs


@pytest.fixture(scope="session")
def make_sequence(logprobs_of: Callable[[IdArray], LogprobArray]) -> MakeSequence:
    """A random sequence; its engine logprobs are the model's own plus normal noise."""

    def make(
        seed: int,
        trajectory: str,
        lengths: tuple[int, ...] = (5, 4),
        *,
        session: str = "s",
        advantage: float = 1.0,
        noise: float = 0.0,
    ) -> Sequence:
        """`lengths` alternates untrained and trained runs."""
        rng = np.random.default_rng(seed)
        total = sum(lengths)
        ids_L = rng.integers(3, VOCABULARY, total).astype(np.int32)
        mask_L = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)
        logprobs_L = logprobs_of(ids_L) + noise * rng.standard_normal(total).astype(np.float32)
        edges = np.cumsum((0, *lengths)).tolist()
        spans = tuple(Span(f"c{seed}-{k}", 0, edges[k], edges[k + 1]) for k in range(1, len(lengths), 2))
        return Sequence(
            trajectory_id=trajectory,
            session_id=f"{trajectory}/{session}",
            cause=Cause.ROOT,
            ids_L=ids_L,
            mask_L=mask_L,
            logprobs_L=np.where(mask_L, logprobs_L, 0).astype(np.float32),
            advantages_L=np.where(mask_L, advantage, 0).astype(np.float32),
            versions_L=np.where(mask_L, 1, -1).astype(np.int32),
            prompt_len=lengths[0],
            spans=spans,
        )

    return make
