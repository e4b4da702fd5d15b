"""The commands that show what lineage decided: `mosaic show`, `explain`, `unlinked` and `certificate`."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import typer

from mosaic.lineage.model import Rung
from mosaic.records import Call, Session, Trajectory, TrajectoryState
from mosaic.settings import load
from mosaic.store import Store
from mosaic.store.explaining import Certificate
from mosaic.store.progress import task_texts
from mosaic.terminal import DATABASE, JSON, TRAJECTORY, counted, how_ended, print_json, print_table, printable
from mosaic.tree import Node, print_tree

TASK_CHARACTERS = 120
"""Of a task's text, before the tree of an attempt at it."""


def show(
    trajectory: str = TRAJECTORY,
    *,
    calls: bool = typer.Option(False, "--calls", help="Also list the calls of each session, for `mosaic explain`."),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Show a trajectory's task and tree of sessions: kind, calls, tokens, score, reward, and what of it can be trained.

    A session names its kind, what its calls sampled, how it ended and why it stands where it stands.

        mosaic show run-17
        mosaic show run-17 --calls
        mosaic show run-17 --json
    """
    store = _store(database)
    trajectory = store.whole_trajectory_id(trajectory)
    found, links = store.trajectory(trajectory), store.links(trajectory)
    made, certified = store.fidelity(trajectory), store.certificate(trajectory)
    with store.database.reading() as connection:
        task = task_texts(connection, [found.task_key]).get(found.task_key)
    if as_json:
        ids = {s.session_id: [c.call_id for c in s.calls] for s in found.sessions}
        print_json(
            {
                "trajectory_id": trajectory,
                "task_key": found.task_key,
                "task": task,
                "reward": found.reward,
                "state": found.state,
                "sessions": [{**link, "calls": ids.get(link["session_id"], [])} for link in links],
                "fidelity": made,
                "certificate": asdict(certified),
            }
        )
        return
    print_tree(_tree(found, task, links, store.inexact_calls(trajectory) if calls else None))
    if made:
        typer.echo(f"exact prefix mode: {', '.join(f'{number} {kind}' for kind, number in made.items())}")
    typer.echo(_certified(certified))


def explain(
    call: str = typer.Argument(
        help="Id of the call: `mosaic show ID --calls`, `mosaic tail --json`, x-mosaic-call-id."
    ),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Say why a call stands where it stands, and what else was considered.

    Evidence and scores are those of docs/lineage.md.

        mosaic explain 5f0c9d2e41aa4b0f
        mosaic explain 5f0c9d2e41aa4b0f --json
    """
    store = _store(database)
    found = store.explain(store.whole_call_id(call))
    if as_json:
        print_json(found)
        return
    for line in _explained(found):
        typer.echo(line)


def unlinked(
    limit: int = typer.Option(50, min=1, max=100_000, help="How many, newest first."),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """List the sessions that are roots for want of evidence, for review.

    A long list means that an agent's traffic says too little of what belongs together: name the attempt in the path
    (`/t/NAME/v1`), the key (`mosaic key`) or the header `x-mosaic-trajectory`.

        mosaic unlinked
        mosaic unlinked --limit 1000 --json
    """
    found = _store(database).unlinked(limit)
    if as_json:
        print_json([asdict(one) for one in found])
        return
    if not found:
        typer.echo("none: every session is linked to another or is the first of its trajectory")
        return
    rows = [(u.call_id, u.trajectory_id, u.undecided or "nothing", len(u.candidates), u.text[:60]) for u in found]
    print_table("call trajectory undecided_by candidates begins", rows)


def certificate(
    trajectory: str | None = typer.Argument(None, help="One trajectory; all of them when left out."),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Count which calls are exact, spliced, inexact or auxiliary, and where sessions fork, by cause.

    Only exact calls of the task are trained; every call is counted once.

        mosaic certificate
        mosaic certificate run-17 --json
    """
    store = _store(database)
    if trajectory is not None:
        trajectory = store.whole_trajectory_id(trajectory)
        store.trajectory(trajectory)
    found = store.certificate(trajectory)
    if as_json:
        print_json(asdict(found))
        return
    typer.echo(_certified(found))


def _tree(
    trajectory: Trajectory,
    task: str | None,
    links: list[dict[str, Any]],
    inexact: Mapping[str, Mapping[str, Any]] | None,
) -> Node:
    """The trajectory with its task and each session under its parent, and its calls if it is told how the inexact ones
    ended."""
    reward = "no reward yet" if trajectory.reward is None else f"reward {trajectory.reward:g}"
    asked = " ".join((task or "").split())[:TASK_CHARACTERS]
    top = Node(f"{trajectory.trajectory_id}  {trajectory.state.value}, {reward}", asked)
    nodes: dict[str | None, Node] = {}
    for session, link in zip(trajectory.sessions, links, strict=True):
        told = _session(session, link, over=trajectory.state is not TrajectoryState.OPEN)
        nodes[session.session_id] = node = nodes.get(session.parent_session_id, top).add(Node(told, _why(link)))
        for call in session.calls if inexact is not None else ():
            node.add(_call(call, (inexact or {}).get(call.call_id)))
    return top


def _call(call: Call, ended: Mapping[str, Any] | None) -> Node:
    """A call with what it is worth to training; `ended` says how an inexact one ended."""
    if ended is None:
        return Node(f"{call.call_id}  {call.auxiliary or 'exact'}")
    worth = ", ".join(filter(None, (call.auxiliary, _worth(ended))))
    return Node(f"{call.call_id}  {worth}", _failed(ended))


def _worth(ended: Mapping[str, Any]) -> str:
    return "exact" if ended["exact"] else printable(f"inexact: {ended['inexact_reason'] or 'unknown'}")


def _failed(ended: Mapping[str, Any]) -> str:
    """How a call failed, on one line; nothing for one that ended well."""
    said = "" if ended["status"] == "ok" else how_ended(ended["status"], ended["http_status"])
    return printable(": ".join(filter(None, (said, " ".join((ended["error"] or "").split())))))


def _session(session: Session, link: Mapping[str, Any], *, over: bool) -> str:
    sampled = sum(len(sample.ids_T) for call in session.calls for sample in call.samples)
    counts = {
        "auxiliary": sum(call.auxiliary is not None for call in session.calls),
        "inexact": sum(not call.exact for call in session.calls),
    }
    versions = sorted({call.policy_version for call in session.calls})
    end = link["ended"] or ("silent" if over else "open")
    reward = "" if link["reward"] is None else f", reward {link['reward']:g}"
    return (
        f"{session.kind.value}  {counted(len(session.calls), 'call')}, {counted(sampled, 'sampled token')}"
        + "".join(f", {number} {name}" for name, number in counts.items() if number)
        + f", version {' '.join(map(str, versions))}, {end}{reward}"
    )


def _why(link: Mapping[str, Any]) -> str:
    """Why a session stands where it stands; nothing for the one root that needs no reason."""
    if link["kind"] == "root":
        return "" if link["score"] == 1 else "(nothing links it to another session)"
    return f"({link['rung']}, score {link['score']:.2f}: {_words(link['evidence'])})"


def _explained(found: Mapping[str, Any]) -> list[str]:
    session, opens = found["session"], found["opens_session"]
    place = f"opens {found['session_id']}" if opens else f"stands in {found['session_id']}"
    lines = [f"{found['call_id']}: {place} of {found['trajectory_id']}"]
    lines += [f"  {name:8} {found[name]}" for name in ("says", "answers") if found[name]]
    lines += [f"  ended    {failed}" for failed in (_failed(found),) if failed]
    lines.append(f"  worth    {_worth(found)}")
    if found["extends"] is not None:
        lines.append(f"  extends  {found['extends']['call']}: {found['extends']['answers']}")
    if found["auxiliary"] is not None:
        lines.append(f"  serves the framework ({found['auxiliary']}): not trained")
    why = None if found["rung"] is None else _reason(found)
    lines.append(f"  why      {why or 'recorded by an older release: `mosaic relink` finds out why it stands here'}")
    if found["attribution"] != "lineage":
        lines.append(f"  its trajectory was named by the {found['attribution']}")
    parent = f" under {session['parent']}" if session["parent"] else ""
    reason = _reason(session)
    lines.append(f"  session  {session['kind']}{parent}" + ("" if opens and reason == why else f": {reason}"))
    considered = [*found["considered"], *(r for r in session["considered"] if opens and not found["considered"])]
    lines += [f"  also considered: {_words(other)}" for other in considered] or ["  nothing else was considered"]
    return [printable(line) for line in lines]


def _reason(decided: Mapping[str, Any]) -> str:
    """What decided where a call or a session stands."""
    evidence = {name: value for name, value in decided["evidence"].items() if name != "first"}  # said in words
    because = f" ({_words(evidence)})" if evidence else ""
    if decided["rung"] != Rung.NONE:
        return f"{decided['rung']}, score {decided['score']:.2f}{because}"
    if decided["score"] == 1:
        return "first call of its trajectory"
    return f"nothing links it to an earlier call{because}"


def _certified(found: Certificate) -> str:
    """The certificate in lines."""
    calls = {"exact": found.exact, "spliced": found.spliced} | {f"inexact: {c}": n for c, n in found.inexact.items()}
    calls |= {f"auxiliary: {kind}": n for kind, n in found.auxiliary.items()}
    forks = ", ".join(f"{n} {cause}" for cause, n in found.forks.items()) or "none"
    return (
        f"calls: {', '.join(f'{n} {name}' for name, n in calls.items() if n) or 'none'}\n"
        f"sessions: {found.sessions} in {counted(found.trajectories, 'trajectory')}; "
        f"{found.unlinked} unlinked; forks: {forks}"
    )


def _words(value: object) -> str:
    """Evidence as a person reads it: `items 3, of 3, tool task`."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {_words(inside)}".rstrip() for name, inside in value.items())
    if isinstance(value, list | tuple):
        return " and ".join(map(_words, value)) or "none"
    if isinstance(value, bool) or value is None:
        return "none" if value is None else "yes" if value else "no"
    return printable(str(value))


def _store(database: str | None) -> Store:
    settings = load(database=database)
    return Store(settings.database, settings.reward_window_s, create=False)
