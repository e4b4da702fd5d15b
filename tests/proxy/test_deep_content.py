"""Content that is nested deeply: recorded with its tokens, continued, and readable everywhere; or refused in words."""

import json
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.harnesses import HARNESSES
from mosaic.nesting import _cut, _text, deeper, parsed
from mosaic.store import relinking
from mosaic.terminal import print_json
from tests.conftest import Proxy, ProxyFactory, until
from tests.engine import Turn
from tests.engine.raw import whole
from tests.proxy.faults import BODIES, before, post, replying, rows, wire_whole

PLACES = {
    "content": '{"model":"policy","messages":[{"role":"user","content":[DEEP]}AGAIN]}',
    "bare content": '{"model":"policy","messages":[{"role":"user","content":DEEP}AGAIN]}',
    "tools": '{"model":"policy","tools":[{"type":"function","function":{"name":"f","parameters":DEEP}}],'
    '"messages":[{"role":"user","content":"Hi"}AGAIN]}',
    "parameter": '{"model":"policy","metadata":DEEP,"messages":[{"role":"user","content":"Hi"}AGAIN]}',
    "arguments": '{"model":"policy","messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":null,'
    '"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":DEEP}}]},'
    '{"role":"tool","tool_call_id":"c1","content":"done"}AGAIN]}',
}
REPEATED = {
    "tools": '{"model":"policy","stream":STREAM,"input":"Hi",'
    '"tools":[{"type":"function","name":"f","parameters":DEEP}]}',
    "metadata": '{"model":"policy","stream":STREAM,"input":"Hi","metadata":DEEP}',
    "format": '{"model":"policy","stream":STREAM,"input":"Hi",'
    '"text":{"format":{"type":"json_schema","name":"n","schema":DEEP}}}',
}
"""What a response of the Responses API repeats."""
AGAIN = ',{"role":"assistant","content":"Hello there"},{"role":"user","content":"And now?"}'


def request(place: str, deep: str, again: str = "") -> bytes:
    return PLACES[place].replace("DEEP", deep).replace("AGAIN", again).encode()


def nested(depth: int, kind: str) -> str:
    start, end = {"list": ("[", "]"), "object": ('{"a":', "}")}[kind]
    return start * depth + '"x"' + end * depth


@pytest.mark.parametrize("kind", ["list", "object"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("depth", [200, 250, 1000])
async def test_what_is_nested_deeply_is_recorded_continued_and_shown(
    start_proxy: ProxyFactory, place: str, depth: int, kind: str
) -> None:
    deep = nested(depth, kind)
    reply = replying(whole(wire_whole("chat/completions", Turn("Hello there"))))
    async with before(start_proxy, reply) as (proxy, engine):
        for again in ("", AGAIN):
            status, _ = await post(proxy, "chat/completions", request(place, deep, again))
            assert status == 200
            assert deep in engine.requests[-1].body.decode()
        first, second = rows(proxy)
        assert [(one["status"], one["sampled_tokens"]) for one in (first, second)] == [("ok", 12)] * 2
        (session,) = proxy.store.trajectory("run-1").sessions
        assert [call.call_id for call in session.calls] == [first["call_id"], second["call_id"]]
        assert not (proxy.settings.spool / "rejected.jsonl").exists()
        counted = proxy.store.counters().get("flattened_calls", {})
        assert counted == ({"nested_too_deep": 2} if depth > 254 else {})
        found = relinking.relink(proxy.store.database, HARNESSES, dry_run=True)
        assert (found.calls, len(found.moved), found.links) == (2, 0, 0)
        await read_everywhere(proxy, second["call_id"])


@pytest.mark.parametrize("place", PLACES)
async def test_at_every_depth_about_what_json_can_be_written_in_a_call_is_recorded(
    start_proxy: ProxyFactory, place: str
) -> None:
    reply = replying(whole(wire_whole("chat/completions", Turn("Hello there"))))
    depths = range(245, 259)
    async with before(start_proxy, reply) as (proxy, _):
        for depth in depths:
            assert (await post(proxy, "chat/completions", request(place, nested(depth, "object"))))[0] == 200
        found = rows(proxy)
        assert [(one["status"], one["sampled_tokens"]) for one in found] == [("ok", 12)] * len(depths)
        assert 0 < proxy.store.counters()["flattened_calls"]["nested_too_deep"] < len(depths)
        for one in found:
            await read_everywhere(proxy, one["call_id"])


async def read_everywhere(proxy: Proxy, call_id: str) -> None:
    print_json(proxy.store.explain(call_id))
    async with aiohttp.ClientSession() as client:
        for path in ("/api/trajectories/run-1", f"/api/calls/{call_id}", "/ui/t/run-1", f"/ui/c/{call_id}"):
            async with client.get(f"{proxy.url}{path}") as response:
                assert response.status == 200, path
                await response.read()


@pytest.mark.parametrize("place", PLACES)
async def test_what_no_parser_reads_is_refused_before_anything_is_sampled(
    start_proxy: ProxyFactory, place: str
) -> None:
    reply = replying(whole(wire_whole("chat/completions", Turn("Hello there"))))
    async with before(start_proxy, reply) as (proxy, engine):
        status, said = await post(proxy, "chat/completions", request(place, nested(5000, "list")))
        assert (status, b"depth" in said) == (400, True)
        assert (engine.requests, rows(proxy)) == ([], [])
        assert (await post(proxy, "chat/completions"))[0] == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", REPEATED)
async def test_what_a_response_cannot_repeat_is_refused_before_anything_is_sampled(
    start_proxy: ProxyFactory, place: str, stream: bool
) -> None:
    async with start_proxy(lambda _: Turn("Hello there")) as proxy:
        statuses = []
        for depth in (*range(245, 257), 300, 900, 1020):
            body = REPEATED[place].replace("DEEP", nested(depth, "object")).replace("STREAM", json.dumps(stream))
            status, answer = await post(proxy, "responses", body.encode())
            statuses.append(status)
            assert (b'"completed"' in answer, b"too deep" in answer) == (status == 200, status == 400)
        answered = statuses.count(200)
        assert 245 + answered in (250, 251, 252, 253)
        assert statuses == [200] * answered + [400] * (15 - answered)
        assert len(proxy.engine.requests) == answered
        await until(lambda: len(rows(proxy)) == answered)


@pytest.mark.parametrize("depth", [200, 985, 1024, 5000])
async def test_arguments_are_a_text_and_may_be_nested_as_deep_as_they_are(
    start_proxy: ProxyFactory, depth: int
) -> None:
    asked = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": nested(depth, "object")}}]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": asked},
        {"role": "tool", "tool_call_id": "c1", "content": nested(depth, "list")},
    ]
    reply = replying(whole(wire_whole("chat/completions", Turn("Hello there"))))
    async with before(start_proxy, reply) as (proxy, _):
        assert (await post(proxy, "chat/completions", messages=messages))[0] == 200
        (found,) = rows(proxy)
        assert (found["status"], found["sampled_tokens"]) == ("ok", 12)
        assert "flattened_calls" not in proxy.store.counters()
        await read_everywhere(proxy, found["call_id"])


