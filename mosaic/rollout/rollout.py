"""A run: every attempt that is planned, each made once, several at a time, and taken up again where it stopped.

What is done is known twice: in the run's file (`attempts.jsonl`) and in the store, by the ids of the trajectories,
`<run>.<task>.<attempt>`, with `~2` and so on for another try. A try is never made under an id that has been used, since
the calls of two tries in one trajectory would be taken for one attempt.
"""

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from mosaic.errors import MosaicError, SettingsError
from mosaic.rollout.attempt import SURROUNDINGS, Agent, Ended, Made, Outcome, Result, Work
from mosaic.rollout.scoring import Scoring
from mosaic.rollout.tasks import Task
from mosaic.rollout.told import Told

RUN = re.compile(r"[A-Za-z0-9_-]{1,60}")
"""Names of runs: no dot, which ends them in the ids of trajectories."""
ATTEMPTS = "attempts.jsonl"
"""The run's file: a line per attempt."""
MAX_SLUG = 80
"""Characters of a task's id that go into the ids of trajectories."""


class Executor(Protocol):
    """Where attempts are made. Called from several threads."""

    def make(self, work: Work, scoring: Scoring) -> Made:
        """Make one attempt, wait for its end, and score it if it ended well."""
        ...

    def stop(self) -> None:
        """End what runs, and start nothing more."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done."""

    run: str
    tasks: Sequence[Task]
    attempts: int
    """At each task."""
    agent: Agent
    scoring: Scoring
    folder: Path
    """Of the run."""
    proxy_url: str
    key_of: Callable[[str], str]
    """Trajectory id -> the key that its agent sends."""
    concurrency: int = 4
    retries: int = 2
    """Further tries of an attempt that was lost."""
    resumes: bool = True
    """False when the run's name is new, so that nothing of it can be there."""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a run."""

    run: str
    folder: Path
    results: tuple[Result, ...]
    """One per attempt, in the order of the plan."""
    resumed: int
    """Of these, done before."""
    seconds: float

    @property
    def mean_reward(self) -> float | None:
        """Over the scored attempts; None without any."""
        rewards = [r.reward for r in self.results if r.reward is not None]
        return sum(rewards) / len(rewards) if rewards else None


class Rollout:
    """One run of a plan."""

    def __init__(self, plan: Plan, executor: Executor, told: Told) -> None:
        if not RUN.fullmatch(plan.run):
            raise SettingsError(f"{plan.run!r} cannot name a run.", "Use up to 60 of A-Z a-z 0-9 _ -")
        self._plan = plan
        self._executor = executor
        self._told = told
        self._file = plan.folder / ATTEMPTS
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def run(self, on_result: Callable[[Result], None] = lambda _: None) -> Report:
        """Make what is not done yet. Ctrl-C and a proxy that is gone end it; the same run goes on where it stopped."""
        began = time.monotonic()
        self._plan.folder.mkdir(parents=True, exist_ok=True)
        planned = [(task, n) for task in self._plan.tasks for n in range(1, self._plan.attempts + 1)]
        done, tries = self._done(planned)
        for result in done.values():
            on_result(result)
        open_ones = [key for key in planned if (key[0].task_id, key[1]) not in done]
        made = {(r.task_id, r.attempt): r for r in self._make_all(open_ones, tries, on_result)}
        found = {**done, **made}
        results = tuple(found[task.task_id, n] for task, n in planned)
        return Report(self._plan.run, self._plan.folder, results, len(done), time.monotonic() - began)

    def _make_all(
        self, planned: Sequence[tuple[Task, int]], tries: Mapping[str, int], on_result: Callable[[Result], None]
    ) -> Iterator[Result]:
        with ThreadPoolExecutor(self._plan.concurrency, "attempt") as threads:
            futures = [
                threads.submit(self._attempt, task, n, tries.get(self._base(task, n), 0) + 1) for task, n in planned
            ]
            try:
                for future in as_completed(futures):
                    result = future.result()
                    on_result(result)
                    yield result
            except BaseException:
                self._stopping.set()
                for future in futures:
                    future.cancel()
                self._executor.stop()
                raise

    def _attempt(self, task: Task, number: int, first_try: int) -> Result:
        """Make one attempt, again as long as it is lost and may be tried."""
        for tries in range(first_try, first_try + self._plan.retries + 1):
            result = self._try(task, number, tries)
            if result.settled:
                break
        return result

    def _try(self, task: Task, number: int, tries: int) -> Result:
        plan = self._plan
        name = _named(self._base(task, number), tries)
        work = Work(
            trajectory_id=name,
            task=task,
            attempt=number,
            tries=tries,
            proxy_url=plan.proxy_url,
            api_key=plan.key_of(name),
            folder=plan.folder / name,
            agent=plan.agent,
        )
        made = self._executor.make(work, plan.scoring)
        if self._stopping.is_set():
            raise MosaicError("the run was stopped.")  # How the attempt ended says nothing: it was ended.
        result = self._told.settle(work, made, self._outcome(work, made))
        with self._lock, self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        return result

    def _outcome(self, work: Work, made: Made) -> Outcome:
        ended = made.ended
        if ended.timed_out:
            return Outcome.TRUNCATED
        if ended.status is None:
            return Outcome.FAILED
        if ended.status != 0 and not work.agent.any_status:
            lost = _lost(ended) or self._told.engine_failed(work.trajectory_id)
            return Outcome.LOST if lost else Outcome.FAILED
        if made.score is None:
            return Outcome.UNSCORED
        return Outcome.UNSCORABLE if made.score.value is None else Outcome.SCORED

    def _done(self, planned: Sequence[tuple[Task, int]]) -> tuple[dict[tuple[str, int], Result], dict[str, int]]:
        """What need not be done again; and how many tries of each attempt have been begun, by base id."""
        done = {(r.task_id, r.attempt): r for r in self._written() if r.settled}
        tries: dict[str, int] = {}
        for folder in self._plan.folder.glob("*/"):
            base, number = _parsed(folder.name)
            tries[base] = max(tries.get(base, 0), number)
        bases = {self._base(task, n): (task.task_id, n) for task, n in planned}
        self._told.check()
        states = self._told.states(self._plan.run) if self._plan.resumes else {}
        for name, (state, reward) in states.items():
            base, number = _parsed(name)
            tries[base] = max(tries.get(base, 0), number)
            key = bases.get(base)
            if key is None or key in done:
                continue
            if (outcome := _STATES.get(state)) is not None:
                done[key] = Result(*key, number, name, outcome, reward, None, 0.0, None)
            elif state in ("open", "closed"):
                self._told.interrupted(name)
        wanted = set(bases.values())
        return {key: result for key, result in done.items() if key in wanted}, tries

    def _written(self) -> Iterator[Result]:
        """The results in the run's file; a line that a crash cut short was not done."""
        if not self._file.exists():
            return
        for line in self._file.read_text(encoding="utf-8").splitlines():
            try:
                found = Result(**json.loads(line))
            except (ValueError, TypeError):
                continue
            yield replace(found, outcome=Outcome(found.outcome))

    def _base(self, task: Task, number: int) -> str:
        return f"{self._plan.run}.{_slug(task.task_id)}.{number}"


