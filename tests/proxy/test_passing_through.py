"""What the client asked for reaches the engine, and no more comes back."""

import itertools
import json
from typing import Any

import anthropic
import openai
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.wires.wire import WIRES, Context
from tests.conftest import ProxyFactory
from tests.engine import Turn
from tests.engine.raw import End, event_stream, whole
from tests.engine.tokens import TokenEngine
from tests.proxy.faults import (
    ASKED,
    BODIES,
    HI,
    PATHS,
    Json,
    before,
    data_events,
    legacy_choice,
    post,
    replying,
    row,
    rows,
    wire_stream,
    wire_whole,
)

OURS = {
    "chat/completions": b',"logprobs":true,"return_token_ids":true}',
    "completions": b',"logprobs":0,"return_token_ids":true}',
}
USAGE = b',"stream_options":{"include_usage":true}}'
PARAMETER = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda n: n not in {"model", "messages", "prompt", "stream", "echo", "stream_options", "n", *ASKED}
)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
SPACED = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])


WRITTEN = st.tuples(SPACED, st.booleans(), st.sampled_from(["", " ", "\r\n"]))
"""(separators, whether only ASCII is used, what follows the body)"""


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize("stream", [False, True])
@settings(max_examples=200)
@given(unknown=st.dictionaries(PARAMETER, VALUE, max_size=4), written=WRITTEN)
def test_unknown_parameters_reach_the_engine_byte_for_byte_before_our_own_fields(
    path: str, stream: bool, unknown: Json, written: tuple[tuple[str, str], bool, str]
) -> None:
    separators, only_ascii, tail = written
    template = {"enable_thinking": False, "deep": [unknown]}
    body = {**BODIES[path], **unknown, "chat_template_kwargs": template, "stream": stream}
    try:
        raw = (json.dumps(body, separators=separators, ensure_ascii=only_ascii) + tail).encode()
        parsed = orjson.loads(raw)
    except (UnicodeEncodeError, orjson.JSONDecodeError):
        return  # a lone surrogate is no text, and the engine would refuse it as well
    sent = WIRES[path].open(raw, parsed, Context("call-1", 1e9)).sent
    ours = OURS[path][:-1] + USAGE if stream else OURS[path]
    assert sent == raw.rstrip()[:-1] + ours


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_nested_and_unknown_parameters_arrive_over_real_sockets(
    start_proxy: ProxyFactory, path: str, stream: bool
) -> None:
    reply = replying(event_stream(), wire_stream(path, Turn("Hi")), End.FIN)
    if not stream:
        reply = replying(whole(wire_whole(path, Turn("Hi"))))
    kwargs = {"enable_thinking": False, "ünknown": [{"deep": 1.0}, None, "\u00e9"]}
    odd = {"chat_template_kwargs": kwargs, "guided_json": {"a": {"b": []}}, "top_k": 7, "min_p": 0.05}
    async with before(start_proxy, reply) as (proxy, engine):
        raw = json.dumps({**BODIES[path], **odd, "stream": stream}, indent=1).encode()
        assert (await post(proxy, path, raw))[0] == 200
        (request,) = engine.requests
        sent = json.loads(request.body)
        assert {name: sent.get(name) for name in odd} == odd
        if not WIRES[path].translated:
            assert request.body == raw[:-1] + (OURS[path][:-1] + USAGE if stream else OURS[path])
        assert request.all("content-length") == [str(len(request.body))]
        assert len(request.all("host")) == 1


BIG = 2**64 + 1


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", {"logprobs": 1}),
        ("completions", {"logprobs": 1}),
        ("chat/completions", {"return_token_ids": True, "seed": BIG}),
        ("chat/completions", {"model": "other", "seed": BIG}),
        ("completions", {"model": "other", "seed": BIG}),
        ("responses", {"seed": BIG, "unknown": [-BIG]}),
        ("messages", {"seed": BIG, "unknown": [-BIG]}),
    ],
)
async def test_values_survive_where_the_body_cannot_go_on_as_it_came(
    start_proxy: ProxyFactory, path: str, fields: Json
) -> None:
    async with before(start_proxy, replying(whole(wire_whole(path, Turn("Hi"))))) as (proxy, engine):
        assert (await post(proxy, path, **{"nested": {"a": [1.5, "é"]}, **fields}))[0] == 200
        sent = json.loads(engine.requests[0].body)
        assert {name: sent[name] for name in fields if name != "model"} == {
            name: value for name, value in fields.items() if name != "model"
        }
        assert sent["nested"] == {"a": [1.5, "é"]}


async def test_integers_of_any_size_survive_in_what_a_tool_was_called_with_and_in_its_schema(
    start_proxy: ProxyFactory,
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": BIG}}}
    used = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "pay", "input": {"n": BIG}}]}
    told = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "done"}]}
    body = {**BODIES["messages"], "messages": [*HI, used, told], "tools": [{"name": "pay", "input_schema": schema}]}
    for mode in ("capture", "exact"):
        engine = TokenEngine(lambda _: Turn("Hi"))
        async with start_proxy(engine, fidelity=mode) as proxy:
            assert (await post(proxy, "messages", body))[0] == 200
            sent = engine.requests[0]
            assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == f'{{"n":{BIG}}}'
            assert sent["tools"][0]["function"]["parameters"] == schema


