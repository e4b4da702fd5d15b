"""Faults of clocks, libraries and GPUs."""

import time
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest

from mosaic.store import Store
from proxy.doctor import Level, machine
from tests.lineage.test_lineage import linear
from tests.playbook import Recording
from tests.postgres import Server
from tests.proxy.doctor.looking import Administered, asked, found, only, settings_of


async def test_the_clock_of_an_engine_is_off(tmp_path: Path) -> None:
    async with Administered(date=formatdate(time.time() + 3600, usegmt=True)).serve() as url:
        only(await asked(settings_of(tmp_path, url), "clock"), Level.WARNING, "s from this one", step="NTP")
    async with Administered().serve() as url:
        assert [one.level for one in await asked(settings_of(tmp_path, url), "clock")] == [Level.OK]


async def test_a_time_that_is_none_says_nothing_of_a_clock(tmp_path: Path) -> None:
    async with Administered(date="yesterday").serve() as url:
        assert await asked(settings_of(tmp_path, url), "clock") == []


def test_the_newest_call_ended_in_the_future(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    store = Store(settings.database)
    ended = time.time() + 7200
    store.record([replace(call, started_at=ended - 1, ended_at=ended) for call in linear(Recording("run-1"), turns=1)])
    store.close()
    only(found(settings, "clock"), Level.WARNING, "this clock was set back", step="NTP")


def test_the_clock_of_the_database_is_looked_at(
    tmp_path: Path, postgres_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_server.create("test_doctor_clock")
    try:
        Store(url).close()
        settings = settings_of(tmp_path, database=url)
        assert [one.level for one in found(settings, "clock")] == [Level.OK]
        monkeypatch.setattr(machine, "SKEW_S", -1.0)  # no two clocks agree so well
        seen = [one for one in found(settings, "clock") if "the clock of the database" in one.what]
        only(seen, Level.WARNING, "the clock of the database is ", step="NTP")
    finally:
        postgres_server.drop("test_doctor_clock")


def test_libraries_that_are_missing_or_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for = ["pydantic>=2.14", "typer<0.2; extra == 'train'", 'no-such-thing>=1; extra == "train"']
    monkeypatch.setattr(machine, "_requirements", lambda: asked_for)
    unfit, lacking = found(settings_of(tmp_path), "libraries")
    only([unfit], Level.WARNING, "libraries do not fit: typer ", step="make install")
    only([lacking], Level.NOTE, "not installed: no-such-thing", step="mosaic-rl[train]")


def test_an_installation_that_does_not_say_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "DISTRIBUTION", "mosaic-that-nobody-installed")
    assert found(settings_of(tmp_path), "libraries") == []


def test_libraries_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_requirements", lambda: ["typer>=0.1,<99; extra == 'train'"])
    (one,) = found(settings_of(tmp_path), "libraries")
    assert (one.level, one.what.startswith("typer ")) == (Level.OK, True)


@pytest.mark.parametrize(
    ("train", "level", "words"),
    [
        ({"transport": "nccl"}, Level.WRONG, "has no GPU"),
        ({"bf16": True}, Level.WARNING, "train.bf16 is on"),
        ({}, Level.NOTE, "has no GPU"),
    ],
)
def test_a_machine_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: dict[str, object], level: Level, words: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    only(found(settings_of(tmp_path, train=train), "gpu"), level, words)


def test_a_driver_that_cannot_be_asked_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_bytes(b"\0no program")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    only(found(settings_of(tmp_path, train={"transport": "nccl"}), "gpu"), Level.WRONG, "has no GPU", step="GPUs")


@pytest.mark.parametrize(("status", "level"), [(0, Level.OK), (9, Level.WRONG)])
def test_a_gpu_is_named_with_its_memory_unless_its_driver_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, level: Level
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho 'NVIDIA H200, 10 MiB, 143771 MiB, 570.1'\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (one,) = found(settings_of(tmp_path, train={"transport": "nccl"}), "gpu")
    assert one.level is level
