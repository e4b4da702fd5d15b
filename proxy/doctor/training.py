"""Training: how jobs ended, whether weights are where they should be, whether what judges them can run."""

import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from mosaic.lease import is_taken
from mosaic.records import JobState
from mosaic.store import Store
from mosaic.store.jobs import Job
from mosaic.store.policies import LEASE, PolicyVersion
from mosaic.terminal import counted
from proxy.doctor.finding import Finding, note, ok, warning, wrong
from proxy.doctor.subject import Subject

ENDS = (JobState.PUBLISHED, JobState.FAILED, JobState.SKIPPED)
LEFT_OUT = "left_out_"
"""How the figures of a job begin that say what it did not train."""
LATEST = 20
"""Jobs that are looked at, the newest first."""


def jobs(subject: Subject) -> Iterator[Finding]:
    """The newest job ended well, and none was left where it died."""
    if subject.store is None:
        return
    if (left := subject.store.unsettled_job()) is not None:
        if is_taken(subject.store, LEASE):
            yield ok(f"{left.job_id} is at work, {left.state.value}")
        else:
            what = f"{left.job_id} was left {left.state.value}, and nobody works on it"
            step = "The next `mosaic train` takes it up; `mosaic train --fresh` gives it up."
            yield warning(what, "Its trajectories are not trained until then.", step)
    latest = [job for job in subject.store.jobs(LATEST) if job.state in ENDS]
    if latest and latest[0].state is JobState.SKIPPED:
        what = f"the newest job, {latest[0].job_id}, was skipped"
        yield note(what, latest[0].error or "", "`mosaic train --dry-run` says what one would train now.")
    ended = [job for job in latest if job.state is not JobState.SKIPPED]
    failed = sum(job.state is JobState.FAILED for job in ended)
    if not latest:
        yield note("no job has ended yet", "", "`mosaic train --dry-run` says what one would train.")
    elif not ended:
        return
    elif ended[0].state is JobState.FAILED:
        why = "The policy does not learn until jobs end well."
        said = ended[0].error or "it does not say why"
        what = f"the newest job that had something to learn from, {ended[0].job_id}, failed: {said}"
        yield wrong(what, why, "Do what it says, then `mosaic train`.")
    else:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(ended[0].ended_at or ended[0].created_at))
        yield ok(f"the newest weights were published {when}; {failed} of the last {counted(len(ended), 'job')} failed")
        yield from _left_out(subject.store, ended[0])


def _left_out(store: Store, job: Job) -> Iterator[Finding]:
    """What the job did not train, by reason. Older jobs' figures would count the same trajectories again."""
    figures = store.job_metrics(job.job_id).items()
    reasons = [f"{number:g} {name.removeprefix(LEFT_OUT)}" for name, number in figures if name.startswith(LEFT_OUT)]
    if reasons:
        yield note(f"the newest weights were trained without {', '.join(reasons)}", "", "See docs/training.md.")


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
    """What judges weights and trajectories can be run."""
    settings, held_out = subject.settings, subject.settings.held_out
    agent = None if held_out.tasks is None else shlex.join(held_out.agent)
    commands = {
        "train.gate": settings.train.gate,
        "held_out.agent": agent,
        "held_out.score": held_out.score,
        "score.command": settings.score.command,
    }
    for name, command in commands.items():
        if command is not None:
            yield _command(name, command)
    if held_out.tasks is not None and not held_out.tasks.is_file():
        what = f"the tasks of held_out are not at {held_out.tasks}"
        yield wrong(what, "A job with this gate fails.", "Correct held_out.tasks.")
    if settings.train.gate is None and held_out.tasks is None:
        why = "A version that is worse at the task goes live all the same."
        yield note("no gate is set", why, "See the gate in docs/training.md.")


def _command(name: str, command: str) -> Finding:
    """Whether its first word is a program, or sets a variable."""
    try:
        program = shlex.split(command)[0]
    except (ValueError, IndexError):
        program = ""
    if program and (shutil.which(program) is not None or "=" in program):
        return ok(f"{name} begins with a program that is there")
    why = "Nothing is scored by it." if name == "score.command" else "A job with this gate fails."
    return wrong(f"{name} cannot be run: {command!r} begins with no program", why, f"Correct {name}.")
