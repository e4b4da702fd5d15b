"""When a job begins by itself: triggers, conditions, what was missed, one owner, and a stop that reaches the job."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from mosaic.errors import SettingsError
from mosaic.job_settings import ScheduleConfig
from mosaic.store import Store, schedules
from mosaic.store.schedules import ScheduleState
from tests.trainer.test_job import attempts
from trainer.schedule import Schedule

NOW = datetime(2026, 5, 4, 12, 0).timestamp()
HOUR = 3600.0


class Clock:
    """A clock that a test moves; `began` is when the schedule under test began."""

    def __init__(self, began: float = NOW) -> None:
        self.now = began

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(f"sqlite:///{tmp_path}/mosaic.db")
    yield opened
    opened.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


Make = Callable[..., tuple[Schedule, list[float]]]


@pytest.fixture
def make(store: Store, clock: Clock) -> Make:
    """A schedule whose jobs are written down in the store, and the times at which they began."""

    def schedule(code: int = 0, **config: object) -> tuple[Schedule, list[float]]:
        began: list[float] = []

        def train() -> int:
            began.append(clock.now)
            if code != 8:
                job_at(store, clock.now)
            return code

        return Schedule(store, ScheduleConfig.model_validate(config), train, clock), began

    return schedule


def job_at(store: Store, when: float) -> None:
    """A job that began and ended then."""
    job_id = store.start_job({})
    store.end_job(job_id)
    with store.database.writing() as connection:
        connection.exec_driver_sql(f"update jobs set created_at = {when} where job_id = '{job_id}'")


def run_until(schedule: Schedule, clock: Clock, until: float, step: float = 600.0) -> None:
    while clock.now <= until:
        schedule.tick()
        clock.now += step


def test_an_interval_counts_from_one_start_to_the_next(make: Make, clock: Clock) -> None:
    schedule, began = make(every_s=2 * HOUR)
    run_until(schedule, clock, NOW + 7 * HOUR)
    assert began == [NOW + 2 * HOUR, NOW + 4 * HOUR, NOW + 6 * HOUR]


def test_a_run_that_is_asked_for_begins_whatever_the_conditions_say_and_once(
    make: Make, store: Store, clock: Clock
) -> None:
    schedule, began = make(cron="0 3 * * *", hours="02:00-06:00", idle_s=HOUR)
    attempts(store, {"a": 1})
    assert schedule.tick() is None
    with store.database.writing() as connection:
        schedules.change(connection, asked_at=clock.now)
    assert schedule.tick() == 0
    assert schedule.tick() is None
    assert began == [NOW]


def test_a_run_that_is_asked_for_while_a_job_runs_waits_for_its_end(make: Make, store: Store, clock: Clock) -> None:
    schedule, began = make(code=8, cron="0 3 * * *")
    with store.database.writing() as connection:
        schedules.change(connection, asked_at=clock.now)
    assert [schedule.tick(), schedule.tick()] == [8, 8]
    assert len(began) == 2


def test_what_the_schedule_sees_is_told_at_each_look(make: Make, store: Store, clock: Clock) -> None:
    schedule, _ = make(every_s=2 * HOUR, hours="00:00-01:00")
    schedule.tick()
    clock.now += 3 * HOUR
    schedule.tick()
    with store.database.reading() as connection:
        told = schedules.read(connection)
    assert told == ScheduleState(next_at=NOW + 2 * HOUR, due="every", held_up="hours", looked_at=NOW + 3 * HOUR)


def test_cron_begins_at_its_times(make: Make, clock: Clock) -> None:
    schedule, began = make(cron="0 3 * * *")
    run_until(schedule, clock, NOW + 48 * HOUR)
    assert [datetime.fromtimestamp(when).strftime("%d %H:%M") for when in began] == ["05 03:00", "06 03:00"]


@pytest.mark.parametrize("config", [{"cron": "0 3 * * *"}, {"every_s": 24 * HOUR}])
def test_runs_missed_while_no_schedule_was_running_are_made_up_for_once(
    make: Make, store: Store, clock: Clock, config: dict[str, object]
) -> None:
    job_at(store, NOW - timedelta(days=3).total_seconds())
    schedule, began = make(**config)
    run_until(schedule, clock, NOW + HOUR)
    assert began == [NOW]


def test_a_first_schedule_has_missed_nothing(make: Make, clock: Clock) -> None:
    schedule, began = make(cron="0 3 * * *")
    run_until(schedule, clock, NOW + HOUR)
    assert began == []


def test_enough_new_scored_trajectories_begin_a_job_and_are_not_counted_again(
    make: Make, store: Store, clock: Clock
) -> None:
    clock.now = time.time()
    schedule, began = make(when_scored=2)
    attempts(store, {"a": 1})
    assert schedule.tick() is None
    attempts(store, {"b": 0})
    clock.now += 60  # after they were scored
    assert schedule.tick() == 0
    assert schedule.tick() is None
    assert len(began) == 1


def test_what_is_due_waits_until_no_call_has_ended_lately(make: Make, store: Store, clock: Clock) -> None:
    attempts(store, {"a": 1})
    busy_until = NOW + HOUR
    schedule, began = make(every_s=600, idle_s=1800)

    def newest_call() -> float:
        return min(clock.now, busy_until)

    store.newest_call = newest_call  # type: ignore[method-assign]
    run_until(schedule, clock, NOW + 1.6 * HOUR)
    assert began == [busy_until + 1800]


@pytest.mark.parametrize(
    ("hours", "first"), [("22:00-06:00", "22:00"), ("02:30-03:30", "02:30"), ("11:00-13:00", "12:10")]
)
def test_a_job_begins_within_its_hours(make: Make, clock: Clock, hours: str, first: str) -> None:
    schedule, began = make(every_s=600, hours=hours)
    run_until(schedule, clock, NOW + 20 * HOUR)
    assert datetime.fromtimestamp(began[0]).strftime("%H:%M") == first
    begins, ends = hours.split("-")
    for when in began:
        at = datetime.fromtimestamp(when).strftime("%H:%M")
        assert begins <= at < ends if begins < ends else (at >= begins or at < ends)


def test_a_run_that_another_process_is_at_is_tried_again_and_a_failed_one_waits(make: Make, clock: Clock) -> None:
    busy, tries = make(code=8, every_s=HOUR)
    run_until(busy, clock, NOW + HOUR + 1200)
    assert len(tries) == 3
    clock.now = NOW
    broken, failed = make(code=4, every_s=HOUR)
    run_until(broken, clock, NOW + 2 * HOUR)
    assert failed == [NOW + HOUR, NOW + 2 * HOUR]


def test_a_schedule_that_nothing_starts_is_refused(make: Make) -> None:
    with pytest.raises(SettingsError, match="nothing starts a job"):
        make()


TRAIN = """
import os, pathlib, sys, time
folder = pathlib.Path(os.environ["PLACE"])
(folder / f"began-{os.getpid()}").write_text(os.environ["MOSAIC_DATABASE"])
try:
    while not (folder / "end").exists():
        time.sleep(0.02)
