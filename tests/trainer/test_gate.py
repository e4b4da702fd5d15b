"""Held-out tasks as the gate: attempted before and after a swap, never trained, and a worse version goes back."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from mosaic.errors import GateError, PublishError, SettingsError
from mosaic.job_settings import HeldOutConfig, TrainConfig
from mosaic.settings import Settings
from tests.conftest import Proxy, ProxyFactory
from tests.engine import Turn
from tests.engine.control import ServedCheckpoint
from tests.rollout.test_rollout import AGENT
from tests.trainer.test_job import attempts
from trainer.gate import HeldOutTasks, gate_of
from trainer.job import run_job
from trainer.preview import preview

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:TRL currently supports vLLM"
)
SCORE = 'test "$(cat)" = 42 && echo 1 || echo 0'


def held_out(folder: Path, url: str, prompts: str = "first\nsecond\n", **changes: Any) -> HeldOutConfig:
    tasks = folder / "held-out.txt"
    tasks.write_text(prompts)
    values = {
        "tasks": tasks,
        "agent": [sys.executable, str(AGENT), "{prompt}"],
        "score": SCORE,
        "folder": folder / "rollouts",
        "proxy": url,
        **changes,
    }
    return HeldOutConfig(**values)


@pytest.mark.parametrize(("margin", "stays"), [(0.0, False), (0.5, True)])
async def test_a_version_that_does_worse_at_held_out_tasks_goes_back(
    start_proxy: ProxyFactory, tmp_path: Path, model_dir: Path, margin: float, stays: bool
) -> None:
    engine = ServedCheckpoint(model_dir)

    def answers(request: dict[str, Any]) -> Turn:
        """The new weights have lost the second task."""
        return Turn("no idea" if engine.path != model_dir and "second" in str(request["messages"]) else "42")

    async with start_proxy(answers) as proxy:
        with engine.serving() as url:
            train = TrainConfig(model=model_dir, output=tmp_path / "checkpoints", learning_rate=1e-3)
            given = held_out(tmp_path, proxy.url, margin=margin)
            settings = Settings(upstream=url, database=proxy.settings.database, train=train, held_out=given)
            attempts(proxy.store, {"a": 1, "b": 0})
            if stays:
                job_id = (await asyncio.to_thread(run_job, proxy.store, settings)).job_id
            else:
                with pytest.raises(PublishError, match=r"version 1 is worse: the gate gave 0\.5 after 1 "):
                    await asyncio.to_thread(run_job, proxy.store, settings)
                job_id = proxy.store.jobs()[0].job_id
            figures = proxy.store.job_metrics(job_id)
            assert (figures["gate_before"], figures["gate_after"]) == (1, 0.5)
            assert (engine.path == model_dir) is not stays
            assert proxy.store.waiting().groups == {}
            assert proxy.store.waiting().left_out == {"held_out": 4}
            assert proxy.store.scored_since(0) == 0
            assert {c.reason for c in preview(proxy.store, settings).candidates} == {"held_out"}


async def test_an_attempt_that_fails_counts_and_is_not_passed_over(start_proxy: ProxyFactory, tmp_path: Path) -> None:
    async with start_proxy(lambda _: Turn("42")) as proxy:
        assert await judged(proxy, held_out(tmp_path, proxy.url, "well\ncrash\n")) == 0.5
        given = held_out(tmp_path, proxy.url, "well\ncrash\n", failed_reward=-1.0)
        assert await judged(proxy, given, "job-2") == 0


@pytest.mark.parametrize(
    ("prompts", "score", "said"),
    [("crash\n", SCORE, r"\(before\): every attempt failed"), ("well\n", "echo none", "none of 1 attempts")],
)
async def test_attempts_of_which_nothing_is_known_are_no_score(
    start_proxy: ProxyFactory, tmp_path: Path, prompts: str, score: str, said: str
) -> None:
    async with start_proxy(lambda _: Turn("42")) as proxy:
        with pytest.raises(GateError, match=said):
            await judged(proxy, held_out(tmp_path, proxy.url, prompts, score=score))


async def judged(proxy: Proxy, given: HeldOutConfig, job_id: str = "job-1") -> float:
    assert given.tasks is not None
    judge = HeldOutTasks.of(proxy.settings.model_copy(update={"held_out": given}), given.tasks)
    return await asyncio.to_thread(judge.score, "before", 0, job_id)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"agent": []}, "held_out.agent is no command"),
        ({"agent": ["no-such-program"]}, "held_out.agent is no command"),
        ({"agent": ["sh", "{nothing}"]}, "has {nothing}, which the task"),
        ({"tasks": Path("/nowhere/tasks")}, "cannot be read"),
    ],
)
def test_a_gate_that_could_never_judge_is_refused_before_anything_is_trained(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    given = held_out(tmp_path, "http://127.0.0.1:9", **change)
    with pytest.raises(SettingsError, match=said):
        gate_of(Settings(held_out=given))


def test_a_job_has_one_gate(tmp_path: Path) -> None:
    settings = Settings(held_out=held_out(tmp_path, "http://127.0.0.1:9"), train=TrainConfig(gate="echo 1"))
    with pytest.raises(SettingsError, match="both set"):
        gate_of(settings)
