"""The reading half of the control API: all that the dashboard shows, page by page, and what happens, live."""

import time
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from mosaic.errors import RequestError
from mosaic.records import TrajectoryState
from mosaic.store import Store, browsing, call_browsing, progress, schedules
from mosaic.store.browsing import Filter, Page
from mosaic.store.reading import load, read_trajectories
from mosaic.store.stats import stats
from proxy.api import REFUSALS
from proxy.doctor import Latest
from proxy.events import Events
from proxy.ui.call_view import finite
from proxy.ui.group_view import GroupView, Task, group_view

Limit = Annotated[int, Query(ge=1, le=1000, description="Items of a page, at most.")]
NEXT = "`next` of the page before; none for the first."
Row = Annotated[str | None, Query(pattern="^[0-9]{1,18}$", description=NEXT)]


class Some(BaseModel):
    """A page of a list."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"items": [{"trajectory_id": "run-17"}], "next": "1764485543.5~run-17"}]}
    )

    items: list[dict[str, Any]]
    next: str | None = Field(description="Cursor of the next page; null at the end. A short page may have one.")


class Asked(BaseModel):
    """Which trajectories, and how many at once."""

    limit: int = Field(50, ge=1, le=1000, description="Items of a page, at most.")
    cursor: str | None = Field(None, pattern=r"^[0-9]{1,15}(\.[0-9]{1,20})?~[^\x00]{1,200}$", description=NEXT)
    state: TrajectoryState | None = Field(None, description="Only those in this state.")
    task: str | None = Field(None, description="Only attempts at the task of this key.")
    q: str | None = Field(None, max_length=200, description="Part of the id or of the task's text.")
    min_reward: float | None = Field(None, description="Only rewards from here on.")
    below_reward: float | None = Field(None, description="Only rewards below this.")
    scored: bool | None = Field(None, description="Only those with (or without) a reward.")


def router(store: Store, events: Events, found: Latest) -> APIRouter:
    """The routes, bound to one store. Whoever serves them has checked the key (`Application`)."""
    api = APIRouter(prefix="/api", responses=REFUSALS)
    _add_trajectories(api, store)
    _add_calls(api, store)
    _add_training(api, store)
    _add_health(api, store, found)
    _add_events(api, events)
    return api


def _add_trajectories(api: APIRouter, store: Store) -> None:
    @api.get("/trajectories", response_model=Some)
    def list_trajectories(asked: Annotated[Asked, Query()]) -> dict[str, Any]:
        """Trajectories that fit, newest first."""
        wanted = Filter(asked.q, asked.state, asked.task, asked.min_reward, asked.below_reward, asked.scored)
        with store.database.reading() as connection:
            return paged(browsing.page(connection, wanted, asked.cursor, asked.limit))

    @api.get("/trajectories/{trajectory_id}")
    def show_trajectory(trajectory_id: str) -> dict[str, Any]:
        """One trajectory with its sessions (kind, link with evidence, advantage) and its rewards."""
        with store.database.reading() as connection:
            summary, row = browsing.overview(connection, trajectory_id)
            return {
                **asdict(summary),
                "attribution": row["attribution"],
                "trained_version": row["trained_version"],
                "trained_job_id": row["trained_job_id"],
                "sessions": [asdict(session) for session in browsing.sessions(connection, trajectory_id)],
                "rewards": browsing.rewards(connection, trajectory_id),
            }

    @api.get("/trajectories/{trajectory_id}/calls", response_model=Some)
    def list_calls(trajectory_id: str, limit: Limit = 200, cursor: Row = None) -> dict[str, Any]:
        """The calls of a trajectory in the order in which they ended; `head` is the beginning of the reply."""
        with store.database.reading() as connection:
            return paged(call_browsing.call_lines(connection, trajectory_id, cursor, limit))


def _add_calls(api: APIRouter, store: Store) -> None:
    @api.get("/calls/{call_id}")
    def show_call(call_id: str) -> dict[str, Any]:
        """One call: its parameters, what came back, how long it took. Messages and tokens are pages of their own."""
        with store.database.reading() as connection:
            row = call_browsing.call_row(connection, call_id)
            asked = call_browsing.params(connection, row)
            shown = {name: value for name, value in row.items() if name not in ("params", "params_id", "headers")}
            shown |= {name: load(row[name] or "null") for name in ("evidence", "rivals")}
            return {**shown, "params": asked, "choices": call_browsing.replies(connection, call_id)}

    @api.get("/calls/{call_id}/messages", response_model=Some)
    def list_messages(
        call_id: str,
        limit: Limit = 50,
        cursor: Row = None,
    ) -> dict[str, Any]:
        """The messages of a call's request, the last ones first to come: pages go back, each is in order."""
        with store.database.reading() as connection:
            row = call_browsing.call_row(connection, call_id)
            return paged(call_browsing.chain(connection, int(cursor) if cursor else row["message_id"], limit))

    @api.get("/calls/{call_id}/tokens")
    def show_tokens(call_id: str, choice: int = Query(0, ge=0, lt=2**31)) -> dict[str, Any]:
        """Prompt ids, sampled ids with logprobs, and which policy version sampled which of them; and what the trainer
        said of them, null for what was not trained."""
        with store.database.reading() as connection:
            found = call_browsing.choice_tokens(connection, call_id, choice)
        return {
            "prompt_ids": found.prompt_P.tolist(),
            "ids": found.ids_T.tolist(),
            "logprobs": finite(found.logprobs_T),
            "training_logprobs": None if found.training_logprobs_T is None else finite(found.training_logprobs_T),
            "versions": found.versions,
        }


