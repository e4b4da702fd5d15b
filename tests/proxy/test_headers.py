"""Headers and query strings, both ways."""

import json

import aiohttp
import pytest

from tests.conftest import ProxyFactory
from tests.engine import Turn
from tests.engine.raw import RawEngine, chunked, head, whole
from tests.engine.scripted import Fault
from tests.proxy.faults import BODIES, before, post, replying, request_bytes, row, talk, wire_stream, wire_whole

FORBIDDEN = {
    "connection": "keep-alive, x-hop",
    "keep-alive": "timeout=5",
    "proxy-authorization": "Basic c2VjcmV0LXNlY3JldA==",
    "proxy-authenticate": "Basic",
    "te": "trailers",
    "trailer": "x-checksum",
    "upgrade": "h2c",
    "authorization": "Bearer secret-secret",
    "x-api-key": "secret-secret",
    "api-key": "secret-secret",
    "cookie": "session=secret-secret",
    "x-goog-api-key": "secret-secret",
    "x-amz-security-token": "secret-secret",
}
PASSED = {
    "openai-organization": "org-1",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "a,b",
    "x-request-id": "r-1",
    "user-agent": "agent/1",
    "x-stainless-lang": "python",
    "accept": "application/json",
}


async def test_the_engine_gets_the_clients_headers_but_none_of_its_connection_or_its_credentials(
    start_proxy: ProxyFactory,
) -> None:
    settings = {"upstream_api_key": "engine-key"}
    async with before(start_proxy, replying(whole(wire_whole("chat", Turn("Hi")))), **settings) as (proxy, engine):
        body = json.dumps(BODIES["chat/completions"]).encode()
        lines = [f"{name}: {value}" for name, value in {**FORBIDDEN, **PASSED}.items() if name != "connection"]
        raw = await talk(proxy, request_bytes("/v1/chat/completions", body, *lines))
        assert raw.startswith(b"HTTP/1.1 200")
        (request,) = engine.requests
        names = [name for name, _ in request.headers]
        assert len(names) == len(set(names))
        assert "secret" not in str(request.headers)
        assert "c2VjcmV0" not in str(request.headers)
        assert request.all("authorization") == ["Bearer engine-key"]
        assert not {"keep-alive", "te", "trailer", "upgrade", "proxy-authenticate"} & set(names)
        assert {name: request.all(name) for name in PASSED} == {name: [value] for name, value in PASSED.items()}
        assert request.all("host") == [proxy.settings.upstream.removeprefix("http://").removesuffix("/v1")]


async def test_what_the_connection_header_names_stays_on_that_connection(start_proxy: ProxyFactory) -> None:
    top = whole(wire_whole("chat", Turn("Hi")), "connection: x-hop-back", "x-hop-back: 1")
    async with before(start_proxy, replying(top)) as (proxy, engine):
        async with aiohttp.ClientSession() as client:
            sent = {"connection": "keep-alive, x-hop", "x-hop": "1"}
            url = f"{proxy.url}/v1/chat/completions"
            async with client.post(url, json=BODIES["chat/completions"], headers=sent) as response:
                assert "x-hop-back" not in response.headers
        assert engine.requests[0].all("x-hop") == []


async def test_a_header_that_is_repeated_goes_on_with_all_its_values(start_proxy: ProxyFactory) -> None:
    async with before(start_proxy, replying(whole(wire_whole("chat", Turn("Hi"))))) as (proxy, engine):
        body = json.dumps(BODIES["chat/completions"]).encode()
        await talk(proxy, request_bytes("/v1/chat/completions", body, "anthropic-beta: a", "anthropic-beta: b"))
        assert ",".join(engine.requests[0].all("anthropic-beta")).replace(" ", "") == "a,b"


