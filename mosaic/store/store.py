"""The store's face: record calls, take rewards, hand out groups; jobs and policy versions are in `training`.

Every method is one transaction. Several processes may share one database, each through a store of its own; the methods
may be called from any thread, `record` from one at a time.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import select

from mosaic.capture import CapturedCall
from mosaic.errors import RequestError, StoreError
from mosaic.lineage import Harness, Placement
from mosaic.records import Call, Group, Message, Trajectory, TrajectoryState
from mosaic.store import explaining, listing, rewards, shortened
from mosaic.store.database import Database
from mosaic.store.explaining import Certificate, Unlinked
from mosaic.store.listing import Filter, ScoredTrajectory, TrajectorySummary, Waiting
from mosaic.store.models import CallRow, CounterRow, LinkRow, RewardRow, SessionRow, TrajectoryRow
from mosaic.store.reading import read_conversation, read_sampled, read_trajectories, read_trajectory
from mosaic.store.recording import Recording
from mosaic.store.rewards import Reward, RewardOutcome
from mosaic.store.training import TrainingStore
from mosaic.store.writing import count

REWARD_WINDOW_S = 7 * 24 * 3600.0
"""Seconds after a trajectory was settled in which a reward re-opens it, where nothing else is set."""


class Store(TrainingStore):
    """All of Mosaic's memory behind one database URL. Raises `StoreError` when it cannot be used.

    With `create=False`, which is for all that only reads or changes what is there, no SQLite file is made.
    """

    def __init__(
        self,
        url: str,
        reward_window_s: float = REWARD_WINDOW_S,
        harnesses: Sequence[Harness] = (),
        *,
        create: bool = True,
    ) -> None:
        super().__init__(Database(url, create=create))
        self.engine = self.database.engine
        self._reward_window_s = reward_window_s
        self._recording = Recording(harnesses)

    def close(self) -> None:
        """Release the database's connections."""
        self.database.close()

    # calls

    def record(self, calls: Sequence[CapturedCall]) -> list[Placement]:
        """Place the calls and commit them in one transaction, in the order given (that in which they ended).

        Calls that are there already are skipped. On any error nothing is written and `StoreError` is raised.
        """
        try:
            return self._record(calls)
        except StoreError as error:
            if not error.permanent:
                raise
            # What is remembered of the database may be wrong (it was restored, say): once more, from what it holds.
            self._recording.forget()
            placements = self._record(calls)
            self.count("recorded_again", "refused")
            return placements

    def _record(self, calls: Sequence[CapturedCall]) -> list[Placement]:
        try:
            with self.database.writing() as connection:
                if self.database.replaced():
                    self._recording.forget()
                    count(connection, "database_replaced", "file")
                placements = self._recording.record(connection, calls)
        except BaseException:
            self._recording.failed(calls)
            raise
        self._recording.committed()
        return placements

    def count(self, name: str, reason: str, by: int = 1) -> None:
        """Add to a counter."""
        with self.database.writing() as connection:
            count(connection, name, reason, by)

    def counters(self) -> dict[str, dict[str, int]]:
        """All counters: name -> reason -> value."""
        found: dict[str, dict[str, int]] = {}
        with self.database.reading() as connection:
            for name, reason, value in connection.execute(select(CounterRow.name, CounterRow.reason, CounterRow.value)):
                found.setdefault(name, {})[reason] = value
        return found

    # rewards and endings

    def reward(
        self,
        trajectory_id: str,
        value: float | None,
        source: str,
        note: str | None = None,
        *,
        session_id: str | None = None,
        now: float | None = None,
    ) -> RewardOutcome:
        """Append a reward; None means that it cannot be scored. Late ones count within the window (`rewards`).

        Raises `RequestError`: 404 for an unknown trajectory or session, 400 for a reward that is not finite.
        """
        given = Reward(value, source, note, session_id)
        now = time.time() if now is None else now
        with self.database.writing() as connection:
            return rewards.append(connection, trajectory_id, given, now, self._reward_window_s)

    def score(self, trajectory_id: str, value: float | None, source: str, note: str | None = None) -> bool:
        """Append a scorer's reward, unless the trajectory is not closed any more; whether it was written."""
        with self.database.writing() as connection:
            return rewards.append_closed(connection, trajectory_id, Reward(value, source, note), time.time())

    def end(self, trajectory_id: str, state: TrajectoryState, reason: str) -> TrajectoryState:
        """Say that a trajectory is over: closed, failed (its infrastructure: not a reward of 0, never trained) or
        truncated. Returns its state now. Raises `RequestError`."""
        with self.database.writing() as connection:
            return rewards.end(connection, trajectory_id, state, reason, time.time())

    def name_task(self, trajectory_id: str, key: str, text: str = "") -> str:
        """Say what a trajectory attempted, in place of what its calls suggest; returns the key as it is stored.

        Raises `RequestError` (404) for an unknown trajectory.
        """
        with self.database.writing() as connection:
            return rewards.name_task(connection, trajectory_id, key, text, time.time())

    def close_silent(self, seconds: float, answered_s: float | None = None) -> int:
        """Close open trajectories that had no call for that long, or `answered_s` where all agents of a trajectory that
        lineage found have answered; returns how many."""
        now = time.time()
        answered = now - (seconds if answered_s is None else min(answered_s, seconds))
        with self.database.writing() as connection:
            return rewards.close_silent(connection, now - seconds, answered, now)

    # trajectories

    def whole_trajectory_id(self, given: str) -> str:
        """The id that is meant by one which a narrow terminal has shortened (`shortened`). Raises `RequestError`."""
        with self.database.reading() as connection:
            return shortened.whole(connection, TrajectoryRow.trajectory_id, given)

    def whole_call_id(self, given: str) -> str:
        """As `whole_trajectory_id`, for a call."""
        with self.database.reading() as connection:
            return shortened.whole(connection, CallRow.call_id, given)

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """One trajectory with its sessions and calls. Raises `RequestError` (404) when there is none."""
        with self.database.reading() as connection:
            found = read_trajectory(connection, trajectory_id)
        if found is None:
            raise RequestError(
                f"there is no trajectory {trajectory_id!r}.", "List them with `mosaic trajectories`.", status=404
            )
        return found

    def trajectories(self, limit: int = 50, like: str | None = None) -> list[TrajectorySummary]:
        """The newest trajectories, optionally those whose id matches an SQL LIKE pattern."""
        with self.database.reading() as connection:
            return listing.newest(connection, limit, like)

    def group_of(self, trajectory_id: str) -> Group:
        """The trajectory with all attempts at its task by the same policy version. Raises `RequestError` (404)."""
        found = self.trajectory(trajectory_id)
        with self.database.reading() as connection:
            ids = listing.attempts_beside(connection, trajectory_id)
            return Group(found.task_key, tuple(read_trajectories(connection, ids).values()))

    def conversation(self, call_id: str) -> tuple[Message, ...] | None:
        """The messages of a call and its reply, without the instructions of its own; None for an unknown call."""
        with self.database.reading() as connection:
            return read_conversation(connection, call_id)

    def sampled(self, trajectory_id: str, after: int = 0, newest: int = 200) -> tuple[list[Call], int]:
        """The newest exact chat calls of a trajectory among the rows after `after`, in the order in which they ended;
        and the row to go on from."""
        with self.database.reading() as connection:
            return read_sampled(connection, trajectory_id, after, newest)

    def fidelity(self, trajectory_id: str) -> dict[str, int]:
        """What exact prefix mode made of a trajectory's calls; empty in capture mode."""
        with self.database.reading() as connection:
            return listing.fidelity(connection, [trajectory_id]).get(trajectory_id, {})

    def links(self, trajectory_id: str) -> list[dict[str, Any]]:
        """The links of a trajectory's sessions in order of opening, evidence and rivals decoded, with how each ended
        and the newest reward of its own."""
        judged = select(RewardRow.value).where(RewardRow.session_id == LinkRow.session_id, RewardRow.in_force)
        query = (
            select(
                LinkRow.__table__,
                SessionRow.ended,
                judged.order_by(RewardRow.reward_id.desc()).limit(1).scalar_subquery().label("reward"),
            )
            .join(SessionRow, SessionRow.session_id == LinkRow.session_id)
            .where(LinkRow.trajectory_id == trajectory_id)
            .order_by(SessionRow.position)
        )
        with self.database.reading() as connection:
            rows = connection.execute(query).mappings().all()
        return [{**r, "evidence": orjson.loads(r["evidence"]), "rivals": orjson.loads(r["rivals"])} for r in rows]

    # lineage

    def explain(self, call_id: str) -> dict[str, Any]:
        """Why a call stands where it stands, and what else was considered. Raises `RequestError` (404)."""
        with self.database.reading() as connection:
            return explaining.explain(connection, call_id)

    def inexact_calls(self, trajectory_id: str) -> dict[str, Mapping[str, Any]]:
        """How those calls of a trajectory ended that cannot be trained, by call id."""
        with self.database.reading() as connection:
            return explaining.inexact(connection, trajectory_id)

    def certificate(self, trajectory_id: str | None = None) -> Certificate:
        """What of a trajectory, or of all, can be trained; what not, and why."""
        with self.database.reading() as connection:
            return explaining.certificate(connection, trajectory_id)

    def unlinked(self, limit: int = 100_000) -> list[Unlinked]:
        """Sessions that are roots for want of evidence, newest first, for review."""
        with self.database.reading() as connection:
            return explaining.unlinked(connection, limit=limit)

    def waiting(
        self,
        like: str | None = None,
        oldest_version: int = 0,
        limit: int = 1_000_000,
        *,
        task: str | None = None,
        max_age_s: float | None = None,
    ) -> Waiting:
        """Scored trajectories that no job has trained, sampled by `oldest_version` or newer: whole groups."""
        since = None if max_age_s is None else time.time() - max_age_s
        with self.database.reading() as connection:
            return listing.waiting(connection, Filter(like, task, oldest_version, since), limit)

    def inexact_reasons(self, waiting: Waiting) -> Counter[str]:
        """Why calls of these trajectories cannot be trained -> how many."""
        with self.database.reading() as connection:
            return listing.inexact(connection, [i for ids in waiting.groups.values() for i in ids])

    def unscored(self, like: str | None = None, task: str | None = None, limit: int | None = None) -> list[str]:
        """Ids of closed trajectories that nobody has scored, the oldest first."""
        with self.database.reading() as connection:
            return listing.unscored(connection, Filter(like, task), limit)

    def scored(self) -> list[ScoredTrajectory]:
        """All that is scored and that no job has trained, newest first."""
        with self.database.reading() as connection:
            return listing.scored(connection)

    def scored_since(self, when: float) -> int:
        """How many trajectories were scored (or scored again) after `when` (Unix seconds), and are not trained."""
        with self.database.reading() as connection:
            return listing.scored_since(connection, when)

    def newest_call(self) -> float:
        """When the newest call ended (Unix seconds); 0 when there is none."""
        with self.database.reading() as connection:
            return listing.newest_call(connection)

    def states(self) -> dict[str, int]:
        """State -> number of trajectories."""
        with self.database.reading() as connection:
            return listing.states(connection)

    def groups(self, waiting: Waiting) -> list[Group]:
        """The groups in full."""
        with self.database.reading() as connection:
            found = read_trajectories(connection, [i for ids in waiting.groups.values() for i in ids])
        return [Group(key, tuple(found[i] for i in ids if i in found)) for key, ids in waiting.groups.items()]
