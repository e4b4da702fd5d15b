"""An engine that was restarted on other weights: its calls are recorded, never trained, and it is asked no more often
than it can have been restarted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from mosaic.errors import StoreError
from mosaic.settings import Settings
from mosaic.store import Store
from mosaic.store.policies import LEASE, PolicyVersion, serves, started_on
from proxy import weights
from proxy.lookups import Lookups
from proxy.recorder import Recorder
from proxy.upstream import Upstream
from tests.conftest import serving, until
from tests.engine import Turn
from tests.proxy.doctor.looking import Administered

FIRST, SECOND = "/models/first", "/models/second"


class Asked(Administered):
    """Counts how often it is asked for its weights."""

    questions = 0

    async def _weights(self, request: web.Request) -> web.Response:
        self.questions += 1
        return await super()._weights(request)


@dataclass
class Hanging(Administered):
    """Says nothing of its weights until it may."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def _weights(self, request: web.Request) -> web.Response:
        self.asked.set()
        await self.go.wait()
        return await super()._weights(request)


def engine_on(root: str, said: str = "default", paused: bool | None = False) -> Asked:
    """An engine that was started on `root` and says this of its weights."""
    models = [{"id": "policy", "root": root, "parent": None}]
    return Asked(lambda _: Turn("Hi"), models=models, weights=said, paused=paused)


async def ask(url: str, session: aiohttp.ClientSession, **more: Any) -> str:
    """One call; returns its id."""
    body = {"model": "policy", "messages": [{"role": "user", "content": "Hello"}], **more}
    async with session.post(f"{url}/t/one/v1/chat/completions", json=body) as response:
        assert response.status == 200
        await response.read()
        return response.headers["x-mosaic-call-id"]


