"""A client that leaves: the engine hears of it at once, and the call is recorded."""

import asyncio

import pytest

from tests.conftest import ProxyFactory
from tests.engine import Turn
from tests.engine.raw import End, Step, event_stream, head
from tests.proxy.faults import BODIES, LEAVING_S, PATHS, TEXT, before, post, replying, row, wire_stream


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("point", ["before headers", "before the first chunk", "mid-stream", "whole"])
async def test_a_client_that_leaves_at_any_point_is_heard_of_by_the_engine_and_recorded(
    start_proxy: ProxyFactory, path: str, point: str
) -> None:
    part = wire_stream(path, Turn(TEXT))[:-400]
    steps: dict[str, list[Step]] = {
        "before headers": [End.HANG],
        "before the first chunk": [event_stream(), End.HANG],
        "mid-stream": [event_stream(), part, End.HANG],
        "whole": [head("content-type: application/json", "content-length: 9999") + b'{"choices"', End.HANG],
    }
    async with before(start_proxy, replying(*steps[point])) as (proxy, engine):
        asking = asyncio.ensure_future(post(proxy, path, stream=point != "whole"))
        await engine.reached.wait()
        await asyncio.sleep(0.02)
        asking.cancel()
        await asyncio.wait_for(engine.left.wait(), LEAVING_S)
        found = await row(proxy)
        assert (found["status"], found["inexact_reason"]) == ("aborted", "call_aborted")
        assert "client left" in found["error"]
        assert (found["sampled_tokens"] > 0) == (point == "mid-stream")
        if point == "mid-stream":
            assert TEXT.startswith(found["reply"].rstrip("\ufffd"))


@pytest.mark.parametrize("path", ["embeddings", "messages/count_tokens"])
async def test_a_client_that_leaves_an_untranslated_request_is_heard_of_too(
    start_proxy: ProxyFactory, path: str
) -> None:
    async with before(start_proxy, replying(End.HANG)) as (proxy, engine):
        asking = asyncio.ensure_future(post(proxy, path, BODIES["messages"]))
        await engine.reached.wait()
        asking.cancel()
        await asyncio.wait_for(engine.left.wait(), LEAVING_S)
