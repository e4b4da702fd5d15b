"""The chat template is append-only, also in tokens, and the shipped policy fits its limits."""

import json
import random
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from examples.demo.names import MadeUpWorld, demonstration_chains, real_names
from examples.demo.policy import SHIPPED, encode, lesson
from examples.demo.questions import questions
from examples.demo.teacher import PERFECT, Demonstration, Habits, Teacher

OPENING = "<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(SHIPPED)
    return loaded


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _demonstrations(seed: int) -> list[Demonstration]:
    return lesson(random.Random(seed), Habits())


@pytest.mark.parametrize("seed", range(25))
def test_a_longer_conversation_starts_with_the_shorter_one_and_its_reply(tokenizer: Any, seed: int) -> None:
    for demonstration in _demonstrations(seed):
        messages = demonstration.messages
        for n, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            prompt = tokenizer.apply_chat_template(messages[:n], tokenize=False, add_generation_prompt=True)
            longer = tokenizer.apply_chat_template(messages[: n + 1], tokenize=False)
            assert prompt.endswith(OPENING)
            assert longer.startswith(prompt)
            reply = longer.removeprefix(prompt).removesuffix("\n")
            assert reply.endswith("<|im_end|>")
            sampled = _ids(tokenizer, prompt) + _ids(tokenizer, reply)
            assert _ids(tokenizer, longer)[: len(sampled)] == sampled


def test_tool_arguments_are_rendered_alike_as_text_and_as_parsed_json(tokenizer: Any) -> None:
    call = {"type": "function", "id": "x", "function": {"name": "search", "arguments": '{"query": "code of Mali"}'}}
    parsed = {**call, "function": {"name": "search", "arguments": {"query": "code of Mali"}}}
    texts = [
        tokenizer.apply_chat_template([{"role": "assistant", "content": None, "tool_calls": [c]}], tokenize=False)
        for c in (call, parsed)
    ]
    assert texts[0] == texts[1]
    assert json.loads(texts[0].split("<tool_call>")[1].split("</tool_call>")[0])["name"] == "search"


def test_only_replies_of_this_session_are_learned(tokenizer: Any) -> None:
    for seed in range(40):
        for demonstration in _demonstrations(seed):
            example = encode(tokenizer, demonstration)
            replies = [m for m in demonstration.messages if m["role"] == "assistant"][demonstration.given :]
            ends = [
                own
                for token, own in zip(example.ids, example.own, strict=True)
                if own and token == tokenizer.eos_token_id
            ]
            assert len(ends) == len(replies)


def test_long_frameworks_texts_leave_short_prompts(tokenizer: Any) -> None:
    lengths = [len(encode(tokenizer, d).ids) for seed in range(40) for d in _demonstrations(seed)]
    assert max(lengths) < 300


def test_a_summary_request_shows_only_the_transcript(tokenizer: Any) -> None:
    requests = [d.messages[0]["content"] for seed in range(20) for d in _demonstrations(seed) if len(d.messages) == 2]
    assert requests
    for request in requests:
        text = tokenizer.apply_chat_template([{"role": "user", "content": request}], tokenize=False)
        assert text.startswith("<|im_start|>user\nSummarize:\nFrom ")
        assert not any(noise in text for noise in ("<message", "tool_call", "chatcmpl", "{"))


@pytest.mark.parametrize("seed", range(10))
def test_a_teacher_without_bad_habits_is_always_right(seed: int) -> None:
    rng = random.Random(seed)
    world = MadeUpWorld(rng)
    chains = demonstration_chains(rng, world)
    answer, _ = Teacher(rng, world, PERFECT).attempt(chains)
    ends = []
    for chain in chains:
        here = chain.start
        for relation in chain.relations:
            here = world.value(here, relation)
        ends.append(here)
    assert answer == "; ".join(ends)


def test_the_teacher_never_names_a_heldout_city() -> None:
    hidden = {chain.start for question in questions("heldout") for chain in question.chains}
    assert hidden.isdisjoint(real_names())


def test_the_shipped_policy_is_small() -> None:
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 4_000_000
