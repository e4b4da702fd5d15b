"""Training: how jobs ended, whether weights are where they should be, whether what judges them can run."""

import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from mosaic.records import JobState
from mosaic.store.policies import PolicyVersion
from proxy.doctor.finding import Finding, note, ok, warning, wrong
from proxy.doctor.subject import Subject

LEASE = "training"
LATEST = 20
"""Jobs that are looked at, the newest first."""


def jobs(subject: Subject) -> Iterator[Finding]:
    """The newest job ended well, and none was left where it died."""
    if subject.store is None:
        return
    if (left := subject.store.unsettled_job()) is not None:
        if subject.store.lease_holder(LEASE) is not None:
            yield ok(f"{left.job_id} is at work, {left.state.value}")
        else:
            what = f"{left.job_id} was left {left.state.value}, and nobody works on it"
            step = "The next `mosaic train` takes it up; `mosaic train --fresh` gives it up."
            yield warning(what, "Its trajectories are not trained until then.", step)
    ended = [job for job in subject.store.jobs(LATEST) if job.state in (JobState.PUBLISHED, JobState.FAILED)]
    failed = sum(job.state is JobState.FAILED for job in ended)
    if not ended:
        yield note("no job has ended yet", "", "`mosaic train --dry-run` says what one would train.")
    elif ended[0].state is JobState.FAILED:
        why = "The policy does not learn until jobs end well."
        what = f"the newest job, {ended[0].job_id}, failed: {ended[0].error or 'it does not say why'}"
        yield wrong(what, why, "Do what it says, then `mosaic train`.")
    else:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(ended[0].ended_at or ended[0].created_at))
        yield ok(f"the newest job was published {when}; {failed} of the last {len(ended)} failed")


def policy(subject: Subject) -> Iterator[Finding]:
    """The live weights are on disk, and no version is held or was refused."""
    if subject.store is None:
        return
    live, path = subject.store.policy()
    versions = subject.store.versions()
    if path is not None and not Path(path).is_dir():
        why = "The engine cannot be started anew on what it serves, and no job can begin from it."
        step = "Bring the folder back, or run this on the machine that trains; else `mosaic policy rollback`."
        yield wrong(f"the checkpoint of live version {live} is not at {path}", why, step)
    if any(version.pinned for version in versions):
        step = "Let go of it: `mosaic policy pin --off`."
        yield note(f"version {live} is pinned", "No job trains or publishes meanwhile.", step)
    if versions and versions[-1].state == "failed":
        yield _refused(versions[-1], live)
    elif path is not None:
        yield ok(f"version {live} is live")


def _refused(version: PolicyVersion, live: int) -> Finding:
    why = "Its weights are those of before; what it was trained on counts as trained only where a gate refused it."
    step = f"See `mosaic policy show {version.version}` for the job's error."
    return warning(f"version {version.version} did not go live; {live} serves on", why, step)


def gate(subject: Subject) -> Iterator[Finding]:
    """The commands that judge weights and trajectories can be run."""
    train, score = subject.settings.train, subject.settings.score
    for name, command in (("train.gate", train.gate), ("score.command", score.command)):
        if command is None:
            continue
        try:
            program = shlex.split(command)[0]
        except (ValueError, IndexError):
            program = ""
        if not program or (shutil.which(program) is None and "=" not in program):
            why = "Jobs fail at it, after they have trained." if name == "train.gate" else "Nothing is scored by it."
            yield wrong(f"{name} cannot be run: {command!r} begins with no program", why, f"Correct {name}.")
        else:
            yield ok(f"{name} begins with a program that is there")
    if train.gate is None:
        yield note(
            "no gate is set", "A version that is worse at the task goes live.", "See `gate` in docs/training.md."
        )