def first_failure(results: Sequence[Result]) -> None:
    """Raises `MosaicError` when no attempt ended well, or when the scorer failed and none could be scored: something is
    wrong with the set-up, not with the policy."""
    if results and all(r.outcome in (Outcome.FAILED, Outcome.LOST) for r in results):
        first = results[0]
        said = (first.error or f"status {first.status}").strip().splitlines() or [""]
        raise MosaicError(
            f"every attempt failed, the first ({first.trajectory_id}) with: {said[-1].rstrip('.')}.",
            "Its folder has what it was told and what it printed.",
        )
    broken = scorer_failures(results)
    if broken and not any(r.outcome in (Outcome.SCORED, Outcome.UNSCORABLE) for r in results):
        raise MosaicError(
            f"no attempt could be scored, the first ({broken[0].trajectory_id}) because {broken[0].error}"
        )


def scorer_failures(results: Sequence[Result]) -> list[Result]:
    """The attempts that ended well and whose scorer failed, or said something that is no score."""
    return [r for r in results if r.outcome is Outcome.UNSCORED and r.error is not None]


def _lost(ended: Ended) -> bool:
    return ended.status is not None and (ended.status in SURROUNDINGS or ended.status < 0)


def _named(base: str, tries: int) -> str:
    return base if tries == 1 else f"{base}~{tries}"


def _parsed(name: str) -> tuple[str, int]:
    base, _, tries = name.partition("~")
    return base, int(tries) if tries.isdigit() else 1


def _slug(task_id: str) -> str:
    """A task's id as a part of a trajectory's: what it may not hold is replaced, and a digest keeps it unique."""
    slug = re.sub(r"[^A-Za-z0-9_:@+-]", "_", task_id)[:MAX_SLUG]
    return slug if slug == task_id else f"{slug}-{hashlib.sha256(task_id.encode('utf-8', 'replace')).hexdigest()[:8]}"


_STATES = {
    "scored": Outcome.SCORED,
    "trained": Outcome.SCORED,
    "unscorable": Outcome.UNSCORABLE,
    "truncated": Outcome.TRUNCATED,
}
"""States of trajectories whose attempts need not be made again."""
