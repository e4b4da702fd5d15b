"""A judge model behind a real HTTP server."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mosaic.scoring import judge as judge_module
from mosaic.scoring.judge import RETRIES, Judge
from mosaic.scoring.outcome import Score, ScoreError
from tests.engine import Fault, ScriptedEngine, Turn
from tests.playbook import user
from tests.scoring.test_transcript import trajectory_of

TRAJECTORY = trajectory_of([user("find the capital of France"), user("x" * 5000)])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "BACKOFF_S", 0.01)


async def judged(script: Callable[[dict[str, Any]], Turn], **given: Any) -> tuple[Score, ScriptedEngine]:
    engine = ScriptedEngine(script)
    async with engine.serve() as url:
        judge = Judge(url, "policy", "secret", **given)
        return await asyncio.to_thread(judge.score, TRAJECTORY), engine


async def test_it_is_told_task_record_and_rubric_within_the_budget_and_gives_a_reason() -> None:
    said = 'Let me see: {"a": 1}. {"reason": "It says Paris.", "reward": 0.75}'
    score, engine = await judged(lambda _: Turn(said), rubric="Is it Paris?", max_tokens=200)
    assert score == Score(0.75, "It says Paris.")
    asked = engine.requests[0]
    system, prompt = (m["content"] for m in asked["messages"])
    assert (asked["model"], asked["temperature"]) == ("policy", 0)
    assert "Is it Paris?" in system
    assert "find the capital of France" in prompt
    assert "the outcome" in prompt
    assert len(prompt) < 1000
    assert ("authorization", "Bearer secret") in [(k.lower(), v) for k, v in engine.headers[0].items()]


async def test_null_means_that_it_cannot_be_told() -> None:
    score, _ = await judged(lambda _: Turn('{"reason": "no idea", "reward": null}'))
    assert score == Score(None, "no idea")


@pytest.mark.parametrize("said", ["It was good.", '{"reward": 7}', '{"reward": "high"}', '{"reward": ', ""])
async def test_what_is_no_reward_is_no_score(said: str) -> None:
    with pytest.raises(ScoreError):
        await judged(lambda _: Turn(said))


async def test_a_judge_that_is_busy_is_asked_again_and_one_that_stays_so_is_given_up() -> None:
    turns = iter([Turn(fault=Fault.REFUSE), Turn('{"reward": 1}')])
    score, _ = await judged(lambda _: next(turns))
    assert score.value == 1
    asked: list[int] = []

    def busy(_: dict[str, Any]) -> Turn:
        asked.append(1)
        return Turn(fault=Fault.REFUSE)

    with pytest.raises(ScoreError, match="does not answer"):
        await judged(busy)
    assert len(asked) == RETRIES


async def test_a_question_that_is_refused_is_not_asked_again() -> None:
    asked: list[int] = []

    def refuses(_: dict[str, Any]) -> Turn:
        asked.append(1)
        return Turn(fault=Fault.OVERFLOW)

    with pytest.raises(ScoreError, match="refused with status 400"):
        await judged(refuses)
    assert len(asked) == 1


def test_a_judge_never_shows_its_key() -> None:
    assert "secret" not in repr(Judge("http://x/v1", "strict", "secret"))
