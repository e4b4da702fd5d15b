"""Attempts on a local Ray cluster of two nodes."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mosaic.client import Client
from mosaic.rollout import Agent, Outcome, Rollout
from mosaic.rollout.ray_executor import RayExecutor
from mosaic.rollout.scoring import Scoring
from mosaic.rollout.told import Told
from tests.conftest import ProxyFactory
from tests.rollout.test_rollout import AGENT, ROOT, answers, plan_of, tasks

ray = pytest.importorskip("ray", reason="Ray is not installed")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120)]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head and one more node, with two attempts at once on each."""
    import os

    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # Workers are processes of the nodes, and must find what this one has found.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    started: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    started.add_node(num_cpus=2)
    yield started
    ray.shutdown()
    started.shutdown()


async def test_both_nodes_make_attempts_and_what_they_were_worth_is_told(
    start_proxy: ProxyFactory, tmp_path: Path, cluster: Any
) -> None:
    async with start_proxy(answers) as proxy:
        where = ("/bin/sh", "-c", f"python3 {AGENT} '{{prompt}}' && sleep 3 && echo $RAY_RAYLET_PID")
        plan = plan_of(
            proxy,
            tmp_path,
            tasks("right", "wrong", "crash", "flaky right"),
            agent=Agent(where, ROOT),
            scoring=Scoring(function="tests.rollout.scorers:first_line_is_42"),
        )
        executor = RayExecutor(cluster.address)
        told = Told(Client(proxy.url), plan.scoring.source)
        report = await asyncio.to_thread(Rollout(plan, executor, told).run)
        assert [r.outcome for r in report.results] == [Outcome.SCORED, Outcome.SCORED, Outcome.FAILED, Outcome.SCORED]
        assert [r.reward for r in report.results] == [1, 0, None, 1]
        assert report.results[3].tries == 2
        made = [tmp_path / "run-1" / r.trajectory_id / "stdout" for r in report.results if r.reward is not None]
        assert len({file.read_text().splitlines()[-1] for file in made}) == 2