except KeyboardInterrupt:
    (folder / f"interrupted-{os.getpid()}").touch()
"""


@pytest.fixture
def start(tmp_path: Path, store: Store) -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    """Start `mosaic schedule`, whose jobs are a script that waits for the test."""
    attempts(store, {"a": 1, "b": 0})
    script = f"""
import sys
import trainer.schedule
trainer.schedule.JOB = [sys.executable, "-c", {TRAIN!r}]
from mosaic.cli import main
main()
"""
    started: list[subprocess.Popen[bytes]] = []

    def begin() -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "PLACE": str(tmp_path), "MOSAIC_SCHEDULE__LOOK_EVERY_S": "0.1"}
        flags = ["schedule", "--when-scored", "2", "--database", f"sqlite:///{tmp_path}/mosaic.db"]
        with (tmp_path / f"schedule-{len(started)}.log").open("wb") as log:
            command = [sys.executable, "-c", script, *flags]
            process = subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=log)
        started.append(process)
        return process

    yield begin
    (tmp_path / "end").touch()
    for process in started:
        process.kill()
        process.wait()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_two_schedules_are_as_one_and_a_stop_reaches_the_job(
    tmp_path: Path, store: Store, start: Callable[[], "subprocess.Popen[bytes]"]
) -> None:
    first = start()
    until(lambda: list(tmp_path.glob("began-*")))
    second = start()
    # The second stands by: it takes over once the first, and its lease, are gone.
    first.send_signal(signal.SIGTERM)
    assert first.wait(20) == 0
    until(lambda: len(list(tmp_path.glob("interrupted-*"))) == 1)
    until(lambda: len(list(tmp_path.glob("began-*"))) == 2)
    assert {path.read_text() for path in tmp_path.glob("began-*")} == {f"sqlite:///{tmp_path}/mosaic.db"}
    second.kill()
    second.wait()
    assert store.jobs() == []


def test_looks_that_a_running_job_holds_up_are_left_out_without_a_word(
    tmp_path: Path, start: Callable[[], "subprocess.Popen[bytes]"]
) -> None:
    process = start()
    until(lambda: list(tmp_path.glob("began-*")))
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)  # five looks
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    said = (tmp_path / "schedule-0.log").read_text()
    assert [json.loads(line)["event"] for line in said.splitlines() if line.startswith("{")] == [
        "scheduled job begins",
        "scheduled job ended",
    ]


def schedules_of(parent: int) -> list[int]:
    """Child processes that are `mosaic schedule`."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if b"schedule" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]


def serving(folder: Path) -> "subprocess.Popen[bytes]":
    """`mosaic serve` with a schedule that waits for more trajectories than come."""
    environment = {
        **os.environ,
        "MOSAIC_DATABASE": f"sqlite:///{folder}/mosaic.db",
        "MOSAIC_SCHEDULE__WHEN_SCORED": "1000000",
        "MOSAIC_UPSTREAM": "http://127.0.0.1:9/v1",
    }
    return subprocess.Popen([sys.executable, "-m", "mosaic", "serve", "--port", "0"], env=environment, cwd=folder)


def test_the_server_runs_the_schedule_beside_itself_and_ends_it(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        try:
            until(lambda: schedules_of(server.pid))
            (schedule,) = schedules_of(server.pid)
        finally:
            server.terminate()
        assert server.wait(30) == 0
    assert not Path(f"/proc/{schedule}").exists()


def test_a_server_that_is_asked_to_end_while_it_starts_the_schedule_ends_it_too(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        listed = Path(f"/proc/{server.pid}/task/{server.pid}/children")
        try:
            while not (children := listed.read_text().split()):  # without a pause: it is a matter of milliseconds
                assert server.poll() is None
        finally:
            server.terminate()
        assert server.wait(30) == 0
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []
