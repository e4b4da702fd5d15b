"""Scoring answers: which prompts are sent, what the cost says, and which contributions a job credits with."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mosaic.credit import RULES, GroupStatistics
from mosaic.errors import EngineError, SettingsError
from mosaic.job_settings import TrainConfig
from mosaic.records import Call, Group, Session, SessionKind, Trajectory
from mosaic.settings import Settings
from mosaic.store import Store
from tests.credit.builders import call, recorded, recorded_session, tool_call, tool_result
from trainer.contributions import Contributions, answers_from, estimated
from trainer.engine_control import EngineControl
from trainer.scoring import AnswerScorer, ScoringSettings, recorded_tools

QUESTION = {"role": "user", "content": "where?"}


class Reader(EngineControl):
    """An engine that tokenizes letters and finds the answer likelier the more often its prompt has the word."""

    def tokenize(self, body: Mapping[str, Any]) -> list[int]:
        if "prompt" in body:
            return [ord(letter) for letter in body["prompt"]]
        return [ord(letter) for m in body["messages"] for letter in str(m.get("content"))]

    def continuation_logprobs(self, ids_L: Sequence[int], continuation: Sequence[int]) -> tuple[list[float], int]:
        word, prompt = (bytes(ids).decode() for ids in (continuation, ids_L))
        return [math.log((1 + prompt.count(word)) / 10)] * len(continuation), len(ids_L)


def delegation(answer: str = "Oran", exact: bool = True) -> Trajectory:
    """A lead whose two subagents report, one of them the answer."""
    reports = [tool_result("i1", f"it is {answer}"), tool_result("i2", "it is blue")]
    asked = call("lead1", 1, [QUESTION], [tool_call("i1", "task"), tool_call("i2", "task")])
    lead = recorded_session("lead", [asked, call("lead2", 4, [QUESTION, *reports])])
    children = [child("x", 2, str(reports[0]["content"])), child("y", 3, str(reports[1]["content"]))]
    return with_prompts(recorded("t", [lead, *children], 1.0), exact)


def child(sid: str, at: float, report: str) -> Session:
    return recorded_session(sid, [call(f"{sid}1", at, [QUESTION], content=report)], SessionKind.SPAWN, "lead", "lead1")


def with_prompts(trajectory: Trajectory, exact: bool) -> Trajectory:
    """The trajectory with the prompt ids that the reader's template gives."""
    reader = Reader("http://unused")

    def filled(made: Call) -> Call:
        ids = reader.tokenize({"messages": made.messages}) if exact else []
        return replace(made, prompt_ids_P=np.array(ids, dtype=np.int32))

    sessions = (replace(s, calls=tuple(map(filled, s.calls))) for s in trajectory.sessions)
    return replace(trajectory, sessions=tuple(sessions))


def test_answers_are_scored_with_and_without_each_report_and_the_cost_is_counted() -> None:
    found = AnswerScorer(Reader("http://unused")).score([delegation()], lambda _: ["Oran"], {})
    scores = {(c.call_id, *sorted(c.hidden)): value for c, value in found.scores["t"].items()}
    assert scores[("lead1",)] == pytest.approx(0.1)
    assert scores[("lead2",)] == scores[("lead2", "i2")] == pytest.approx(0.2)
    assert scores[("lead2", "i1")] == pytest.approx(0.1)
    assert found.cost.contexts == found.cost.requests == len(scores)
    assert found.cost.tokens > found.cost.cached > 0
    assert not found.cost.unscored


def test_what_cannot_be_scored_is_counted_with_its_reason() -> None:
    scorer = AnswerScorer(Reader("http://unused"))
    assert scorer.score([delegation()], lambda _: [], {}).cost.unscored == {"no_answer": 1}
    assert set(scorer.score([delegation(exact=False)], lambda _: ["Oran"], {}).cost.unscored) == {"inexact"}

    class Other(Reader):
        def tokenize(self, body: Mapping[str, Any]) -> list[int]:
            return [*super().tokenize(body), 1]

    strange = AnswerScorer(Other("http://unused")).score([delegation()], lambda _: ["Oran"], {})
    assert set(strange.cost.unscored) == {"not_rendered_alike"}


def test_an_answer_without_tokens_is_refused_and_a_prefix_goes_before_it() -> None:
    class Mute(Reader):
        def tokenize(self, body: Mapping[str, Any]) -> list[int]:
            return super().tokenize(body)[:0]

    with pytest.raises(EngineError, match="has no tokens"):
        AnswerScorer(Mute("http://unused")).score([delegation()], lambda _: ["Oran"], {})
    spaced = AnswerScorer(Reader("http://unused"), ScoringSettings(prefix="is "))
    assert max(spaced.score([delegation()], lambda _: ["Oran"], {}).scores["t"].values()) == pytest.approx(0.2)


def test_answers_are_found_by_task_or_by_question(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    path.write_text(json.dumps({"task": "Oran", "what?": ["a", "b"], "where?": "there"}))
    by_key = answers_from(path)
    assert by_key(delegation()) == ["Oran"]
    path.write_text(json.dumps({"where?": ["there", "here"]}))
    assert answers_from(path)(delegation()) == ["there", "here"]
    assert answers_from(path)(recorded("empty", [])) == []
    path.write_text("{")
    with pytest.raises(SettingsError, match="cannot be read"):
        answers_from(path)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    path = tmp_path / "answers.json"
    path.write_text(json.dumps({"task": "Oran"}))
    return Settings(train=TrainConfig(contribution="blend", answers=path), database=f"sqlite:///{tmp_path}/m.db")


def test_a_job_estimates_as_its_settings_say(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.contributions.engine_control", lambda _: Reader("http://unused"))
    store = Store(settings.database)
    group = Group("task", (delegation(),))
    by_group = estimated(store, [group], Settings(database=settings.database), RULES["mosaic"])
    assert isinstance(by_group.estimator, GroupStatistics)
    assert by_group.cost is None
    blended = estimated(store, [group], settings, RULES["mosaic"])
    assert blended.scored["x"].value == pytest.approx(0.1)
    assert blended.scored["y"].value == pytest.approx(0.0)
    assert blended.estimator.contributions(group)["x"].source.startswith("information_gain")
    assert not blended.call_gains
    chunks = estimated(store, [group], settings, RULES["chunk"])
    assert chunks.call_gains["lead1"] == pytest.approx((0.1, 0.0))
    blended.write(tmp_path)
    written = json.loads((tmp_path / "contributions.json").read_text())
    assert written["x"]["source"] == "information_gain"
    Contributions(GroupStatistics()).write(tmp_path / "missing")
    without = settings.model_copy(update={"train": TrainConfig(contribution="information_gain")})
    with pytest.raises(SettingsError, match="needs the tasks' answers"):
        estimated(store, [group], without, RULES["mosaic"])
    assert recorded_tools(store, [delegation()]) == {}
    store.close()
