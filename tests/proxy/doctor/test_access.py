"""Faults in who can reach what."""

import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from mosaic.settings import load
from proxy.doctor import Level, access
from tests.conftest import ProxyFactory
from tests.engine import Turn
from tests.proxy.doctor.looking import Administered, asked, found, only, settings_of

GOOD = "a-key-that-nobody-guesses"


def port_of(url: str) -> int:
    return int(url.removesuffix("/v1").rpartition(":")[2])


def test_no_proxy_runs(tmp_path: Path) -> None:
    only(found(settings_of(tmp_path), "proxy"), Level.NOTE, "no proxy runs", step="mosaic serve")


async def test_something_else_listens_where_the_proxy_should(tmp_path: Path) -> None:
    async with Administered().serve() as url:
        seen = await asked(settings_of(tmp_path, url, port=port_of(url)), "proxy")
    only(seen, Level.WRONG, "something else than Mosaic listens", step="another port")


async def test_a_running_proxy_is_found_and_keeps_the_administration_to_itself(
    tmp_path: Path, start_proxy: ProxyFactory
) -> None:
    async with start_proxy(Administered(lambda _: Turn("Hi"))) as proxy:
        settings = settings_of(tmp_path, proxy.settings.upstream, port=port_of(proxy.url))
        assert [one.level for one in await asked(settings, "proxy")] == [Level.OK]


@asynccontextmanager
async def leaking() -> AsyncIterator[int]:
    """A proxy that passes on what it must not."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"is_paused": False} if request.path == "/is_paused" else {"service": "mosaic"})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def test_a_proxy_that_passes_the_administration_on(tmp_path: Path) -> None:
    async with leaking() as port:
        seen = await asked(settings_of(tmp_path, port=port), "proxy")
    only(seen, Level.WRONG, "passes the engine's administration on")


def test_an_open_address_without_keys(tmp_path: Path) -> None:
    only(
        found(settings_of(tmp_path, host="0.0.0.0"), "keys"), Level.WRONG, "no api_keys are set", step="MOSAIC_API_KEYS"
    )


def test_a_key_that_can_be_guessed(tmp_path: Path) -> None:
    only(found(settings_of(tmp_path, api_keys=["secret"]), "keys"), Level.WARNING, "fewer than 16", step="secrets")


def test_a_key_of_agents_that_opens_everything(tmp_path: Path) -> None:
    seen = found(settings_of(tmp_path, api_keys=[GOOD], agent_keys=[GOOD]), "keys")
    only(seen, Level.WARNING, "stands twice")
    assert [one.level for one in found(settings_of(tmp_path, api_keys=[GOOD]), "keys")] == [Level.OK]


def test_secrets_in_a_file_that_others_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mosaic.toml"
    file.write_text(f'api_keys = ["{GOOD}"]\n')
    file.chmod(stat.S_IRUSR | stat.S_IROTH)
    only(found(load(), "keys"), Level.WARNING, "mosaic.toml holds api_keys", step="chmod 600")
    file.chmod(stat.S_IRUSR)
    assert [one.level for one in found(load(), "keys")] == [Level.OK]


async def test_the_administration_of_an_engine_that_others_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What leads there is an address of this machine; tests listen on loopback alone.
    monkeypatch.setattr(access, "_outward", lambda: "127.0.0.1")
    engine = Administered()
    async with engine.serve() as url:
        settings = settings_of(tmp_path, url)
        only(await asked(settings, "exposure"), Level.WRONG, "can be reached at 127.0.0.1", step="--host 127.0.0.1")
        monkeypatch.setattr(access, "_outward", lambda: "127.0.0.2")
        assert [one.level for one in await asked(settings, "exposure")] == [Level.OK]
        monkeypatch.setattr(access, "_is_loopback", lambda _: False)
        only(await asked(settings, "exposure"), Level.NOTE, "is open on the network")
        engine.paused = None
        assert await asked(settings, "exposure") == []


async def test_a_machine_that_no_way_leads_out_of_is_reached_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "FAR", "no address")
    async with Administered().serve() as url:
        settings = settings_of(tmp_path, url.replace("127.0.0.1", "localhost"))
        (one,) = await asked(settings, "exposure")
    assert (one.level, "from this machine alone" in one.what) == (Level.OK, True)
