"""Where a call goes is ours to say."""

import json

import aiohttp
import pytest

from tests.conftest import ProxyFactory
from tests.engine import Turn
from tests.engine.raw import RawEngine, whole
from tests.proxy.faults import BODIES, PATHS, before, post, replying, request_bytes, talk, wire_whole


@pytest.mark.parametrize("path", PATHS)
async def test_a_redirect_of_the_engine_is_not_followed(start_proxy: ProxyFactory, path: str) -> None:
    elsewhere = RawEngine(replying(whole(b"{}")))
    async with elsewhere.serve() as other:
        for status in ("301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"):
            reply = replying(whole(b"", f"location: {other}/{path}", status=status))
            async with before(start_proxy, reply) as (proxy, _):
                assert (await post(proxy, path))[0] == 502
    assert elsewhere.connections == 0


async def test_a_redirect_of_the_engine_is_not_passed_on_either(start_proxy: ProxyFactory) -> None:
    """A client that follows it, as openai's does, would go to the engine itself."""
    reply = replying(whole(b"", "location: http://127.0.0.1:9/v1/chat/completions", status="307 Temporary Redirect"))
    async with before(start_proxy, reply) as (proxy, _), aiohttp.ClientSession() as client:
        asking = client.post(f"{proxy.url}/v1/chat/completions", json=BODIES["chat/completions"], allow_redirects=False)
        async with asking as response:
            assert response.status == 502
            assert "location" not in response.headers


async def test_a_redirect_of_the_engines_list_of_models_is_not_followed(start_proxy: ProxyFactory) -> None:
    elsewhere = RawEngine(replying(whole(b"{}")))
    async with elsewhere.serve() as other:
        engine = RawEngine(replying(whole(wire_whole("chat", Turn("Hi")))))
        engine.models = whole(b"", f"location: {other}/models", status="302 Found")
        async with engine.serve() as url, start_proxy(lambda _: Turn(), upstream=url) as proxy:
            await post(proxy, "chat/completions")
    assert elsewhere.connections == 0


TARGETS = [
    "http://{other}/v1/chat/completions",
    "//{other}/v1/chat/completions",
    "/v1//{other}/v1/chat/completions",
    "/v1/chat/completions/../../../pause",
    "/v1/chat/completions/%2e%2e/%2e%2e/pause",
    "/v1/%2e%2e/pause",
    "/v1/..%2fpause",
    "/v1/chat%2fcompletions",
    "/v1/chat/completions%00",
    "/v1/chat/completions%0d%0ax-evil:1",
    "/v1/chat/completions;/pause",
    "/v1/chat/completions?url=http://{other}/",
    "/v1/chat/completions#@{other}",
    "/t/../v1/chat/completions",
    "/t/..%2f..%2fpause/v1/chat/completions",
    "/t/a%0ab/v1/chat/completions",
    "/v1/http://{other}/chat/completions",
    "/v1/@{other}/chat/completions",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/models/../../collective_rpc",
    "/V1/chat/completions",
    "/v1\\..\\pause",
]


async def test_nothing_in_a_request_moves_it_to_another_host_or_to_the_engines_administration(
    start_proxy: ProxyFactory,
) -> None:
    elsewhere = RawEngine(replying(whole(b"{}")))
    async with elsewhere.serve() as url:
        other = url.removeprefix("http://").removesuffix("/v1")
        async with before(start_proxy, replying(whole(wire_whole("chat", Turn("Hi"))))) as (proxy, engine):
            places = dict.fromkeys(("api_base", "base_url", "upstream", "url", "endpoint", "target"), url)
            routing = ["x-forwarded-host", "x-forwarded-server", "forwarded", "x-original-url", "x-rewrite-url"]
            routing += ["x-upstream", "x-target-url", "x-llm-base-url", "x-portkey-custom-host", "x-real-ip"]
            lines = [f"{name}: {other}" for name in routing]
            body = json.dumps({**BODIES["chat/completions"], **places, "litellm_params": places}).encode()
            for target in TARGETS:
                for method in ("POST", "GET", "PUT"):
                    raw = request_bytes(target.format(other=other), body, f"host: {other}", *lines, method=method)
                    answer = await talk(proxy, raw)
                    assert answer[9:10] in b"24", (target, answer)
            assert {r.line.partition("?")[0] for r in engine.requests} == {"POST /v1/chat/completions"}
            mine = proxy.settings.upstream.removeprefix("http://").removesuffix("/v1")
            assert {tuple(r.all("host")) for r in engine.requests} == {(mine,)}
    assert elsewhere.connections == 0
