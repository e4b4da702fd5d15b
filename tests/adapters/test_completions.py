"""Completions pass through with ids and logprobs asked for and stripped again; the record is that of a chat."""

import json
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion

from adapters.wires.completions import Answer, Shown, to_messages, upstream_body

Json = dict[str, Any]

PROMPT_IDS = [5, 6, 7]


def choice(index: int, text: str, ids: list[int], finish: str | None, prompt: bool = True, **more: Any) -> Json:
    """A choice as vLLM sends it when ids and logprobs are asked for."""
    logprobs = {
        "text_offset": list(range(len(ids))),
        "token_logprobs": [-i / 8 for i in ids],
        "tokens": ["t"] * len(ids),
        "top_logprobs": [{"t": -i / 8} for i in ids],
    }
    ours = {"logprobs": logprobs, "token_ids": ids, "prompt_token_ids": PROMPT_IDS if prompt else None}
    return {"index": index, "text": text, "finish_reason": finish, "stop_reason": None, **ours, **more}


def usage(sampled: int, prompt: int = len(PROMPT_IDS)) -> Json:
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def answer(*choices: Json, sampled: int) -> bytes:
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "policy", "unknown": 7}
    return json.dumps({**head, "choices": choices, "usage": usage(sampled)}).encode()


def chunk(*choices: Json, **more: Any) -> bytes:
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "policy"}
    return b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def asked(body: Json) -> Json:
    sent, _ = upstream_body(json.dumps(body).encode(), body)
    return dict(json.loads(sent))


# ---- the request


def test_bytes_go_on_as_they_came_with_our_fields_behind() -> None:
    raw = b'{ "prompt": "Hi", "top_k" :5, "nested": {"a": [1, null]} } '
    sent, wanted = upstream_body(raw, json.loads(raw))
    assert sent == raw.rstrip()[:-1] + b',"logprobs":0,"return_token_ids":true}'
    assert not any((wanted.logprobs, wanted.token_ids, wanted.stream, wanted.stream_usage))


@pytest.mark.parametrize(
    ("given_fields", "sent_fields"),
    [
        ({"logprobs": 3}, {"logprobs": 3, "return_token_ids": True}),
        ({"logprobs": 0}, {"logprobs": 0, "return_token_ids": True}),
        ({"logprobs": None}, {"logprobs": 0, "return_token_ids": True}),
        ({"return_token_ids": True}, {"logprobs": 0, "return_token_ids": True}),
        ({"return_token_ids": False}, {"logprobs": 0, "return_token_ids": True}),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            {"stream_options": {"continuous_usage_stats": True, "include_usage": True}},
        ),
        ({"stream": True}, {"stream_options": {"include_usage": True}}),
    ],
)
def test_what_the_client_asked_for_stays(given_fields: Json, sent_fields: Json) -> None:
    sent = asked({"prompt": "Hi", **given_fields})
    assert sent | sent_fields == sent


@pytest.mark.parametrize("prompt", ["Hi", ["Hi"], ["Hi", "Ho"], [1, 2, 3], [[1, 2], [3]]])
def test_prompts_of_every_form_go_on_as_they_are(prompt: object) -> None:
    assert asked({"prompt": prompt})["prompt"] == prompt


def test_a_request_with_echo_goes_on_as_it_came() -> None:
    raw = b'{"prompt": "Hi", "echo": true}'
    sent, wanted = upstream_body(raw, json.loads(raw))
    assert sent == raw
    said = json.dumps({"choices": [{"index": 0, "text": "Hi you", "logprobs": None, "finish_reason": "stop"}]}).encode()
    assert json.loads(Shown(wanted, "call-1").whole(said)) == json.loads(said)
    kept = Answer(json.loads(raw))
    kept.whole(said)
    assert kept.captured().inexact_reason == "echo"


@pytest.mark.parametrize(
    ("prompt", "content"), [("Hi", "Hi"), (["Hi"], "Hi"), ([1, 2], [1, 2]), (["a", "b"], ["a", "b"]), (None, "")]
)
def test_the_prompt_is_one_user_message(prompt: object, content: object) -> None:
    assert to_messages({"prompt": prompt}) == [{"role": "user", "content": content}]


# ---- what the client sees


def test_the_client_does_not_see_what_it_did_not_ask_for() -> None:
    _, wanted = upstream_body(b"{}", {"prompt": "Hi"})
    shown = json.loads(Shown(wanted, "call-1").whole(answer(choice(0, "Yes", [1, 2], "stop"), sampled=2)))
    assert shown["unknown"] == 7
    assert shown["usage"] == usage(2)
    assert shown["choices"] == [
        {
            "index": 0,
            "text": "Yes",
            "finish_reason": "stop",
            "stop_reason": None,
            "logprobs": None,
            "token_ids": None,
            "prompt_token_ids": None,
        }
    ]
    Completion.model_validate(shown)


def test_the_client_sees_what_it_asked_for() -> None:
    _, wanted = upstream_body(b"{}", {"prompt": "Hi", "logprobs": 1, "return_token_ids": True})
    whole = answer(choice(0, "Yes", [1, 2], "stop"), sampled=2)
    assert json.loads(Shown(wanted, "call-1").whole(whole)) == json.loads(whole)


