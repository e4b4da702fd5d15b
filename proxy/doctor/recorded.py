"""What was recorded: what the counters say, how much is linked, how much of it can be trained, and is it scored."""

import time
from collections import Counter
from collections.abc import Iterator

from sqlalchemy import func, select

from mosaic.store import Store
from mosaic.store.models import CallRow, LinkRow, TrajectoryRow
from proxy.doctor.finding import Finding, Level, in_words, note, ok, warning, wrong
from proxy.doctor.subject import Subject

DAY_S = 24 * 3600.0
MOST = 20_000
"""Newest rows that are looked at."""
GOOD_SHARE = 0.9
"""Share of a day's calls that can be trained, from which on all is well."""
BAD_SHARE = 0.5
ENOUGH = 8
"""Rewards of which it says something that they are all the same."""
SURE = 0.9
"""Score of lineage from which on a link is sure; below 0.6 there is none."""
LOUD = {
    "rejected_calls": "Look at rejected.jsonl in the spool folder, and report it as a fault of Mosaic's.",
    "journal_calls_unreadable": "Calls in damaged files of the spool folder; they are kept there as damaged-*.",
    "journal_files_unreadable": "Files in the spool folder that cannot be opened; calls in them are not stored.",
    "flattened_calls": "Calls in which what is nested over 254 deep is kept as text; their tokens are as always.",
    "untold_calls": "Stored calls that /metrics and spans lack; the proxy's log has the reason.",
    "interrupted_calls": "Calls in flight when a proxy was killed; stored with what was seen.",
    "inexact_calls": "Calls that cannot be trained, by reason; few are normal (aborted, failed), many are not.",
    "exact_mode_fallbacks": "Calls whose prompt is not what was sampled before, by reason; see docs/fidelity.md.",
    "unlinked_sessions": "Sessions that not enough evidence links to another; see `mosaic unlinked`.",
    "late_rewards": "Rewards that came after the trajectory was settled; see reward_window_s.",
    "failed_trajectories": "Attempts whose infrastructure failed; they are not trained.",
    "truncated_trajectories": "Attempts that were cut short; they are not trained.",
    "scorer_failures": "Trajectories that a scorer failed on; they stay closed. See `mosaic score --dry-run`.",
    "scores_not_used": "Scores that came when the trajectory was not closed any more, by its state.",
    "tracker_failures": "Trackers that failed during a job and were left out; see train.trackers.",
}
"""Counters that a person should know of, and what they mean. All others are in `/metrics` and on the health page."""
WORDS = {"none": "with no evidence at all"}
"""Reasons of counters that say nothing by their name."""
LEVELS = {
    "rejected_calls": Level.WRONG,
    "journal_calls_unreadable": Level.WARNING,
    "journal_files_unreadable": Level.WARNING,
}


def counters(subject: Subject) -> Iterator[Finding]:
    """What was dropped, skipped or done another way since the database was made."""
    if subject.store is None:
        return
    counted = subject.store.counters()
    loud = {name: counted[name] for name in LOUD if counted.get(name)}
    for name, reasons in loud.items():
        said = ", ".join(f"{number} {_told(name, reason)}" for reason, number in sorted(reasons.items()))
        yield Finding(LEVELS.get(name, Level.NOTE), f"{name.replace('_', ' ')}: {said}", "", LOUD[name])
    if not loud:
        yield ok("nothing was dropped, skipped or done another way")


def _told(name: str, reason: str) -> str:
    return in_words(reason) if name == "inexact_calls" else WORDS.get(reason, reason)


def lineage(subject: Subject) -> Iterator[Finding]:
    """How sure the links of the newest sessions are."""
    if subject.store is None:
        return
    newest = select(LinkRow.kind, LinkRow.score, LinkRow.rivals).join(CallRow, CallRow.session_id == LinkRow.session_id)
    newest = newest.where(CallRow.parent_call_id.is_(None), CallRow.auxiliary.is_(None))
    with subject.store.database.reading() as connection:
        rows = connection.execute(newest.order_by(CallRow.seq.desc()).limit(1000)).all()
    linked = [row.score for row in rows if row.kind != "root"]
    unlinked = sum(row.kind == "root" and row.rivals != "[]" for row in rows)
    sure = sum(score >= SURE for score in linked)
    what = f"of the newest {len(rows)} sessions {len(linked)} are linked to another, {sure} of them for sure"
    if unlinked > len(rows) * (1 - GOOD_SHARE):
        why = "Sessions without their link are attempts of their own, with a reward of nobody's."
        step = "See `mosaic unlinked`; name the attempt in the path, the key or x-mosaic-trajectory (docs/lineage.md)."
        yield warning(f"{what}; for {unlinked} something spoke, and not enough", why, step)
    elif rows:
        yield ok(what)


def trainable(subject: Subject) -> Iterator[Finding]:
    """The share of the last day's calls whose tokens are the engine's own."""
    if subject.store is None:
        return
    calls = _last_day(subject.store)
    if not calls:
        yield note("no call of the task has ended in the last day", "There is nothing new to train.", "")
        return
    total, exact = calls.total(), calls[None]
    what = f"{exact} of the {total} calls of the last day can be trained ({exact / total:.0%})"
    if exact >= GOOD_SHARE * total:
        yield ok(what)
        return
    reasons = ", ".join(f"{number} {in_words(reason)}" for reason, number in calls.most_common() if reason is not None)
    why = "The rest counts as context only; what the policy did in them is not learnt from."
    step = "Look at the check `capture`, at `mosaic certificate`, and at why calls fail or are aborted."
    yield (wrong if exact < BAD_SHARE * total else warning)(f"{what}; the others: {reasons}", why, step)


def _last_day(store: Store) -> Counter[str | None]:
    """Calls of the task by why they cannot be trained; None: they can."""
    newest = select(CallRow.exact, CallRow.inexact_reason, CallRow.auxiliary, CallRow.ended_at)
    rows = newest.order_by(CallRow.seq.desc()).limit(MOST).subquery()
    query = select(rows.c.exact, rows.c.inexact_reason, func.count())
    query = query.where(rows.c.auxiliary.is_(None), rows.c.ended_at > time.time() - DAY_S)
    with store.database.reading() as connection:
        found = connection.execute(query.group_by(rows.c.exact, rows.c.inexact_reason))
        return Counter({None if exact else reason or "unknown": number for exact, reason, number in found})


def rewards(subject: Subject) -> Iterator[Finding]:
    """Somebody says how trajectories went, and not the same of all."""
    if subject.store is None:
        return
    newest = select(TrajectoryRow.reward, TrajectoryRow.state).order_by(TrajectoryRow.created_at.desc()).limit(1000)
    with subject.store.database.reading() as connection:
        rows = connection.execute(newest).all()
    over = [row.reward for row in rows if row.state != "open"]
    given = [reward for reward in over if reward is not None]
    what = f"of the newest {len(over)} trajectories that are over {len(given)} have a reward"
    if over and not given:
        why = "Without rewards there is nothing to learn from."
        yield note(what, why, "Give them: `mosaic reward`, POST /api/trajectories/ID/reward, or [score].")
    elif len(given) >= ENOUGH and len(set(given)) == 1:
        why = "Attempts at a task are compared with each other: equal rewards teach nothing."
        yield warning(f"{what}, and it is {given[0]:g} every time", why, "Look at whether the scorer tells them apart.")
    elif over:
        yield ok(what)