@pytest.mark.parametrize("path", PATHS)
async def test_what_is_nested_deeply_goes_on_and_is_recorded(start_proxy: ProxyFactory, path: str) -> None:
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    async with before(start_proxy, replying(whole(wire_whole(path, Turn("Hi"))))) as (proxy, engine):
        assert (await post(proxy, path, unknown=deep))[0] == 200
        assert json.loads(engine.requests[0].body)["unknown"] == deep
        assert (await row(proxy))["status"] == "ok"


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_streams_logprobs_ids_and_usage_are_shown_as_asked_and_recorded_always(
    start_proxy: ProxyFactory, path: str, stream: bool
) -> None:
    reply = replying(event_stream(), wire_stream(path, Turn("Hi there")), End.FIN)
    if not stream:
        reply = replying(whole(wire_whole(path, Turn("Hi there"))))
    async with before(start_proxy, reply) as (proxy, _):
        for logprobs, ids, usage in itertools.product([False, True], repeat=3):
            wish: Json = {"logprobs": 1} if logprobs else {}
            wish |= {"return_token_ids": True} if ids else {}
            wish |= {"stream_options": {"include_usage": True}} if stream and usage else {}
            _, got = await post(proxy, path, stream=stream, **wish)
            shown = data_events(got) if stream else [json.loads(got)]
            choices = [choice for event in shown if event for choice in event["choices"]]
            assert any(choice.get("token_ids") for choice in choices) == ids
            assert (b'"logprob"' in got or b'"token_logprobs"' in got) == logprobs
            assert sum(bool(event and event.get("usage")) for event in shown) == (usage or not stream)
        assert [r["exact"] for r in rows(proxy)] == [1] * 8


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [False, True])
async def test_tool_calls_come_whole_with_and_without_logprobs(
    start_proxy: ProxyFactory, stream: bool, logprobs: bool
) -> None:
    """Large arguments of calls in parallel, their pieces interleaved, and nothing of one in the other."""
    large = [json.dumps({"file": f"{at}.py", "content": f"<{at}> ü\n" * 2000}) for at in range(3)]
    assert all(10_000 < len(text) < 30_000 for text in large)
    calls = [
        {"id": f"call_{at}", "type": "function", "function": {"name": f"write_{at}", "arguments": ""}}
        for at in range(3)
    ]
    base = {"id": "x", "object": "chat.completion.chunk", "model": "policy"}
    deltas: list[Json] = [{"tool_calls": [{"index": at, **call}]} for at, call in enumerate(calls)]
    for begin in range(0, max(map(len, large)), 997):
        deltas += [
            {"tool_calls": [{"index": at, "function": {"arguments": text[begin : begin + 997]}}]}
            for at, text in enumerate(large) if text[begin : begin + 997]
        ]  # fmt: skip
    entries = [{"token": "t", "logprob": -0.5, "bytes": None, "top_logprobs": []}]
    chunks: list[Json] = [
        {
            **base,
            "choices": [
                {"index": 0, "delta": d, "token_ids": [at], "logprobs": {"content": entries}, "finish_reason": None}
            ],
        }
        for at, d in enumerate(deltas)
    ]
    chunks[0]["prompt_token_ids"], chunks[-1]["choices"][0]["finish_reason"] = [1, 2], "tool_calls"
    counted = {"prompt_tokens": 2, "completion_tokens": len(chunks), "total_tokens": 2 + len(chunks)}
    chunks.append({**base, "choices": [], "usage": counted})
    events = b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in chunks) + b"data: [DONE]\n\n"
    full = [{**c, "function": {"name": f"write_{at}", "arguments": large[at]}} for at, c in enumerate(calls)]
    ids, lps = list(range(len(deltas))), {"content": entries * len(deltas)}
    answer = {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "policy",
        "prompt_token_ids": [1, 2],
        "usage": counted,
    }
    answer["choices"] = [{"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": full},
                          "finish_reason": "tool_calls", "token_ids": ids, "logprobs": lps}]  # fmt: skip
    reply = replying(event_stream(), events, End.FIN) if stream else replying(whole(json.dumps(answer).encode()))
    want = [(f"write_{at}", json.loads(text)) for at, text in enumerate(large)]
    async with before(start_proxy, reply) as (proxy, _):
        url = f"{proxy.url}/t/run-1"
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="a", max_retries=0) as client:
            tools: Any = [{"type": "function", "function": {"name": f"write_{at}"}} for at in range(3)]
            asked: Any = {"model": "policy", "messages": HI, "tools": tools, **({"logprobs": True} if logprobs else {})}
            if stream:
                async with client.chat.completions.stream(**asked) as streaming:
                    said = await streaming.get_final_completion()
            else:
                said = await client.chat.completions.create(**asked)
            assert bool(said.choices[0].logprobs and said.choices[0].logprobs.content) == logprobs
            got: Any = said.choices[0].message.tool_calls
            assert [(c.function.name, json.loads(c.function.arguments)) for c in got] == want
            flat: Any = [{"type": "function", "name": f"write_{at}", "parameters": {}} for at in range(3)]
            response = await stream_or_create(client.responses, stream, model="policy", input="Hi", tools=flat)
            assert [(i.name, json.loads(i.arguments)) for i in response.output] == want
        async with anthropic.AsyncAnthropic(base_url=url, api_key="a", max_retries=0) as claude:
            known: Any = [{"name": f"write_{at}", "input_schema": {"type": "object"}} for at in range(3)]
            message = await stream_or_create(claude.messages, stream, model="m", max_tokens=9, messages=HI, tools=known)
            assert [(b.name, b.input) for b in message.content] == want
        assert [r["exact"] for r in rows(proxy)] == [1, 1, 1]
        for r in rows(proxy):
            kept = json.loads(r["reply_tool_calls"])
            assert [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in kept] == want


