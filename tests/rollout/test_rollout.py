"""Rollouts before a real proxy: real processes attempt tasks, and what they were worth stands in the store."""

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mosaic.client import Client
from mosaic.errors import MosaicError, SettingsError
from mosaic.keys import agent_key
from mosaic.rollout import Agent, Ended, Outcome, Plan, Report, Result, Rollout, Task, Work
from mosaic.rollout import told as told_module
from mosaic.rollout.attempt import Made
from mosaic.rollout.local import Processes
from mosaic.rollout.rollout import first_failure
from mosaic.rollout.scoring import Scoring
from mosaic.rollout.told import NO_CALL, Told
from mosaic.scoring.commands import Command
from mosaic.scoring.outcome import Score
from mosaic.settings import Settings
from tests.conftest import Proxy, ProxyFactory, until
from tests.engine import Fault, Turn

AGENT = Path(__file__).parent / "agent.py"
ROOT = Path(__file__).parents[2]


def tasks(*prompts: str, **fields: Any) -> list[Task]:
    return [Task(f"t{n}", p, {"id": f"t{n}", "prompt": p, **fields}) for n, p in enumerate(prompts)]


def plan_of(proxy: Proxy, folder: Path, todo: Sequence[Task], **changes: Any) -> Plan:
    values: dict[str, Any] = {
        "run": "run-1",
        "tasks": todo,
        "attempts": 1,
        "agent": Agent((sys.executable, str(AGENT), "{prompt}"), ROOT),
        "scoring": Scoring(function="tests.rollout.scorers:said_it"),
        "folder": folder / str(changes.get("run", "run-1")),
        "proxy_url": proxy.url,
        "key_of": partial(agent_key, proxy.settings),
        **changes,
    }
    return Plan(**values)


async def made(proxy: Proxy, plan: Plan, on_result: Callable[[Result], None] = lambda _: None) -> Report:
    key = proxy.settings.api_keys[0].get_secret_value() if proxy.settings.api_keys else None
    told = Told(Client(proxy.url, key), plan.scoring.source)
    return await asyncio.to_thread(Rollout(plan, Processes(), told).run, on_result)


def answers(request: dict[str, Any]) -> Turn:
    return Turn("42" if "right" in str(request["messages"]) else "no idea")


async def test_attempts_at_one_task_are_one_group_of_scored_trajectories(
    start_proxy: ProxyFactory, tmp_path: Path
) -> None:
    async with start_proxy(answers) as proxy:
        todo = tasks("right", "wrong", "claude right", answer="42")
        report = await made(proxy, plan_of(proxy, tmp_path, todo, attempts=2))
        assert [r.reward for r in report.results] == [1, 1, 0, 0, 1, 1]
        assert report.mean_reward == pytest.approx(2 / 3)
        waiting = proxy.store.waiting().groups
        assert {key: sorted(ids) for key, ids in waiting.items()} == {
            t.task_id: [f"run-1.{t.task_id}.1", f"run-1.{t.task_id}.2"] for t in todo
        }
        shown = await asyncio.to_thread(Client(proxy.url).trajectory, "run-1.t0.1")
        assert (shown["state"], shown["reward"], shown["task"]) == ("scored", 1, "right")
        assert shown["rewards"][0]["source"] == "rollout:function"
        scratch = tmp_path / "run-1" / "run-1.t1.2" / "scratch"
        assert (scratch / "left.txt").read_text() == "wrong"
        assert (scratch.parent / "stdout").read_text() == "no idea\n"
        assert json.loads((scratch.parent / "task.json").read_text())["answer"] == "42"


@pytest.mark.parametrize(
    ("prompt", "outcome", "state"),
    [
        ("crash", Outcome.FAILED, "failed"),
        ("hang", Outcome.TRUNCATED, "truncated"),
        ("nothing to compare with", Outcome.UNSCORABLE, "unscorable"),
    ],
)
async def test_failing_running_out_of_time_and_no_answer_are_no_reward_of_0(
    start_proxy: ProxyFactory, tmp_path: Path, prompt: str, outcome: Outcome, state: str
) -> None:
    async with start_proxy(answers) as proxy:
        plan = plan_of(proxy, tmp_path, tasks(prompt))
        limit = 5.0 if "hang" in prompt else None
        report = await made(proxy, replace(plan, agent=replace(plan.agent, timeout_s=limit)))
        (result,) = report.results
        assert (result.outcome, result.reward, result.tries) == (outcome, None, 1)
        (found,) = proxy.store.trajectories()
        assert (found.state, found.reward, found.task_key) == (state, None, "t0")
        if outcome is Outcome.FAILED:
            assert result.error == "it crashed"
            with pytest.raises(MosaicError, match=r"every attempt failed.*it crashed"):
                first_failure(report.results)


