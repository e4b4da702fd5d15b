"""Builds the demo's tiny policy: tokenizer, chat template and weights, taught by the careless teacher.

`python -m examples.demo.policy --out DIR --seed 0` rebuilds what is shipped in `examples/demo/policy/`. The
tokenizer is a byte-level BPE with single tokens for the frozen pieces of a tool call, so that a reply is about
ten tokens. The policy is taught to be competent (copying names, the order of hops) and careless (see
`teacher.py`); its held-out cities never occur here. Needs torch and transformers, no network, no GPU.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from .induction import copying_loss, repeats, wire
from .names import MadeUpWorld, demonstration_chains, real_names, spelled_names
from .questions import ENDS, STEPS
from .teacher import Demonstration, Habits, Message, Teacher

TEMPLATE = Path(__file__).with_name("template.jinja")
"""The chat template; the tokenizer carries a copy."""

SHIPPED = Path(__file__).with_name("checkpoint")
"""The trained policy in the repository."""

VOCABULARY = 1024
SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")
PIECES = (
    "<tool_call>",
    "</tool_call>",
    '{"name": "search", "arguments": {"query": "',
    '{"name": "task", "arguments": {"description": "',
    '", "subagent_type": "general-purpose"}}',
    '"}}',
    ", ",
    "And from",
)
"""Text that always comes in one piece in a tool call or a list: one token each, plain text to everybody else."""

WORDS = ("From", "country", *STEPS, *ENDS)
"""Relations, and how a chain begins: one token each wherever they stand."""


@dataclass(frozen=True, slots=True)
class Lessons:
    """How long and how hard to teach."""

    copying: int = 100
    """Optimiser steps on repeated random tokens, which tune the heads that copy."""
    steps: int = 1800
    """Optimiser steps on demonstrations."""
    tokens: int = 2500
    """Tokens per step, about."""
    rate: float = 2e-3
    """Peak learning rate of AdamW, after a short warm-up and before a cosine to zero."""
    reading: float = 0.1
    """Weight of the tokens that the policy only reads, in the first half; then 0."""


def build_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of `VOCABULARY` tokens over demonstrations and names, with the chat template."""
    rng = random.Random(seed)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(PIECES) - len(WORDS),
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(_texts(rng), trainer)
    bpe.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in PIECES])
    bpe.add_tokens([AddedToken(word, special=False, normalized=False, single_word=True) for word in WORDS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=SPECIAL[0],
        bos_token=None,
        eos_token=SPECIAL[2],
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE.read_text(),
    )


def _texts(rng: random.Random) -> Iterator[str]:
    """What the tokenizer learns from: rendered sessions without the pieces that are tokens anyway, and names."""
    for _ in range(300):
        for demonstration in lesson(rng, Habits()):
            text = render(demonstration.messages)
            for piece in (*SPECIAL, *PIECES, *WORDS):
                text = text.replace(piece, "\n")
            yield text
    yield from (" " + name for name in (*real_names(), *spelled_names(rng, 3000)))


def render(messages: list[Message]) -> str:
    """The prompt text of a conversation, without an opening for the next reply."""
    rendered: list[Any] = list(render_jinja_template([messages], chat_template=TEMPLATE.read_text())[0])
    return str(rendered[0])


def lesson(rng: random.Random, habits: Habits) -> list[Demonstration]:
    """The sessions of one attempt of the teacher in a fresh world."""
    world = MadeUpWorld(rng)
    return Teacher(rng, world, habits).attempt(demonstration_chains(rng, world))[1]


@dataclass(frozen=True, slots=True)
class Example:
    """One session as tokens."""

    ids: list[int]
    """The whole session."""
    own: list[bool]
    """Which of them the policy writes itself."""


def encode(tokenizer: Any, demonstration: Demonstration) -> Example:
    """Tokens of a session, and which of them are the policy's own (replies up to and with `<|im_end|>`)."""
    text = tokenizer.apply_chat_template(demonstration.messages, tokenize=False)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    opening: list[int] = tokenizer("<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
    own = [False] * len(ids)
    replies = [i + len(opening) for i in range(len(ids)) if ids[i : i + len(opening)] == opening]
    for start in replies[demonstration.given :]:
        end = ids.index(tokenizer.eos_token_id, start)
        own[start : end + 1] = [True] * (end + 1 - start)
    return Example(ids, own)


def build_model(tokenizer: Any, seed: int) -> LlamaForCausalLM:
    """The untaught network, which can copy and nothing else."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        attention_bias=True,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    wire(model)
    return model


def batches(tokenizer: Any, rng: random.Random, lessons: Lessons, habits: Habits) -> Iterator[list[Example]]:
    """Endless batches of examples of similar length, about `lessons.tokens` tokens each, in random order."""
    while True:
        pool = [encode(tokenizer, d) for _ in range(400) for d in lesson(rng, habits)]
        pool.sort(key=lambda example: len(example.ids))
        ready: list[list[Example]] = [[]]
        for example in pool:
            if (len(ready[-1]) + 1) * len(example.ids) > lessons.tokens:
                ready.append([])
            ready[-1].append(example)
        rng.shuffle(ready)
        yield from ready


def loss_of(model: LlamaForCausalLM, batch: list[Example], pad: int, reading: float) -> tuple[torch.Tensor, float]:
    """The weighted next-token loss of a batch, and the plain mean loss of the policy's own tokens."""
    width = max(len(example.ids) for example in batch)
    ids_BT = torch.full((len(batch), width), pad)
    weight_BT = torch.zeros(len(batch), width)
    for row, example in enumerate(batch):
        n = len(example.ids)
        ids_BT[row, :n] = torch.tensor(example.ids)
        weight_BT[row, :n] = torch.tensor([1.0 if own else reading for own in example.own])
    needed_BT = weight_BT[:, 1:] > 0
    hidden_NH = model.model(input_ids=ids_BT).last_hidden_state[:, :-1][needed_BT]
    targets_N, weight_N = ids_BT[:, 1:][needed_BT], weight_BT[:, 1:][needed_BT]
    each_N = torch.nn.functional.cross_entropy(model.lm_head(hidden_NH), targets_N, reduction="none")
    return (each_N * weight_N).sum() / weight_N.sum(), float(each_N[weight_N == 1.0].detach().mean())


def teach_copying(model: LlamaForCausalLM, lessons: Lessons, optimiser: torch.optim.Optimizer, seed: int) -> None:
    """Steps on sequences that repeat themselves, which tune the heads that copy."""
    rng = random.Random(seed)
    for step in range(lessons.copying):
        set_rate(optimiser, lessons.rate * min(1.0, (step + 1) / 30))
        loss = copying_loss(model, *repeats(rng, range(len(SPECIAL), VOCABULARY)))
        update(model, optimiser, loss)
        if step % 50 == 49:
            print(f"copying {step + 1}/{lessons.copying}  loss {loss.item():.4f}", flush=True)


def teach(model: LlamaForCausalLM, tokenizer: Any, lessons: Lessons, habits: Habits, seed: int) -> None:
    """Supervised steps, first on copying, then on fresh demonstrations, with progress on stdout."""
    start = time.monotonic()
    optimiser = torch.optim.AdamW(model.parameters(), lr=lessons.rate, betas=(0.9, 0.98), weight_decay=0.01)
    teach_copying(model, lessons, optimiser, seed)
    stream = batches(tokenizer, random.Random(seed), lessons, habits)
    recent: list[float] = []
    for step in range(lessons.steps):
        set_rate(optimiser, lessons.rate * min((step + 50) / 100, 0.5 + 0.5 * math.cos(math.pi * step / lessons.steps)))
        reading = lessons.reading if step < lessons.steps // 2 else 0.0
        loss, own = loss_of(model, next(stream), tokenizer.pad_token_id, reading)
        update(model, optimiser, loss)
        recent.append(own)
        if step % 50 == 49:
            mean = sum(recent[-50:]) / 50
            print(f"step {step + 1}/{lessons.steps}  loss {mean:.4f}  {time.monotonic() - start:.0f} s", flush=True)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter."""
    for group in optimiser.param_groups:
        group["lr"] = rate


def update(model: LlamaForCausalLM, optimiser: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """One clipped step."""
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    optimiser.zero_grad()


def save(model: LlamaForCausalLM, tokenizer: Any, out: Path) -> None:
    """Write the policy as vLLM and transformers read it, the weights as bfloat16.

    Its output head is untied: vLLM's CPU build does not reload the head of tied embeddings (docs/decisions.md).
    """
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.generation_config.update(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.bfloat16().save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "teacher.json").write_text(json.dumps({"habits": str(Habits())}, indent=1) + "\n")


def main() -> None:
    """Build, teach and save a policy."""
    parser = argparse.ArgumentParser(description="Rebuild the demo's policy.")
    parser.add_argument("--out", type=Path, default=SHIPPED)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=Lessons().steps)
    parser.add_argument(
        "--threads", type=int, default=1, help="two that share two cores with others are slower than one"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokenizer = build_tokenizer(args.seed)
    model = build_model(tokenizer, args.seed)
    print(f"{model.num_parameters():,} parameters", flush=True)
    teach(model, tokenizer, Lessons(steps=args.steps), Habits(), args.seed)
    save(model, tokenizer, args.out)


if __name__ == "__main__":
    main()
