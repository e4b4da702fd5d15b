"""What the doctor finds, asked of a proxy by many at once."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from proxy.doctor import Latest, latest
from tests.conftest import ProxyFactory, until
from tests.proxy.doctor.looking import Administered, settings_of

MANY = 60
"""More than the control API has threads."""


@dataclass
class Held(Administered):
    """Says its models once it may."""

    may: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0

    async def _models(self, request: web.Request) -> web.Response:
        self.asked += 1
        await self.may.wait()
        return await super()._models(request)


async def _get(client: aiohttp.ClientSession, path: str) -> Any:
    async with client.get(path) as answer:
        assert answer.status == 200
        return await answer.text()


async def test_many_that_ask_share_one_look_and_hold_nothing_up(
    start_proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest, "KEPT_S", 60.0)
    engine = Held()
    async with start_proxy(engine) as proxy, aiohttp.ClientSession(proxy.url) as client:
        asking = [asyncio.ensure_future(_get(client, "/api/findings")) for _ in range(MANY)]
        page = asyncio.ensure_future(_get(client, "/ui/health/findings"))
        await until(lambda: engine.asked)
        assert "items" in await _get(client, "/api/trajectories")
        assert not any(one.done() for one in asking)
        assert engine.asked == 1
        engine.may.set()
        told = set(await asyncio.gather(*asking))
        assert len(told) == 1
        assert "answers" in await page
        before = engine.asked
        assert await _get(client, "/api/findings") in told
        assert engine.asked == before


async def test_what_was_found_is_looked_for_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest, "KEPT_S", -1.0)
    engine = Administered(paused=False)
    async with engine.serve() as url:
        found = Latest(settings_of(tmp_path, url))
        assert not [one for one in await found.findings() if "is paused" in one.what]
        engine.paused = True
        assert [one for one in await found.findings() if "is paused" in one.what]


async def test_who_goes_away_leaves_the_others_their_look(tmp_path: Path) -> None:
    found = Latest(settings_of(tmp_path))
    leaving, staying = (asyncio.ensure_future(found.findings()) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert "does not answer" in (await staying)[0].what
