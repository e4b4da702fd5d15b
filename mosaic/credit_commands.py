"""`mosaic credit`: what a rule makes of one trajectory, session by session, and what other rules would have made of it.

Computed anew from what is stored, with the group that a training job would compare it with: the attempts at the same
task by the same policy version. Nothing is written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import typer

from mosaic.credit import (
    Blend,
    ContributionEstimator,
    Estimate,
    GroupCredit,
    GroupStatistics,
    Known,
    SessionCredit,
    TrajectoryCredit,
    assign,
    group_input,
    rule_settings,
)
from mosaic.errors import RequestError, SettingsError
from mosaic.records import Group, Trajectory
from mosaic.settings import load
from mosaic.store import Store
from mosaic.terminal import DATABASE, JSON, TRAJECTORY, print_json
from mosaic.tree import Node, print_tree


@dataclass(frozen=True, slots=True)
class View:
    """One trajectory under one rule, and its sessions' advantages under others."""

    trajectory: Trajectory
    group: Group
    rule: str
    credit: TrajectoryCredit
    others: Mapping[str, Mapping[str, float]]
    """Rule -> session id -> advantage."""


def credit(
    trajectory: str = TRAJECTORY,
    *,
    rule: str = typer.Option("mosaic", help="The rule to explain."),
    also: list[str] = typer.Option(
        ["grpo", "mosaic:trajectory", "mosaic:session"], help="Rules to compare it with; may be repeated."
    ),
    contributions: Path | None = typer.Option(
        None, help="Contributions estimated elsewhere (a job's contributions.json), blended with group statistics."
    ),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Explain the credit of a trajectory: reward, rank, contribution, gate and advantage per session.

    Computed anew from what is stored, as if the attempts at the same task by the same policy version were the whole
    batch; nothing is written. What a job trained a session with, over its batch, stands on the trajectory's page.
    docs/credit.md has the formulas.

        mosaic credit run-17
        mosaic credit run-17 --rule broadcast --also mosaic
    """
    settings = load(database=database)
    store = Store(settings.database, settings.reward_window_s, create=False)
    trajectory = store.whole_trajectory_id(trajectory)
    group = store.group_of(trajectory)
    view = explain(group, trajectory, rule, also, estimator(contributions))
    if as_json:
        print_json(as_dict(view))
    else:
        print_tree(as_tree(view))


def estimator(path: Path | None) -> ContributionEstimator:
    """Group statistics, blended with what a file holds (session id -> value, variance, source). `SettingsError`."""
    if path is None:
        return GroupStatistics()
    try:
        known = {sid: Estimate(**row) for sid, row in orjson.loads(path.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SettingsError(f"{path} holds no contributions: {error}.", "Give a job's contributions.json.") from error
    return Blend((Known(known), GroupStatistics()))


def explain(group: Group, trajectory_id: str, rule: str, also: Sequence[str], source: ContributionEstimator) -> View:
    """Credit a group under several rules. Raises `RequestError` when the trajectory has no credit, saying why."""
    given = group_input(group, source)
    try:
        results = {name: assign([given], rule_settings(name))[0] for name in dict.fromkeys([rule, *also])}
    except ValueError as error:
        raise SettingsError(f"{error}.", "Pass another --rule or --also.") from error
    found = {name: _of(result, trajectory_id) for name, result in results.items()}
    chosen = found[rule]
    if chosen is None:
        reason = results[rule].dropped[trajectory_id]
        raise RequestError(f"{trajectory_id} has no credit: {reason.value}.", "Score it with `mosaic reward`.")
    others = {
        name: {session.session_id: session.advantage for session in credited.sessions}
        for name, credited in found.items()
        if name != rule and credited is not None
    }
    member = next(t for t in group.trajectories if t.trajectory_id == trajectory_id)
    return View(member, group, rule, chosen, others)


def as_dict(view: View) -> dict[str, Any]:
    """The view as JSON values."""
    sessions = {session.session_id: session for session in view.trajectory.sessions}
    return {
        "trajectory_id": view.trajectory.trajectory_id,
        "task_key": view.group.task_key,
        "group": {t.trajectory_id: t.reward for t in view.group.trajectories},
        "rule": view.rule,
        "reward": view.trajectory.reward,
        "usage_rank": view.credit.usage_rank,
        "advantage": view.credit.advantage,
        "usage": view.credit.usage,
        "sessions": [
            {
                "session_id": row.session_id,
                "kind": sessions[row.session_id].kind,
                "parent_session_id": sessions[row.session_id].parent_session_id,
                "contribution": row.contribution,
                "source": row.source,
                "gate": row.gate,
                "factor": row.factor,
                "usage_factor": row.usage_factor,
                "advantage": row.advantage,
                "others": {name: of[row.session_id] for name, of in view.others.items()},
            }
            for row in view.credit.sessions
        ],
        "spans": [
            {"call_id": s.call_id, "role": s.role, "opens": s.opened_session_id, "advantage": s.advantage}
            for s in view.credit.spans
        ],
    }


def as_tree(view: View) -> Node:
    """The view with each session under its parent, and the decision spans of each."""
    rewards = sorted((t.reward for t in view.group.trajectories if t.reward is not None), reverse=True)
    credit, reward = view.credit, view.trajectory.reward or 0.0
    top = Node(
        f"{view.trajectory.trajectory_id}  reward {reward:g} of {len(rewards)} attempts "
        f"(mean {sum(rewards) / len(rewards):.2f}), {view.rule} advantage {credit.advantage:+.3f}",
        f"were this group the whole batch; usage rank {credit.usage_rank:.2f}, usage {credit.usage:+.3f} of it",
    )
    rows = {row.session_id: row for row in credit.sessions}
    nodes: dict[str | None, Node] = {}
    for session in view.trajectory.sessions:
        row = rows.get(session.session_id)
        if row is None:
            continue
        said = f"{session.kind.value}  advantage {row.advantage:+.3f}"
        node = nodes.get(session.parent_session_id, top).add(Node(said, _details(row, view.others)))
        nodes[session.session_id] = node
        calls = {call.call_id for call in session.calls}
        for span in credit.spans:
            if span.call_id in calls:
                node.add(Node(f"{span.role.value} call {span.call_id}: {span.advantage:+.3f}"))
    return top


def _details(row: SessionCredit, others: Mapping[str, Mapping[str, float]]) -> str:
    """How a session came to its advantage, and what other rules would have given it."""
    known = "unknown" if row.contribution is None else f"{row.contribution:+.3f} ({row.source})"
    made = (
        f"outcome x {row.factor:.2f}, usage x {row.usage_factor:.2f}, shaped by {row.gate.value}; contribution {known}"
    )
    return "; ".join([made, *(f"{name} {of[row.session_id]:+.3f}" for name, of in others.items())])


def _of(result: GroupCredit, trajectory_id: str) -> TrajectoryCredit | None:
    return next((t for t in result.trajectories if t.trajectory_id == trajectory_id), None)
