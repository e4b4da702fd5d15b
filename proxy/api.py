"""The control API under `/api`: rewards in, trajectories out, health."""

from dataclasses import asdict
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from mosaic.records import MAX_REWARD, TrajectoryState
from mosaic.settings import Settings
from mosaic.store import Store
from proxy.reading import waiting_calls
from proxy.recorder import Recorder


class RewardIn(BaseModel):
    """A reward for one trajectory."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"reward": 1.0, "source": "tests", "note": "12 of 12"}]}
    )

    reward: float | None = Field(
        ge=-MAX_REWARD, le=MAX_REWARD, description="How it went; null when it cannot be scored.", allow_inf_nan=False
    )
    source: str = Field("api", max_length=64, description="Who says so.")
    note: str | None = Field(None, description="Anything to remember with it.")
    session_id: str | None = Field(None, description="The session that is judged; null for the whole trajectory.")


class EndIn(BaseModel):
    """That a trajectory is over, and how."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"state": "failed", "reason": "sandbox_died"}]}
    )

    state: Literal["closed", "failed", "truncated"] = Field("closed", description="How it ended.")
    reason: str = Field("api", max_length=200, description="Why; counted.")


class TaskIn(BaseModel):
    """What a trajectory attempted."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"task": "swe-17", "text": "Fix the failing test."}]}
    )

    task: str = Field(min_length=1, description="Its key: attempts at one key are compared with each other.")
    text: str = Field("", description="What it asks for; kept where the key is new.")


class Problem(BaseModel):
    """What went wrong, and what to do next."""

    message: str
    type: str


class Refusal(BaseModel):
    """Every error of the control API."""

    error: Problem


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal} for status in (400, 401, 403, 404, 405, 408, 409, 413, 422, 500, 503, 507)
}
"""What any control route may answer besides its own."""


def router(settings: Settings, store: Store, recorder: Recorder) -> APIRouter:
    """The routes, bound to one store. Whoever serves them has checked the key (`Application`)."""
    api = APIRouter(prefix="/api", responses=REFUSALS)

    @api.post("/trajectories/{trajectory_id}/reward")
    def give_reward(trajectory_id: str, given: RewardIn) -> dict[str, Any]:
        """Append a reward; the last one is in force."""
        outcome = store.reward(trajectory_id, given.reward, given.source, given.note, session_id=given.session_id)
        return {"reward": given.reward, **asdict(outcome)}

    @api.post("/trajectories/{trajectory_id}/end")
    def end(trajectory_id: str, given: EndIn) -> dict[str, Any]:
        """Say that a trajectory is over; failed and truncated ones are not trained."""
        state = store.end(trajectory_id, TrajectoryState(given.state), given.reason)
        return {"trajectory_id": trajectory_id, "state": state}

    @api.put("/trajectories/{trajectory_id}/task")
    def name_task(trajectory_id: str, given: TaskIn) -> dict[str, Any]:
        """Say what was attempted, in place of what the first user message suggests."""
        return {"trajectory_id": trajectory_id, "task_key": store.name_task(trajectory_id, given.task, given.text)}

    @api.get("/trajectories/{trajectory_id}/links")
    def list_links(trajectory_id: str) -> list[dict[str, Any]]:
        """How the trajectory's sessions are linked, with evidence."""
        return store.links(trajectory_id)

    @api.get("/health")
    def health() -> dict[str, Any]:
        """What the recorder did, the counters and the live policy version."""
        version, path = store.policy()
        return {
            "recorder": {"alive": recorder.alive(), **recorder.figures()},
            "waiting_calls": waiting_calls(settings.spool),
            "last_refusal": recorder.progress.error,
            "counters": store.counters(),
            "policy_version": version,
            "policy_path": path,
        }

    return api