class Place:
    """A proxy whose engine can be restarted on its own port."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.port = urlsplit(settings.upstream).port or 0
        self.store = Store(settings.database)

    def publish(self, path: str) -> int:
        """A version that is live, without any engine."""
        version = self.store.new_version(path, None)
        self.store.version_live(version)
        return version

    def reason(self, call_id: str) -> str | None:
        """Why the call is not trained."""
        with self.store.database.reading() as connection:
            found = connection.exec_driver_sql(f"select inexact_reason from calls where call_id = '{call_id}'").one()
        return None if found[0] is None else str(found[0])


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    """Settings and a store; a scripted engine restarts at once, so it may be asked at once."""
    monkeypatch.setattr(weights, "AGAIN_S", 0.0)
    async with engine_on(FIRST).serve() as upstream:
        pass  # its port is free again
    database = f"sqlite:///{tmp_path}/mosaic.db"
    made = Place(Settings(upstream=upstream, database=database, spool=tmp_path / "spool", writer_process=False))
    yield made
    made.store.close()


@asynccontextmanager
async def calling(place: Place) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """A proxy at work, and a client."""
    settings = place.settings.model_copy(update={"commit_first": True})
    async with serving(settings) as url, aiohttp.ClientSession() as session:
        yield url, session


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_of_an_engine_that_came_up_on_older_weights_are_not_trained_until_it_serves_the_live_ones(
    place: Place, stream: bool
) -> None:
    async with calling(place) as (url, session):
        version = place.publish(SECOND)
        async with engine_on(FIRST, str(version)).serve(place.port):
            assert place.reason(await ask(url, session, stream=stream)) is None
        async with engine_on(FIRST).serve(place.port):
            seen = [place.reason(await ask(url, session, stream=stream)) for _ in range(2)]
            assert seen == ["other_weights", "other_weights"]
        async with engine_on(SECOND).serve(place.port):
            assert place.reason(await ask(url, session, stream=stream)) is None


async def test_weights_that_are_put_live_again_by_hand_are_noticed_without_a_restart(place: Place) -> None:
    async with calling(place) as (url, session):
        version = place.publish(SECOND)
        engine = engine_on(FIRST)
        async with engine.serve(place.port):
            assert place.reason(await ask(url, session)) == "other_weights"
            engine.weights = str(version)
            assert place.reason(await ask(url, session)) is None


async def test_an_engine_is_asked_once_and_not_at_all_while_no_version_was_ever_put_live(place: Place) -> None:
    async with calling(place) as (url, session):
        engine = engine_on(FIRST)
        async with engine.serve(place.port):
            assert place.reason(await ask(url, session)) is None
            assert engine.questions == 0
        version = place.publish(SECOND)
        engine = engine_on(FIRST, str(version))
        async with engine.serve(place.port):
            for _ in range(5):
                assert place.reason(await ask(url, session)) is None
            assert engine.questions == 1


async def test_an_engine_that_does_not_say_what_it_serves_is_believed(place: Place) -> None:
    async with calling(place) as (url, session):
        place.publish(SECOND)
        async with engine_on(FIRST, paused=None).serve(place.port):
            assert place.reason(await ask(url, session)) is None


def version(number: int, path: str, state: str = "live", restores: int | None = None) -> PolicyVersion:
    """A version as the store gives it."""
    return PolicyVersion(number, path, state, None, restores, False, 0.0, 0.0, {})


@pytest.mark.parametrize(
    ("said", "root", "expected"),
    [
        ("2", FIRST, True),
        ("1", FIRST, False),
        ("default", SECOND, True),
        ("default", FIRST, False),
        ("default", None, None),
        (None, SECOND, True),
        (None, FIRST, None),
    ],
)
def test_what_an_engine_says_of_its_weights(said: str | None, root: str | None, expected: bool | None) -> None:
    found = [version(1, FIRST), version(2, SECOND), version(3, "/models/bad", "failed")]
    assert serves(found, said, None if root is None else Path(root), at_work=False) is expected


@pytest.mark.parametrize("root", [None, 7, "/a\0b", "/" + "x" * 5000, "/somewhere/else/link"])
def test_a_folder_that_says_nothing_is_none(root: object) -> None:
    models: list[dict[str, object]] = [{"id": "base", "root": SECOND}, {"id": "policy", "root": root, "parent": "base"}]
    assert started_on(models, "policy", unseen=False) is None
    assert started_on(models, None, unseen=False) == started_on(models, "base") == Path(SECOND)
    assert started_on([], "policy") is None


def test_weights_that_are_being_put_live_or_were_put_back_are_served_rightly() -> None:
    put_back = [version(1, FIRST), version(2, SECOND), version(3, FIRST, restores=1)]
    assert serves(put_back, "1", Path("/models/base"), at_work=False)
    assert not serves(put_back, "2", Path("/models/base"), at_work=False)
    coming = [version(1, FIRST), version(2, SECOND, "loading")]
    for said, root in (("1", None), ("2", None), ("default", SECOND)):
        assert serves(coming, said, None if root is None else Path(root), at_work=True)
    assert serves([], "default", Path(FIRST), at_work=False)


@pytest.mark.parametrize("live", [[], [version(1, FIRST)]])
def test_weights_that_a_dead_job_left_on_their_way_are_not_served_rightly(live: list[PolicyVersion]) -> None:
    left = [*live, version(2, SECOND, "loading")]
    for said, root in (("2", None), ("default", Path(SECOND))):
        assert serves(left, said, root, at_work=False) is False
        assert serves(left, said, root, at_work=True)
    assert serves(left, "default", Path(FIRST), at_work=False)


@pytest.mark.parametrize("engine", [engine_on(FIRST, "2"), engine_on(SECOND)])
async def test_calls_of_weights_that_a_dead_job_left_on_their_way_are_not_taken_for_the_live_versions(
    place: Place, engine: Asked
) -> None:
    async with calling(place) as (url, session):
        place.publish(FIRST)
        place.store.new_version(SECOND, None)
        assert place.store.take_lease(LEASE, "a job", 60.0)
        async with engine.serve(place.port):
            assert place.reason(await ask(url, session)) is None
        place.store.give_lease(LEASE, "a job")
        async with engine.serve(place.port):
            assert place.reason(await ask(url, session)) == "other_weights"


async def test_a_link_that_this_machine_does_not_see_says_nothing(place: Place) -> None:
    async with calling(place) as (url, session):
        place.publish(SECOND)
        engine = engine_on("/somewhere/else/link")
        engine.models[0]["parent"] = "base"
        async with engine.serve(place.port):
            assert place.reason(await ask(url, session)) is None


async def test_an_engine_that_hangs_when_asked_delays_one_call_and_its_calls_are_not_trained(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "ASK_S", 0.2)
    async with calling(place) as (url, session):
        place.publish(SECOND)
        engine = Hanging(lambda _: Turn("Hi"))
        async with engine.serve(place.port):
            reasons = [place.reason(await ask(url, session)) for _ in range(3)]
            assert reasons == ["weights_unknown"] * 3
            engine.go.set()
        async with engine_on(SECOND).serve(place.port):
            assert [place.reason(await ask(url, session)) for _ in range(2)][1] is None


async def test_a_client_that_leaves_while_an_engine_is_asked_leaves_a_whole_call(place: Place) -> None:
    async with calling(place) as (url, session):
        place.publish(SECOND)
        engine = Hanging(lambda _: Turn("Hi"))
        async with engine.serve(place.port):
            asking = asyncio.ensure_future(ask(url, session))
            await engine.asked.wait()
            await until(lambda: engine.requests)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await until(place.store.trajectories)
            with place.store.database.reading() as connection:
                query = "select status, inexact_reason from calls"
                assert tuple(connection.exec_driver_sql(query).one()) == ("ok", "weights_unknown")
            engine.go.set()


async def test_a_call_that_began_on_other_weights_stays_theirs_when_the_live_ones_are_loaded_meanwhile(
    place: Place,
) -> None:
    version = place.publish(SECOND)
    upstream = Upstream(place.settings)
    known = weights.Weights(place.settings, place.store, upstream, Lookups(place.settings, Recorder(place.settings)))
    target = upstream.policy()
    engine = engine_on(FIRST)
    async with engine.serve(place.port):
        await (await upstream.send("GET", target, "models", None, {})).read()
        stream = known.look(target)
        assert await known.told(target, stream) == "other_weights"
        engine.weights = str(version)
        assert await known.told(target, known.look(target)) is None
        assert await known.told(target, stream) == "other_weights"
    await upstream.close()


async def test_what_is_known_of_versions_is_believed_while_the_database_is_away(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with calling(place) as (url, session):
        version = place.publish(SECOND)
        async with engine_on(FIRST, str(version)).serve(place.port):
            assert place.reason(await ask(url, session)) is None

        def refuses(_store: Store) -> list[PolicyVersion]:
            raise StoreError("away", "wait")

        monkeypatch.setattr(Store, "versions", refuses)
        async with engine_on(FIRST).serve(place.port):
            assert place.reason(await ask(url, session)) == "other_weights"
        async with engine_on(SECOND).serve(place.port):
            assert place.reason(await ask(url, session)) is None