@pytest.mark.parametrize("depth", [101, 985, 1024, 5000])
async def test_a_call_of_the_model_s_own_is_recorded_however_deep_its_arguments_are(
    start_proxy: ProxyFactory, depth: int
) -> None:
    made = whole(wire_whole("chat/completions", Turn("", (("f", nested(depth, "object")),))))
    async with before(start_proxy, replying(made)) as (proxy, _):
        status, answer = await post(proxy, "chat/completions")
        told = json.loads(answer)["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": told["tool_calls"][0]["id"], "content": "done"}
        again = await post(proxy, "chat/completions", messages=[*BODIES["chat/completions"]["messages"], told, result])
        assert (status, again[0]) == (200, 200)
        assert [one["status"] for one in rows(proxy)] == ["ok", "ok"]
        (session,) = proxy.store.trajectory("run-1").sessions
        assert len(session.calls) == 2
        assert not (proxy.settings.spool / "rejected.jsonl").exists()
        await read_everywhere(proxy, session.calls[0].call_id)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(JSON, st.integers(0, 4))
def test_a_value_is_deeper_than_some_levels_when_its_cut_differs(value: Any, levels: int) -> None:
    assert deeper(value, levels) == (_cut([value], levels + 1) != [value])


def test_a_text_is_parsed_where_it_is_json_of_at_most_a_hundred_levels() -> None:
    assert deeper(parsed(nested(100, "object")), 99)
    assert parsed(json.dumps("[" * 200)) == "[" * 200
    for text in (nested(101, "list"), nested(101, "object"), nested(5000, "list"), "[", ""):
        with pytest.raises(ValueError, match=r"deep|depth|unexpected|empty"):
            parsed(text)


@given(JSON)
def test_the_text_of_a_value_is_its_json(value: Any) -> None:
    assert json.loads(_text(value)) == value


@given(JSON, st.integers(0, 4))
def test_above_the_cut_a_value_stays_and_below_it_is_its_text(value: Any, room: int) -> None:
    assert whole_again(_cut(value, room), room) == value


def whole_again(value: Any, room: int) -> Any:
    if room == 0:
        return json.loads(value) if isinstance(value, str) and value[:1] in ("[", "{") else value
    if isinstance(value, dict):
        return {name: whole_again(inner, room - 1) for name, inner in value.items()}
    return [whole_again(inner, room - 1) for inner in value] if isinstance(value, list) else value
