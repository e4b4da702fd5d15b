"""Publishing against a scripted engine: the order of steps, and the way back from every fault."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mosaic.errors import EngineError, PublishError
from mosaic.records import IdArray, LogprobArray
from trainer import probe as probe_module
from trainer import publish as publish_module
from trainer.publish import Publication, PublishReport, publish

PROBE_L = np.arange(5, dtype=np.int32)
OLD, NEW = Path("/checkpoints/old"), Path("/checkpoints/new")
SHAPES = {OLD: {"weight": (2, 3)}, NEW: {"weight": (2, 3)}}
LOGPROBS = {OLD: np.full(4, -1.0, np.float32), NEW: np.full(4, -2.0, np.float32)}


@dataclass
class ScriptedEngine:
    """What publish needs of an engine; `faults` maps a step to what happens when it is reached."""

    journal: list[str]
    base_url: str = "http://engine"
    shown: str = "http://engine"
    serves: Path = OLD
    paused: bool = False
    ignores_loads: bool = False
    offset: float = 0.0
    faults: dict[str, BaseException] = field(default_factory=dict)
    on_fault: Callable[[], None] = lambda: None

    def _step(self, name: str) -> None:
        self.journal.append(name)
        if name in self.faults:
            fault = self.faults[name]
            self.on_fault()
            raise fault

    def pause(self) -> None:
        self.paused = True
        self._step("pause")

    def resume(self) -> None:
        self._step("resume")
        self.paused = False

    def load(self, checkpoint: Path, version: int) -> None:
        self._step(f"load {version}")
        if not self.ignores_loads:
            self.serves = checkpoint

    def checksums(self) -> dict[str, str]:
        return {"weight": str(self.serves)}

    def probe(self, ids_L: IdArray) -> tuple[IdArray, LogprobArray]:
        assert not self.paused, "a paused engine would never answer"
        self._step(f"probe {self.serves.name}")
        return ids_L, (LOGPROBS[self.serves] + (self.offset if self.serves == NEW else 0))[: len(ids_L) - 1]


@pytest.fixture(autouse=True)
def _checkpoints_answer_from_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "checkpoint_logprobs", lambda path, _ids_L: LOGPROBS[path])
    monkeypatch.setattr(publish_module, "checkpoint_shapes", SHAPES.__getitem__)


@pytest.fixture
def journal() -> list[str]:
    return []


Publish = Callable[..., PublishReport]


@pytest.fixture
def run(journal: list[str]) -> Publish:
    def call(*engines: Any, on_loaded: Callable[[], None] | None = None) -> PublishReport:
        publication = Publication(NEW, 7, OLD, 6, PROBE_L)
        loaded = on_loaded or (lambda: journal.append("on_loaded"))
        return publish(engines, publication, loaded, lambda: journal.append("on_rolled_back"))

    return call


def test_the_version_is_announced_after_loading_and_before_resuming(run: Publish, journal: list[str]) -> None:
    report = run(ScriptedEngine(journal), ScriptedEngine(journal))
    assert journal == [
        *("probe old", "probe old", "pause", "pause", "load 7", "load 7"),
        *("on_loaded", "resume", "resume", "probe new", "probe new"),
    ]
    assert (report.gap_max, report.change_mean) == (0.0, 1.0)


@pytest.mark.parametrize("step", ["pause", "load 7"])
def test_a_fault_before_the_announcement_rolls_back_and_resumes(run: Publish, journal: list[str], step: str) -> None:
    healthy, broken = ScriptedEngine(journal), ScriptedEngine(journal, faults={step: EngineError("it broke")})
    with pytest.raises((PublishError, EngineError), match="it broke"):
        run(healthy, broken)
    for engine in (healthy, broken):
        assert engine.serves == OLD
        assert not engine.paused
    assert "on_loaded" not in journal
    assert "on_rolled_back" not in journal


def test_a_load_that_changes_nothing_is_found_before_anything_is_announced(run: Publish, journal: list[str]) -> None:
    engine = ScriptedEngine(journal, ignores_loads=True)
    with pytest.raises(PublishError, match="weights did not change"):
        run(engine)
    assert "on_loaded" not in journal
    assert not engine.paused


def test_a_refused_announcement_undoes_the_load(run: Publish, journal: list[str]) -> None:
    def refuse() -> None:
        raise RuntimeError("database is read-only")

    engine = ScriptedEngine(journal)
    with pytest.raises(PublishError, match="read-only"):
        run(engine, on_loaded=refuse)
    assert journal == ["probe old", "pause", "load 7", "load 6", "on_rolled_back", "resume"]


def test_wrong_logprobs_roll_every_replica_back(run: Publish, journal: list[str]) -> None:
    healthy, wrong = ScriptedEngine(journal), ScriptedEngine(journal, offset=0.3)
    with pytest.raises(PublishError, match=r"Version 7 was not put live, version 6 serves on: .* 0\.3 nats off"):
        run(healthy, wrong)
    assert journal[-7:] == ["pause", "pause", "load 6", "load 6", "on_rolled_back", "resume", "resume"]
    assert healthy.serves == wrong.serves == OLD


def test_logprobs_nearer_to_the_previous_checkpoint_are_not_the_new_one(
    run: Publish, monkeypatch: pytest.MonkeyPatch, journal: list[str]
) -> None:
    monkeypatch.setitem(LOGPROBS, NEW, LOGPROBS[OLD] - 0.0008)  # within gap_floor, so only the comparison can tell
    with pytest.raises(PublishError, match="nearer to the previous"):
        run(ScriptedEngine(journal, offset=0.0007))


def test_another_architecture_is_refused_before_the_engine_is_touched(
    run: Publish, monkeypatch: pytest.MonkeyPatch, journal: list[str]
) -> None:
    monkeypatch.setitem(SHAPES, NEW, {"weight": (2, 4)})
    with pytest.raises(PublishError, match="does not fit the model"):
        run(ScriptedEngine(journal))
    assert journal == []


def test_the_way_back_is_tried_again(run: Publish, journal: list[str]) -> None:
    engine = ScriptedEngine(journal, offset=0.3, faults={"load 6": EngineError("leftovers")})

    def heal() -> None:
        del engine.faults["load 6"]

    engine.on_fault = heal
    with pytest.raises(PublishError, match="version 6 serves on"):
        run(engine)
    assert journal[-4:] == ["load 6", "load 6", "on_rolled_back", "resume"]
    assert engine.serves == OLD


def test_equal_checkpoints_need_not_change_anything(
    run: Publish, monkeypatch: pytest.MonkeyPatch, journal: list[str]
) -> None:
    monkeypatch.setitem(LOGPROBS, NEW, LOGPROBS[OLD])
    assert run(ScriptedEngine(journal, ignores_loads=True)).change_max == 0


@pytest.mark.parametrize("step", ["pause", "load 7", "probe new"])
def test_ctrl_c_resumes_goes_back_and_is_raised_again(run: Publish, journal: list[str], step: str) -> None:
    engine = ScriptedEngine(journal, faults={step: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        run(engine)
    assert not engine.paused
    assert engine.serves == OLD
    assert ("on_loaded" in journal) == ("on_rolled_back" in journal)


def test_a_failed_way_back_says_so_and_still_resumes(run: Publish, journal: list[str]) -> None:
    faults: dict[str, BaseException] = {"load 7": EngineError("disk full"), "load 6": EngineError("disk still full")}
    engine = ScriptedEngine(journal, faults=faults)
    with pytest.raises(PublishError, match=r"disk full.*failed as well: disk still full.*Restart the engines on"):
        run(engine)
    assert not engine.paused


def test_an_engine_that_cannot_be_resumed_does_not_keep_the_others_paused(run: Publish, journal: list[str]) -> None:
    stuck, healthy = ScriptedEngine(journal, faults={"resume": EngineError("gone")}), ScriptedEngine(journal)
    with pytest.raises(PublishError, match="could not be resumed"):
        run(stuck, healthy)
    assert not healthy.paused