def _add_training(api: APIRouter, store: Store) -> None:
    @api.get("/group")
    def show_group(
        task: str = Query(description="Key of the task."),
        version: int | None = Query(None, ge=0, lt=2**31, description="Only attempts of this policy version."),
    ) -> dict[str, Any]:
        """The newest attempts at a task side by side, with the advantage that each credit rule would give."""
        return asdict(group_of(store, task, version))

    @api.get("/training")
    def show_training() -> dict[str, Any]:
        """The newest trajectories as figures, the newest jobs with what they measured, the policy versions."""
        with store.database.reading() as connection:
            return {
                "trajectories": [asdict(one) for one in progress.recent(connection)],
                "jobs": [asdict(one) for one in progress.jobs(connection)],
                "versions": [asdict(one) for one in progress.versions(connection)],
            }

    @api.get("/schedule")
    def show_schedule() -> dict[str, Any]:
        """What the schedule said when it last looked, whether a run is asked for, and who runs it (null: nobody)."""
        with store.database.reading() as connection:
            return {**asdict(schedules.read(connection)), "owner": store.lease_holder(schedules.LEASE)}

    @api.post("/schedule/run")
    def run_now() -> dict[str, Any]:
        """Ask the schedule for a run now, whatever its clock and conditions say; it begins at its next look."""
        return {"asked_at": ask_for_run(store)}


def _add_health(api: APIRouter, store: Store, found: Latest) -> None:
    @api.get("/findings", response_model=Some)
    async def show_findings() -> dict[str, Any]:
        """What `mosaic doctor` finds from here, or found some seconds ago; asks the engine, for 30 s at most."""
        return {"items": [asdict(one) for one in await found.findings()], "next": None}

    @api.get("/certificate")
    def show_certificate() -> dict[str, Any]:
        """What can be trained of all that was recorded, what not and why; and what it takes. Reads every call once."""
        return {**asdict(store.certificate()), "database": asdict(stats(store.database))}


def _add_events(api: APIRouter, events: Events) -> None:
    @api.get("/events", response_class=StreamingResponse, include_in_schema=False)
    def follow(
        trajectory: str | None = Query(None, description="Only what concerns this trajectory."),
        last_event_id: str | None = Header(None),
    ) -> StreamingResponse:
        """Calls that end and rewards that come, as server-sent events; `Last-Event-ID` resumes."""
        return events.answer(last_event_id, trajectory)


def paged(found: "Page[Any]") -> dict[str, Any]:
    """A page as JSON."""
    return {"items": [asdict(item) for item in found.items], "next": found.next}


def ask_for_run(store: Store) -> float:
    """Ask the schedule for a run now. Raises `RequestError` (409) when no schedule runs that would take it."""
    if store.lease_holder(schedules.LEASE) is None:
        raise RequestError("no schedule runs.", "Start `mosaic schedule`, or run `mosaic train`.", status=409)
    now = time.time()
    with store.database.writing() as connection:
        schedules.change(connection, asked_at=now)
    return now


def group_of(store: Store, task_key: str, version: int | None = None) -> GroupView:
    """The attempts at a task. Raises `RequestError` (404) when there is none."""
    with store.database.reading() as connection:
        ids = progress.attempts(connection, task_key, version)
        text = progress.task_texts(connection, [task_key]).get(task_key, "")
        task = Task(task_key, text, version, progress.versions_of(connection, task_key))
        found = read_trajectories(connection, ids)
    if not ids:
        raise RequestError(f"there is no such attempt at a task {task_key[:80]!r}.", "See `task_key`.", status=404)
    return group_view(task, [found[i] for i in ids if i in found])
