"""Faults of engines, each seen by its check."""

import json
from pathlib import Path
from typing import Any

import pytest

from mosaic.store import Store
from mosaic.store.policies import LEASE
from proxy.doctor import Level
from tests.proxy.doctor.looking import Administered, all_of, asked, found, only, settings_of


async def test_a_sound_engine_has_no_fault(tmp_path: Path) -> None:
    async with Administered().serve() as url:
        seen = await all_of(settings_of(tmp_path, url))
    bad = [one for one in seen if one.level in (Level.WARNING, Level.WRONG)]
    assert bad == []
    assert {"engine", "version", "model", "swapping", "capture", "template", "tool ids", "exposure"} <= {
        one.check for one in seen if one.level is Level.OK
    }


def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    only(found(settings_of(tmp_path), "engine"), Level.WRONG, "does not answer", step="Start vLLM")


@pytest.mark.parametrize(("status", "words", "step"), [(401, "refuses the key", "key"), (500, "answers 500", "/v1")])
async def test_an_engine_that_refuses(tmp_path: Path, status: int, words: str, step: str) -> None:
    async with Administered(list_status=status).serve() as url:
        only(await asked(settings_of(tmp_path, url), "engine"), Level.WRONG, words, step=step)


async def test_an_engine_of_another_model_that_is_not_there(tmp_path: Path) -> None:
    models = {"small-*": {"upstream": "http://127.0.0.1:9/v1"}}
    async with Administered().serve() as url:
        only(await asked(settings_of(tmp_path, url, models=models), "engine"), Level.WRONG, "does not answer")


async def test_an_engine_of_another_model_that_refuses_its_key(tmp_path: Path) -> None:
    async with Administered().serve() as url, Administered(list_status=403).serve() as other:
        seen = await asked(settings_of(tmp_path, url, models={"small-*": {"upstream": other}}), "engine")
    only(seen, Level.WRONG, "refuses the key", step='models."small-*".api_key')


@pytest.mark.parametrize(
    ("version", "level", "words"),
    [("0.9.2", Level.WARNING, "is vLLM 0.9.2"), (None, Level.NOTE, "does not say its version")],
)
async def test_an_engine_that_is_too_old_or_unknown(tmp_path: Path, version: str, level: Level, words: str) -> None:
    async with Administered(version=version).serve() as url:
        only(await asked(settings_of(tmp_path, url), "version"), level, words)


async def test_replicas_of_several_versions(tmp_path: Path) -> None:
    async with Administered().serve() as url, Administered(version="0.33.1").serve() as other:
        seen = await asked(settings_of(tmp_path, url, replicas=[other]), "version")
    only(seen, Level.WARNING, "different versions", step="one installation")


NAMES: list[tuple[list[dict[str, Any]], dict[str, Any], Level, str]] = [
    ([], {}, Level.WRONG, "lists no model"),
    ([{"id": "llama"}], {"policy_model": "policy"}, Level.WRONG, "serves llama, not policy"),
    ([{"id": "policy"}, {"id": "base"}], {}, Level.NOTE, "serves policy, base; policy is the policy"),
]


@pytest.mark.parametrize(("models", "more", "level", "words"), NAMES)
async def test_a_model_under_another_name(
    tmp_path: Path, models: list[dict[str, Any]], more: dict[str, Any], level: Level, words: str
) -> None:
    async with Administered(models=models).serve() as url:
        only(await asked(settings_of(tmp_path, url, **more), "model"), level, words)


async def test_a_replica_that_serves_another_model(tmp_path: Path) -> None:
    async with Administered().serve() as url, Administered(models=[{"id": "other"}]).serve() as other:
        seen = await asked(settings_of(tmp_path, url, replicas=[other]), "model")
    only(seen, Level.WRONG, "serves other, not policy", step="as the other replicas")