async def test_what_the_surroundings_failed_is_tried_again_as_another_trajectory(
    start_proxy: ProxyFactory, tmp_path: Path
) -> None:
    async with start_proxy(answers) as proxy:
        report = await made(proxy, plan_of(proxy, tmp_path, tasks("flaky right", answer="42")))
        (result,) = report.results
        assert (result.outcome, result.tries, result.trajectory_id) == (Outcome.SCORED, 2, "run-1.t0.1~2")
        states = {t.trajectory_id: t.state for t in proxy.store.trajectories()}
        assert states == {"run-1.t0.1": "failed", "run-1.t0.1~2": "scored"}


async def test_an_agent_that_fails_on_a_failing_engine_was_lost_and_not_bad(
    start_proxy: ProxyFactory, tmp_path: Path
) -> None:
    async with start_proxy(lambda _: Turn(fault=Fault.REFUSE)) as proxy:
        report = await made(proxy, plan_of(proxy, tmp_path, tasks("right"), retries=1))
        (result,) = report.results
        assert (result.outcome, result.tries) == (Outcome.LOST, 2)
        assert {t.state for t in proxy.store.trajectories()} == {"failed"}


async def test_a_run_that_was_stopped_goes_on_where_it_was(start_proxy: ProxyFactory, tmp_path: Path) -> None:
    async with start_proxy(answers) as proxy:
        todo = tasks("right", "wrong", "right too", answer="42")
        plan = plan_of(proxy, tmp_path, todo, concurrency=1)

        def stop(_: Result) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await made(proxy, plan, stop)
        before = {t.trajectory_id: t.created_at for t in proxy.store.trajectories()}
        finished = {name for name in before if proxy.store.trajectory(name).reward is not None}
        report = await made(proxy, plan)
        assert [r.reward for r in report.results] == [1, 0, 1]
        assert report.resumed == len(finished) >= 1
        after = {t.trajectory_id: t.created_at for t in proxy.store.trajectories()}
        assert {name: after[name] for name in finished} == {name: before[name] for name in finished}
        assert (await made(proxy, plan)).resumed == 3
        assert len(proxy.store.trajectories()) == len(after)


async def test_a_run_whose_folder_is_lost_is_known_from_the_store(start_proxy: ProxyFactory, tmp_path: Path) -> None:
    async with start_proxy(answers) as proxy:
        first = plan_of(proxy, tmp_path, tasks("right", answer="42"))
        await made(proxy, first)
        proxy.store.record(_open_attempt("run-1.t1.1"))
        both = replace(first, folder=tmp_path / "elsewhere", tasks=tasks("right", "wrong", answer="42"))
        report = await made(proxy, both)
        assert [(r.reward, r.trajectory_id) for r in report.results] == [(1, "run-1.t0.1"), (0, "run-1.t1.1~2")]
        assert report.resumed == 1
        assert proxy.store.trajectory("run-1.t1.1").state == "failed"


def _open_attempt(name: str) -> list[Any]:
    from tests.lineage.test_lineage import linear
    from tests.playbook import Recording

    return linear(Recording(name))


@pytest.mark.parametrize(
    "said",
    [
        (Scoring(Command('test "$(cat)" = 42 && echo 0.5', 20)), "right", 0.5, "rollout:command"),
        (Scoring(), "judge yourself", 0.25, "rollout:file"),
    ],
)
async def test_a_command_or_the_agent_itself_says_how_it_went(
    start_proxy: ProxyFactory, tmp_path: Path, said: tuple[Scoring, str, float, str]
) -> None:
    scoring, prompt, reward, source = said
    async with start_proxy(answers) as proxy:
        report = await made(proxy, plan_of(proxy, tmp_path, tasks(prompt), scoring=scoring))
        assert report.mean_reward == reward
        found = await asyncio.to_thread(Client(proxy.url).trajectory, "run-1.t0.1")
        assert (found["rewards"][0]["value"], found["rewards"][0]["source"]) == (reward, source)