async def stream_or_create(resource: Any, stream: bool, **asked: Any) -> Any:
    if not stream:
        return await resource.create(**asked)
    async with resource.stream(**asked) as events:
        return await (events.get_final_message if hasattr(events, "get_final_message") else events.get_final_response)()


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_passes_under_the_name_that_the_engine_and_the_client_use(
    start_proxy: ProxyFactory, name: str, stream: bool
) -> None:
    answer = json.loads(wire_whole("chat/completions", Turn("Done")))
    answer["choices"][0]["message"][name] = "Let me think"
    events = data_events(wire_stream("chat/completions", Turn("Done")))
    for at, piece in enumerate(("Let me ", "think")):
        events.insert(1 + at, {"choices": [{"index": 0, "delta": {name: piece}, "finish_reason": None}]})
    sse = b"".join(b"data: " + (json.dumps(e).encode() if e else b"[DONE]") + b"\n\n" for e in events)
    reply = replying(event_stream(), sse, End.FIN) if stream else replying(whole(json.dumps(answer).encode()))
    async with before(start_proxy, reply) as (proxy, engine):
        first = [*HI, {"role": "assistant", "content": "Done", name: "Let me think"}, {"role": "user", "content": "On"}]
        for messages in (HI, first):
            _, got = await post(proxy, "chat/completions", messages=messages, stream=stream)
            shown = data_events(got) if stream else [json.loads(got)]
            parts = [c.get("delta") or c.get("message") for e in shown if e for c in e["choices"]]
            assert "".join(part.get(name) or "" for part in parts) == "Let me think"
        assert json.loads(engine.requests[1].body)["messages"] == first
        (session,) = proxy.store.trajectory("run-1").sessions
        assert [c.samples[0].message[name] for c in session.calls] == ["Let me think"] * 2
        for path in ("responses", "messages"):
            _, got = await post(
                proxy, path, stream=stream, **({"reasoning": {"summary": "auto"}} if path == "responses" else {})
            )
            assert b"Let me think" in got or b"Let me " in got


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_three_choices_of_one_stream_stay_three_whatever_way_their_chunks_interleave(
    start_proxy: ProxyFactory, path: str
) -> None:
    texts = ["first ü", "the second one", "3"]
    base = {"id": "x", "model": "policy"}
    chunks: list[Json] = []
    for at in range(max(map(len, texts))):
        for index in (2, 0, 1):
            if letter := texts[index][at : at + 1]:
                finish = "stop" if at == len(texts[index]) - 1 else None
                legacy = {**legacy_choice([at], letter, finish), "index": index}
                entry = {"content": [{"token": "t", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
                chat = {
                    "index": index,
                    "delta": {"content": letter},
                    "finish_reason": finish,
                    "token_ids": [at],
                    "logprobs": entry,
                }
                chunks.append({**base, "choices": [chat if path == "chat/completions" else legacy]})
    chunks[0]["prompt_token_ids"] = chunks[0]["choices"][0]["prompt_token_ids"] = [72, 105]
    chunks.append({**base, "choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": sum(map(len, texts))}})
    events = b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in chunks) + b"data: [DONE]\n\n"
    async with before(start_proxy, replying(event_stream(), events, End.FIN)) as (proxy, _):
        _, got = await post(proxy, path, stream=True, n=3)
        for index, text in enumerate(texts):
            parts = [c for e in data_events(got) if e for c in e["choices"] if c["index"] == index]
            assert "".join(c["delta"]["content"] if "delta" in c else c["text"] for c in parts) == text
        (session,) = proxy.store.trajectory("run-1").sessions
        (call,) = session.calls
        assert call.exact
        assert [(s.index, s.message["content"], len(s.ids_T)) for s in call.samples] == [
            (index, text, len(text)) for index, text in enumerate(texts)
        ]
