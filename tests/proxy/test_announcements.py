"""Webhooks out: what is told of a job's end, signed, again until it is taken, and not for ever."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from pydantic import SecretStr
from structlog.testing import capture_logs

from mosaic.errors import SettingsError
from mosaic.settings import Settings
from mosaic.store import Store, jobs
from proxy import announcements, webhooks
from proxy.app import create_app
from tests.conftest import ProxyFactory, until
from tests.engine import Turn

SECRET = "a-secret-of-some-length"
SIGNED = Settings(webhook_secret=SecretStr(SECRET))


@dataclass
class Receiver:
    """Another server, which answers as it is told to."""

    answers: list[int] = field(default_factory=list)
    """Statuses in order; 200 afterwards."""
    told: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""

    async def take(self, request: web.Request) -> web.Response:
        self.told.append((dict(request.headers), await request.read()))
        status = self.answers.pop(0) if self.answers else 200
        return web.Response(status=status, headers={"location": "/elsewhere"} if status == 302 else {})


@asynccontextmanager
async def receiving(*answers: int) -> AsyncIterator[Receiver]:
    receiver = Receiver([*answers])
    app = web.Application()
    app.router.add_post("/{path:.*}", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"{site.name}/hook"
    yield receiver
    await runner.cleanup()


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcements, "LOOK_S", 0.02)
    monkeypatch.setattr(announcements, "FIRST_WAIT_S", 0.02)


def finished(store: Store) -> str:
    job = store.start_job({})
    version = store.new_version("folder", job)
    store.finish_training(job, version, {}, {}, {}, metrics={"loss": 0.5})
    return job


def failed(store: Store) -> str:
    job = store.start_job({})
    store.end_job(job, error="NothingToTrain: nothing")
    return job


def refused(store: Store) -> str:
    job = store.start_job({})
    store.finish_training(job, store.new_version("folder", job), {}, {}, {}, error="version 1 is worse")
    return job


@pytest.mark.parametrize(
    ("end", "event", "state"),
    [(finished, "job.finished", "published"), (failed, "job.failed", "failed"), (refused, "gate.failed", "failed")],
)
async def test_the_end_of_a_job_is_told_once_and_signed(
    start_proxy: ProxyFactory, end: Callable[[Store], str], event: str, state: str
) -> None:
    async with (
        receiving() as receiver,
        start_proxy(lambda _: Turn("Hi"), webhook_url=receiver.url, webhook_secret=SECRET) as proxy,
    ):
        job_id = end(proxy.store)
        await until(lambda: proxy.store.counters().get("webhooks_out") == {"told": 1})
        ((headers, body),) = receiver.told
        lowered = {name.lower(): value for name, value in headers.items()}
        webhooks.check(SIGNED, lowered, body)
        assert (lowered["x-mosaic-event"], lowered["x-mosaic-delivery"]) == (event, f"{job_id}.{event}")
        said = json.loads(body)
        assert (said["event"], said["job_id"], said["state"]) == (event, job_id, state)
        assert said["metrics"] == ({"loss": 0.5} if end is finished else {})
        assert (said["error"] is None) is (end is finished)


async def test_what_is_not_taken_is_told_again(start_proxy: ProxyFactory) -> None:
    async with (
        receiving(500, 302, 429) as receiver,
        start_proxy(lambda _: Turn("Hi"), webhook_url=receiver.url, webhook_secret=SECRET) as proxy,
    ):
        finished(proxy.store)
        await until(lambda: proxy.store.counters().get("webhooks_out") == {"not_taken": 3, "told": 1})
        assert len({body for _, body in receiver.told}) == 1
        assert len(receiver.told) == 4


async def test_a_server_that_is_away_keeps_no_job_and_no_call_and_is_given_up_after_a_day(
    start_proxy: ProxyFactory,
) -> None:
    away = {"webhook_url": "http://127.0.0.1:9/hook", "webhook_secret": SECRET}
    async with start_proxy(lambda _: Turn("Hi"), **away) as proxy:
        job_id = finished(proxy.store)
        await until(lambda: proxy.store.counters().get("webhooks_out", {}).get("not_taken", 0) >= 2)
        with proxy.store.database.writing() as connection:
            jobs.change(connection, job_id, ended_at=1.0)
        await until(lambda: proxy.store.counters()["webhooks_out"].get("given_up") == 1)


async def test_without_an_address_nothing_is_told(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi"), webhook_secret=SECRET) as proxy:
        finished(proxy.store)
        with proxy.store.database.reading() as connection:
            assert [event for event, _ in jobs.unannounced(connection)] == ["job.finished"]


def test_an_address_without_a_secret_is_refused_at_the_start() -> None:
    with pytest.raises(SettingsError, match="needs webhook_secret"):
        create_app(Settings(webhook_url="http://127.0.0.1:9/hook"))


async def test_a_password_in_an_address_that_is_none_is_not_logged(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/mosaic.db")
    finished(store)
    async with aiohttp.ClientSession() as client:
        told = announcements.Announcements(store, client, "http://u:s3cret@host:port/hook", SECRET)
        with capture_logs() as said:
            await told.once()
    store.close()
    assert "http://***@host:port/hook" in str(said)
    assert "s3cret" not in str(said)