@pytest.mark.parametrize(
    ("scoring", "complaint"),
    [
        (Scoring(function="tests.rollout.scorers:broken"), "no idea of run-1.t0.1"),
        (Scoring(Command("echo fine", 20)), "printed no score"),
        (Scoring(Command("exit 3", 20)), "status 3"),
        (Scoring(), None),
    ],
)
async def test_a_scorer_that_fails_leaves_the_attempt_unscored_and_says_why(
    start_proxy: ProxyFactory, tmp_path: Path, scoring: Scoring, complaint: str | None
) -> None:
    async with start_proxy(answers) as proxy:
        (result,) = (await made(proxy, plan_of(proxy, tmp_path, tasks("right"), scoring=scoring))).results
        assert (result.outcome, result.reward) == (Outcome.UNSCORED, None)
        assert result.error is None if complaint is None else complaint in (result.error or "")
        assert proxy.store.trajectory("run-1.t0.1").state == "closed"


async def test_an_agent_that_makes_no_call_is_told_apart(
    start_proxy: ProxyFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mosaic.rollout.told.WAIT_S", 0.2)
    async with start_proxy(answers) as proxy:
        (result,) = (await made(proxy, plan_of(proxy, tmp_path, tasks("silent"), scoring=Scoring()))).results
        assert (result.outcome, result.error) == (Outcome.FAILED, NO_CALL)


async def test_an_agent_has_a_key_of_its_own_attempt_and_no_other(
    start_proxy: ProxyFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOSAIC_API_KEYS", '["control-1"]')
    async with start_proxy(answers, api_keys=["control-1"], trajectory_secret="s" * 32) as proxy:
        show = ("/bin/sh", "-c", 'echo "$OPENAI_API_KEY"; env | grep -c control-1; exit 0')
        plan = plan_of(proxy, tmp_path, tasks("x"), agent=Agent(show, ROOT), scoring=Scoring())
        monkeypatch.setattr("mosaic.rollout.told.WAIT_S", 0.0)
        await made(proxy, plan)
        key, leaked = (tmp_path / "run-1" / "run-1.t0.1" / "stdout").read_text().split()
        assert key == agent_key(proxy.settings, "run-1.t0.1")
        assert key.startswith("mosaic-t-run-1.t0.1.")
        assert leaked == "0"
        report = await made(proxy, plan_of(proxy, tmp_path, tasks("right", answer="42"), run="run-2"))
        assert report.mean_reward == 1


def test_an_agent_never_gets_the_key_of_the_control_api() -> None:
    with pytest.raises(SettingsError, match="MOSAIC_TRAJECTORY_SECRET"):
        agent_key(Settings(api_keys=["control-1"]), "run-1")


async def test_a_proxy_that_is_not_there_is_said_at_once(start_proxy: ProxyFactory, tmp_path: Path) -> None:
    async with start_proxy(answers) as proxy:
        plan = plan_of(proxy, tmp_path, tasks("right"))
    with pytest.raises(MosaicError, match="cannot be reached"):
        await made(proxy, plan)
    assert not (plan.folder / "run-1.t0.1").exists()


async def test_a_proxy_that_is_away_for_a_moment_costs_no_attempt(
    start_proxy: ProxyFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = threading.Event()
    sleep = time.sleep
    monkeypatch.setattr(told_module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=_seen(waited, sleep)))
    async with start_proxy(answers) as proxy:
        await made(proxy, plan_of(proxy, tmp_path, tasks("right"), scoring=Scoring()))
        work, told = _attempt_told_at(proxy, tmp_path, port := _free_port())
        ended = Made(Ended(work.trajectory_id, 0, False, None, 1.0), Score(0.5), None)
        settling = asyncio.ensure_future(asyncio.to_thread(told.settle, work, ended, Outcome.SCORED))
        await until(waited.is_set)
        async with _forwarding(port, proxy.url):
            assert (await settling).reward == 0.5
        assert proxy.store.trajectory(work.trajectory_id).reward == 0.5


def _seen(event: threading.Event, sleep: Callable[[float], None]) -> Callable[[float], None]:
    def call(seconds: float) -> None:
        event.set()
        sleep(seconds)

    return call


def _attempt_told_at(proxy: Proxy, folder: Path, port: int) -> tuple[Work, Told]:
    """The attempt that was made, and who tells the proxy by another door."""
    plan = plan_of(proxy, folder, tasks("right"))
    work = Work("run-1.t0.1", plan.tasks[0], 1, 1, proxy.url, "key", folder, plan.agent)
    return work, Told(Client(f"http://127.0.0.1:{port}"), "test")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


@asynccontextmanager
async def _forwarding(port: int, url: str) -> AsyncIterator[None]:
    """Connections to the port reach the server behind the URL."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        back.write(await reader.readuntil(b"\r\n\r\n"))
        back.write(await reader.read(2**16))
        writer.write(await there.read())
        writer.close()
        back.close()

    server = await asyncio.start_server(forward, "127.0.0.1", port)
    yield
    server.close()
    await server.wait_closed()