async def test_an_engine_that_was_started_anew_on_old_weights(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    store = Store(settings.database)
    store.version_live(store.new_version(str(tmp_path / "v1"), None))
    store.close()
    engine = Administered()
    async with engine.serve() as url:
        old = settings_of(tmp_path, url)
        only(await asked(old, "weights"), Level.WRONG, "does not serve version 1, but /models/first", step="v1")
        engine.paused = None
        only(await asked(old, "weights"), Level.NOTE, "does not say which weights")
        engine.paused, engine.weights = False, "1"
        assert [one.level for one in await asked(old, "weights")] == [Level.OK]
        engine.weights, engine.models = "default", [{"id": "policy", "root": str(tmp_path / "v1")}]
        assert [one.level for one in await asked(old, "weights")] == [Level.OK]
        engine.weights = "7"
        only(await asked(old, "weights"), Level.WRONG, "does not serve version 1")


async def test_an_adapter_that_is_read_from_a_link_that_is_not_seen_from_here_is_believed(tmp_path: Path) -> None:
    store = Store(settings_of(tmp_path).database)
    store.version_live(store.new_version(str(tmp_path / "v1"), None))
    store.close()
    adapter = {"id": "policy", "root": "/elsewhere/adapter-live", "parent": "base"}
    async with Administered(models=[adapter]).serve() as url:
        only(await asked(settings_of(tmp_path, url), "weights"), Level.NOTE, "does not say which weights")


async def test_weights_that_a_dead_job_left_on_their_way(tmp_path: Path) -> None:
    store = Store(settings_of(tmp_path).database)
    store.new_version(str(tmp_path / "v1"), None)
    async with Administered(weights="1").serve() as url:
        only(await asked(settings_of(tmp_path, url), "weights"), Level.WRONG, "does not serve version 0, but version 1")
        assert store.take_lease(LEASE, "a job", 60)
        assert [one.level for one in await asked(settings_of(tmp_path, url), "weights")] == [Level.OK]
    store.close()


async def test_weights_that_were_put_back_go_by_their_first_number_too(tmp_path: Path) -> None:
    store = Store(settings_of(tmp_path).database)
    store.version_live(store.new_version(str(tmp_path / "v1"), None))
    store.version_restored(store.new_version(str(tmp_path / "v2"), None), str(tmp_path / "v1"), 1)
    store.close()
    async with Administered(weights="1").serve() as url:
        assert [one.level for one in await asked(settings_of(tmp_path, url), "weights")] == [Level.OK]


async def test_swapping_that_is_off_matters_to_who_trains(tmp_path: Path) -> None:
    async with Administered(paused=None).serve() as url:
        only(await asked(settings_of(tmp_path, url), "swapping"), Level.NOTE, "switched off")
        trained = settings_of(tmp_path, url, train={"model": tmp_path})
        only(await asked(trained, "swapping"), Level.WARNING, "switched off", step="VLLM_SERVER_DEV_MODE=1")


async def test_an_engine_that_was_left_paused_is_told_from_one_that_a_job_has_paused(tmp_path: Path) -> None:
    async with Administered(paused=True).serve() as url:
        settings = settings_of(tmp_path, url)
        only(await asked(settings, "swapping"), Level.WRONG, "is paused, and no job runs", step="or restart it")
        store = Store(settings.database)
        assert store.take_lease("training", "a job", 60)
        store.close()
        assert [one.level for one in await asked(settings, "swapping")] == [Level.OK]


async def test_an_engine_that_reads_its_adapter_from_no_link(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({}))
    link = tmp_path / "adapter-live"
    link.symlink_to(tmp_path)
    for root in (None, str(tmp_path), "adapter-live"):
        async with Administered(models=[{"id": "policy", "root": root}]).serve() as url:
            settings = settings_of(tmp_path, url, train={"model": tmp_path})
            only(await asked(settings, "swapping"), Level.WARNING, "from a symbolic link", step="--lora-modules")
    async with Administered(models=[{"id": "policy", "root": str(link)}]).serve() as url:
        settings = settings_of(tmp_path, url, train={"model": tmp_path})
        assert [one.level for one in await asked(settings, "swapping")] == [Level.OK]


async def test_an_engine_without_what_exact_mode_needs(tmp_path: Path) -> None:
    async with Administered().serve() as url:
        assert await asked(settings_of(tmp_path, url), "exact mode") == []
        seen = await asked(settings_of(tmp_path, url, fidelity="exact"), "exact mode")
        only(seen, Level.WARNING, "lacks what exact mode needs", step="--enable-scale-out")
    async with Administered(scales_out=True).serve() as url:
        seen = await asked(settings_of(tmp_path, url, fidelity="exact"), "exact mode")
        assert [one.level for one in seen] == [Level.OK]