@pytest.mark.parametrize(
    ("path", "asked", "goes_on"),
    [
        ("chat/completions", "api-version=2026-01-01&a=%20b&a=c", "?api-version=2026-01-01&a=%20b&a=c"),
        ("completions", "beta=true", "?beta=true"),
        ("messages", "beta=true", ""),
        ("messages", "beta=true&api-version=1", "?api-version=1"),
        ("responses", "api-version=1", "?api-version=1"),
        ("chat/completions", "key=secret&api%5fkey=secret&access_token=secret", ""),
        ("embeddings", "api-version=1", "?api-version=1"),
        ("chat/completions", "", ""),
    ],
)
async def test_a_query_string_goes_on_without_credentials_and_what_only_the_clients_wire_knows(
    start_proxy: ProxyFactory, path: str, asked: str, goes_on: str
) -> None:
    async with before(start_proxy, replying(whole(wire_whole(path, Turn("Hi"))))) as (proxy, engine):
        assert (await post(proxy, f"{path}?{asked}", BODIES.get(path, {"model": "policy", "input": "a"})))[0] == 200
        target = "chat/completions" if path in ("messages", "responses") else path
        assert engine.requests[0].line == f"POST /v1/{target}{goes_on}"


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("plain task 7", "plain task 7"),
        ("größe", "größe"),
        ("gr%C3%B6%C3%9Fe", "größe"),
        ("UTF-8''gr%C3%B6%C3%9Fe", "größe"),
        (b"gr\xf6\xdfe", "größe"),
        ("100%", "100%"),
        ("%ff%fe", "%ff%fe"),
        ("a%00b", "a%00b"),
    ],
)
async def test_a_tasks_key_in_any_script_is_understood(start_proxy: ProxyFactory, given: str | bytes, key: str) -> None:
    async with before(start_proxy, replying(whole(wire_whole("chat", Turn("Hi"))))) as (proxy, _):
        line = b"x-mosaic-task: " + (given if isinstance(given, bytes) else given.encode())
        top, _, body = request_bytes("/v1/chat/completions", json.dumps(BODIES["chat/completions"]).encode()).partition(
            b"\r\n\r\n"
        )
        assert (await talk(proxy, top + b"\r\n" + line + b"\r\n\r\n" + body)).startswith(b"HTTP/1.1 200")
        await row(proxy)
        with proxy.store.engine.connect() as connection:
            assert connection.exec_driver_sql("select task_key from tasks").scalars().all() == [key]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_gets_the_engines_headers_once_and_none_of_its_connection(
    start_proxy: ProxyFactory, stream: bool
) -> None:
    odd = ["server: engine/1", "date: Thu, 01 Jan 1970 00:00:00 GMT", "keep-alive: timeout=5", "x-request-id: r-2"]
    odd += ["openai-processing-ms: 7", "set-cookie: a=1", "set-cookie: b=2", "upgrade: h2c", "x-odd: gr\u00fc\u00df"]
    if stream:
        data = wire_stream("chat", Turn("Hi"))
        top = head("content-type: text/event-stream", "transfer-encoding: chunked", *odd)
        reply = replying(top, chunked(data), chunked(b""))
    else:
        reply = replying(whole(wire_whole("chat", Turn("Hi")), *odd))
    async with before(start_proxy, reply) as (proxy, _):
        body = json.dumps({**BODIES["chat/completions"], "stream": stream}).encode()
        raw = await talk(proxy, request_bytes("/v1/chat/completions", body))
        lines = raw.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
        names = [line.partition(b":")[0].lower().decode() for line in lines]
        for once in ("server", "date", "content-type", "x-request-id", "openai-processing-ms", "x-mosaic-call-id"):
            assert names.count(once) == 1, (once, lines)
        assert names.count("content-length") + names.count("transfer-encoding") == 1
        assert not {"keep-alive", "upgrade", "set-cookie"} & set(names)
        assert "grüß".encode() in raw


@pytest.mark.parametrize("turn", [Turn("Hi"), Turn("Hi", fault=Fault.REFUSE)], ids=["answered", "refused"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_names_its_call_and_the_trajectory_that_its_request_named(
    start_proxy: ProxyFactory, turn: Turn, stream: bool
) -> None:
    body = {**BODIES["chat/completions"], "stream": stream}
    async with start_proxy(lambda _: turn) as proxy, aiohttp.ClientSession() as client:
        for path, headers, named in (
            ("/t/run-1/v1", {}, "run-1"),
            ("/v1", {"x-mosaic-trajectory": "run-2"}, "run-2"),
            ("/v1", {}, None),
        ):
            async with client.post(f"{proxy.url}{path}/chat/completions", json=body, headers=headers) as response:
                await response.read()
            assert response.headers.get("x-mosaic-trajectory") == named
            with proxy.store.engine.connect() as connection:
                newest = "select call_id, trajectory_id from calls order by seq desc limit 1"
                call_id, trajectory_id = connection.exec_driver_sql(newest).one()
            assert response.headers["x-mosaic-call-id"] == call_id
            assert named in (None, trajectory_id)


async def test_a_cookie_of_the_engine_is_not_sent_with_anothers_call(start_proxy: ProxyFactory) -> None:
    engine = RawEngine(replying(whole(wire_whole("chat", Turn("Hi")), "set-cookie: who=first; Path=/")))
    async with engine.serve() as url:
        named = url.replace("127.0.0.1", "localhost")
        async with start_proxy(lambda _: Turn(), upstream=named) as proxy:
            for _ in range(2):
                await post(proxy, "chat/completions")
            assert [r.all("cookie") for r in engine.requests] == [[], []]


@pytest.mark.parametrize(
    "lines",
    [
        ["transfer-encoding: chunked", "content-length: 5"],
        ["content-length: 5", "content-length: 6"],
        ["content-length: -1"],
        ["transfer-encoding: chunked, identity"],
    ],
)
async def test_a_request_of_two_lengths_is_refused_and_never_sent_on(
    start_proxy: ProxyFactory, lines: list[str]
) -> None:
    async with before(start_proxy, replying(whole(b"{}"))) as (proxy, engine):
        top = "\r\n".join(["POST /v1/chat/completions HTTP/1.1", "host: a", *lines, "", ""]).encode()
        raw = await talk(proxy, top + b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        assert raw.startswith(b"HTTP/1.1 400"), raw
        assert b'"policy"' not in raw
        assert engine.requests == []
