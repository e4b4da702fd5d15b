"""`mosaic doctor`: what is wrong between agent, engine and database, and what to do about it."""

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import typer

from mosaic.errors import MosaicError
from mosaic.exit_codes import ExitCode
from mosaic.settings import Settings, load, shown_url
from mosaic.store import Store
from mosaic.terminal import JSON, print_json, print_table
from proxy.progress import Progress
from proxy.reading import waiting_calls

TIMEOUT_S = 3.0
ALIVE_S = 10.0
"""Seconds in which a writer that works shows it."""
LOUD = {
    "rejected_calls": "Look at rejected.jsonl in the spool folder, and report it as a fault of Mosaic's.",
    "journal_calls_unreadable": "Calls in damaged files of the spool folder; they are kept there as damaged-*.",
    "interrupted_calls": "Calls in flight when a proxy was killed; stored with what was seen.",
    "inexact_calls": "Calls that cannot be trained, by reason; few are normal (aborted, failed), many are not.",
    "exact_mode_fallbacks": "Calls whose prompt is not what was sampled before, by reason; see docs/fidelity.md.",
    "unlinked_sessions": "Sessions that not enough evidence links to another; see `mosaic unlinked`.",
    "late_rewards": "Rewards that came after the trajectory was settled; see reward_window_s.",
    "left_out_of_training": "What training jobs left out, by reason.",
    "failed_trajectories": "Attempts whose infrastructure failed; they are not trained.",
    "truncated_trajectories": "Attempts that were cut short; they are not trained.",
    "scorer_failures": "Trajectories that a scorer failed on; they stay closed. See `mosaic score --dry-run`.",
    "scores_not_used": "Scores that came when the trajectory was not closed any more, by its state.",
    "tracker_failures": "Trackers that failed during a job and were left out; see train.trackers.",
}
"""Counters that a person should know of, and what they mean."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: str
    """`ok`, `note` or `wrong`."""
    what: str
    next_step: str = ""


def doctor(as_json: bool = JSON) -> None:
    """Look at the engine, the database, the journal and the counters; exits with 1 when something is wrong.

    Each finding says what to do about it.

        mosaic doctor
        mosaic doctor --json
    """
    found = findings(load())
    if as_json:
        print_json([asdict(finding) for finding in found])
    else:
        print_table("level finding next", [(f.level, f.what, f.next_step) for f in found])
    if any(finding.level == "wrong" for finding in found):
        raise typer.Exit(ExitCode.FAILURE)


def findings(settings: Settings) -> list[Finding]:
    """All that was looked at, in order."""
    return list(_look(settings))


def _look(settings: Settings) -> Iterator[Finding]:
    yield _engine(settings)
    yield from _journal(settings)
    try:
        store = Store(settings.database)
    except MosaicError as error:
        yield Finding("wrong", error.message, error.next_step)
        return
    try:
        yield Finding("ok", f"database {shown_url(settings.database)} can be used")
        version, path = store.policy()
        yield Finding("ok", f"live policy version {version}" + (f" ({path})" if path else ""))
        yield from _counters(store)
    finally:
        store.close()


def _engine(settings: Settings) -> Finding:
    request = urllib.request.Request(f"{settings.upstream.rstrip('/')}/models")
    if settings.upstream_api_key is not None:
        request.add_header("authorization", f"Bearer {settings.upstream_api_key.get_secret_value()}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            return Finding("ok", f"engine {settings.upstream} answers")
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Finding("wrong", f"engine {settings.upstream} does not answer: {reason}", "Start vLLM, or set upstream.")


def _journal(settings: Settings) -> Iterator[Finding]:
    waiting = waiting_calls(settings.spool)
    if not waiting:
        yield Finding("ok", "no call waits to be stored")
        return
    progress = Progress(settings.spool)
    alive_at, refused = progress.alive[1], progress.error if progress.refusing else None
    progress.close()
    if refused is None and 0 <= time.monotonic() - alive_at < ALIVE_S:
        yield Finding("ok", f"{waiting} calls are on their way to the database")
        return
    why = f"; the database refuses: {refused}" if refused else "; no writer is at work"
    step = "They are stored once a proxy runs and the database takes them."
    yield Finding("wrong", f"{waiting} calls wait in {settings.spool}{why}", step)


def _counters(store: Store) -> Iterator[Finding]:
    counters = store.counters()
    for name, meaning in LOUD.items():
        if reasons := counters.get(name):
            said = ", ".join(f"{number} {reason}" for reason, number in sorted(reasons.items()))
            level = "wrong" if name == "rejected_calls" else "note"
            yield Finding(level, f"{name.replace('_', ' ')}: {said}", meaning)