@pytest.mark.parametrize("usage_asked", [True, False])
def test_a_stream_is_stripped_and_reads_in_the_clients_own_client(usage_asked: bool) -> None:
    options = {"include_usage": True} if usage_asked else None
    _, wanted = upstream_body(b"{}", {"prompt": "Hi", "stream": True, "stream_options": options})
    events = [
        chunk(choice(0, "Ye", [1], None)),
        chunk(choice(0, "s", [2], "stop", prompt=False)),
        chunk(usage=usage(2)),
        DONE,
    ]
    shown = Shown(wanted, "call-1")
    sent = b"".join(shown.event(event) for event in events)
    assert shown.done
    assert b't_token_ids":[' not in sent
    assert b"token_logprobs" not in sent

    def reply(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=sent)

    http = httpx2.Client(transport=httpx2.MockTransport(reply))
    with openai.OpenAI(api_key="k", base_url="http://engine/v1", http_client=http) as client:
        read = list(client.completions.create(model="policy", prompt="Hi", stream=True))
    assert "".join(c.choices[0].text for c in read if c.choices) == "Yes"
    assert any(c.usage is not None for c in read) is usage_asked


# ---- the record


def kept_stream(body: Json, events: list[bytes]) -> Answer:
    kept = Answer(body)
    for at, event in enumerate(events):
        kept.event(event, float(at))
    return kept


def test_a_whole_answer_is_exact() -> None:
    kept = Answer({"prompt": "Hi"})
    kept.whole(answer(choice(0, "Yes", [1, 2], "stop"), choice(1, "No", [3], "length"), sampled=3))
    captured = kept.captured()
    assert captured.inexact_reason is None
    assert captured.prompt_ids_P.tolist() == PROMPT_IDS
    assert [c.message for c in captured.choices] == [
        {"role": "assistant", "content": "Yes"},
        {"role": "assistant", "content": "No"},
    ]
    assert [c.ids_T.tolist() for c in captured.choices] == [[1, 2], [3]]
    assert np.allclose(captured.choices[0].logprobs_T, [-1 / 8, -2 / 8])
    assert [c.finish_reason for c in captured.choices] == ["stop", "length"]


@given(st.lists(st.tuples(st.integers(0, 1), st.text(max_size=3), st.integers(0, 3)), min_size=2, max_size=12))
def test_a_stream_is_kept_as_its_whole(pieces: list[tuple[int, str, int]]) -> None:
    pieces = [(0, "a", 1), (1, "b", 1), *pieces]
    texts, ids, events, next_id = ["", ""], [list[int](), list[int]()], list[bytes](), 1
    for at, (index, text, count) in enumerate(pieces):
        new = list(range(next_id, next_id + count))
        next_id += count
        texts[index] += text
        ids[index] += new
        events.append(chunk(choice(index, text, new, None, prompt=at < 2)))
    ends = [chunk(choice(i, "", [], "stop", prompt=False)) for i in (0, 1)]
    total = len(ids[0]) + len(ids[1])
    streamed = kept_stream({"prompt": "Hi", "n": 2}, [*events, *ends, chunk(usage=usage(total)), DONE]).captured()
    whole = Answer({"prompt": "Hi", "n": 2})
    whole.whole(answer(*(choice(i, texts[i], ids[i], "stop") for i in (0, 1)), sampled=total))
    captured = whole.captured()
    assert streamed.inexact_reason is captured.inexact_reason is None
    for one, other in zip(streamed.choices, captured.choices, strict=True):
        assert (one.index, one.message, one.finish_reason) == (other.index, other.message, other.finish_reason)
        assert one.ids_T.tolist() == other.ids_T.tolist()
        assert one.logprobs_T.tolist() == other.logprobs_T.tolist()
    assert streamed.prompt_ids_P.tolist() == PROMPT_IDS


GOOD = [chunk(choice(0, "Yes", [1, 2], "stop")), chunk(usage=usage(2)), DONE]


@pytest.mark.parametrize(
    ("body", "events", "reason"),
    [
        ({}, GOOD, None),
        ({"prompt": [[1, 2]]}, GOOD, None),
        ({"prompt": ["a", "b"]}, GOOD, "many_prompts"),
        ({"prompt": [[1], [2]]}, GOOD, "many_prompts"),
        ({"prompt_embeds": "x"}, GOOD, "prompt_embeds"),
        ({}, GOOD[:-1], "cut"),
        ({"prompt": ["a", "b"]}, GOOD[:-1], "cut"),
        ({}, [GOOD[0], b'data: {"error": {"message": "died"}}\n\n', DONE], "engine_error"),
        ({}, [GOOD[0], DONE], "no_usage"),
        ({}, [b"data: {nonsense\n\n", *GOOD], "unreadable_chunk"),
        ({}, [chunk(choice(0, "Yes", [1, 2], "stop", prompt=False)), *GOOD[1:]], "no_prompt_ids"),
        ({}, [chunk(choice(0, "Yes", [1], "stop")), *GOOD[1:]], "completion_tokens_differ"),
        ({}, [chunk(choice(0, "Yes", [1, 2], "stop", logprobs=None)), *GOOD[1:]], "logprobs_differ"),
        ({}, [chunk(choice(0, "Yes", [1, 2], "stop", token_ids=None)), *GOOD[1:]], "no_token_ids"),
    ],
)
def test_what_cannot_be_trained_says_why(body: Json, events: list[bytes], reason: str | None) -> None:
    assert kept_stream(body, events).captured().inexact_reason == reason


@pytest.mark.parametrize("odd", [b"", b"[]", b'{"choices": 5}', b'{"choices": [5]}', b'{"choices": [{"index": "x"}]}'])
def test_an_answer_that_is_none_is_shown_as_it_is_and_never_trained(odd: bytes) -> None:
    _, wanted = upstream_body(b"{}", {"prompt": "Hi"})
    shown = Shown(wanted, "call-1").whole(odd)
    assert shown == odd or json.loads(shown) == json.loads(odd)
    kept = Answer()
    kept.whole(odd)
    assert kept.captured().inexact_reason is not None
