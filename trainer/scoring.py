"""How likely the policy finds a task's answer after each recorded prompt: the scores that information gain is made of.

The engine scores by prefill: nothing is sampled, and the answer is never part of a recorded or served request, so it
cannot leak into a rollout. A prompt that was sent stays as its recorded ids; one with a report blanked out is rendered
by the engine, and only where the engine renders the unchanged messages to the recorded ids. What could not be scored is
counted with its reason.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from mosaic.credit.information_gain import Context, Scale, confidence, contexts
from mosaic.credit.replay import NO_RESULT
from mosaic.errors import EngineError
from mosaic.records import Call, Message, Trajectory
from mosaic.store import Store
from mosaic.store.models import CallRow
from mosaic.store.reading import batched, read_placed
from trainer.engine_control import EngineControl

Tools = Mapping[str, Any]
"""Tool schemas of each call, by call id; a call without tools is missing."""


@dataclass(frozen=True, slots=True)
class ScoringSettings:
    """How answers are scored."""

    scale: Scale = Scale.PROBABILITY
    floor: float = 10.0
    """Nats per token below which the log scale tells nothing apart."""
    prefix: str = ""
    """Text before the answer, for a policy that never answers without it."""
    concurrency: int = 8
    """Requests at once."""
    chunks: bool = False
    """Score every call and every tool result too, for credit below the session."""


@dataclass(slots=True)
class Cost:
    """What scoring took."""

    contexts: int = 0
    requests: int = 0
    tokens: int = 0
    """Prompt tokens sent for scoring."""
    cached: int = 0
    """Those of them whose keys and values the engine still had; 0 also when it does not say."""
    seconds: float = 0.0
    unscored: Counter[str] = field(default_factory=Counter)
    """Contexts that could not be scored, by reason."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of some trajectories."""

    scores: Mapping[str, Mapping[Context, float]]
    """Trajectory id -> context -> score in [0, 1]."""
    cost: Cost


class AnswerScorer:
    """Scores answers with one engine."""

    def __init__(self, engine: EngineControl, settings: ScoringSettings | None = None) -> None:
        self._engine = engine
        self._settings = settings or ScoringSettings()
        self._answers: dict[str, list[int]] = {}

    def score(
        self, trajectories: Sequence[Trajectory], answers: Callable[[Trajectory], Sequence[str]], tools: Tools
    ) -> Scored:
        """Score every context of the trajectories whose accepted answers are known. Raises `EngineError`."""
        began, cost = time.monotonic(), Cost()
        known = {t.trajectory_id: [self._answer_ids(a) for a in answers(t) if a] for t in trajectories}
        cost.unscored["no_answer"] += sum(not accepted for accepted in known.values())
        jobs = [(t, c) for t in trajectories if known[t.trajectory_id] for c in contexts(t, self._settings.chunks)]
        with ThreadPoolExecutor(self._settings.concurrency) as pool:
            rows = list(pool.map(self._one, jobs, repeat(known), repeat(tools)))
        scores: dict[str, dict[Context, float]] = {}
        for (trajectory, context), row in zip(jobs, rows, strict=True):
            cost.contexts += 1
            if isinstance(row, str):
                cost.unscored[row] += 1
                continue
            scores.setdefault(trajectory.trajectory_id, {})[context] = row.value
            cost.requests += row.requests
            cost.tokens += row.tokens
            cost.cached += row.cached
        cost.unscored = Counter({reason: number for reason, number in cost.unscored.items() if number})
        cost.seconds = time.monotonic() - began
        return Scored(scores, cost)

    def _one(
        self, job: tuple[Trajectory, Context], known: Mapping[str, Sequence[Sequence[int]]], tools: Tools
    ) -> "_Row | str":
        trajectory, context = job
        call = next(c for s in trajectory.sessions for c in s.calls if c.call_id == context.call_id)
        ids = self._prompt(call, context.hidden, tools.get(call.call_id))
        if isinstance(ids, str):
            return ids
        answers = known[trajectory.trajectory_id]
        found = [self._engine.continuation_logprobs(ids, answer) for answer in answers]
        means = [sum(logprobs) / len(logprobs) for logprobs, _ in found]
        value = confidence(means, self._settings.scale, self._settings.floor)
        sent = sum(len(ids) * len(answer) + len(answer) * (len(answer) - 1) // 2 for answer in answers)
        return _Row(value, len(answers), sent, sum(cached for _, cached in found))

    def _prompt(self, call: Call, hidden: frozenset[str], tools: Any) -> list[int] | str:
        """Prompt ids of a context, or why there are none."""
        recorded: list[int] = call.prompt_ids_P.tolist()
        if not recorded:
            return "inexact"
        if not hidden:
            return recorded
        if self._rendered(call.messages, tools) != recorded:
            return "not_rendered_alike"
        return self._rendered([_blanked(m, hidden) for m in call.messages], tools)

    def _rendered(self, messages: Sequence[Message], tools: Any) -> list[int]:
        return self._engine.tokenize({"messages": list(messages), "tools": tools, "add_generation_prompt": True})

    def _answer_ids(self, answer: str) -> list[int]:
        if answer not in self._answers:
            body = {"prompt": self._settings.prefix + answer, "add_special_tokens": False}
            self._answers[answer] = self._engine.tokenize(body)
        if not self._answers[answer]:
            raise EngineError(f"the answer {answer!r} has no tokens.", "Correct the answers of the task.")
        return self._answers[answer]


@dataclass(frozen=True, slots=True)
class _Row:
    value: float
    requests: int
    tokens: int
    cached: int


def _blanked(message: Message, hidden: frozenset[str]) -> Message:
    return {**message, "content": NO_RESULT} if message.get("tool_call_id") in hidden else message


def recorded_tools(store: Store, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Return the tool schemas that each call of the trajectories was sent with, by call id."""
    ids = [call.call_id for t in trajectories for session in t.sessions for call in session.calls]
    with store.database.reading() as connection:
        rows = [row for some in batched(ids) for row in read_placed(connection, CallRow.call_id.in_(some))]
    return {call.call_id: call.params["tools"] for call, _ in rows if call.params.get("tools")}
