"""Where calls are kept: the database, the journal before it, and the disks of both."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import insert

from mosaic.errors import StoreError
from mosaic.store.database import HEAD, Database
from mosaic.store.models import CounterRow
from mosaic.urls import shown_url
from proxy.doctor.finding import Finding, note, ok, warning, wrong
from proxy.doctor.subject import Subject, sqlite_file
from proxy.progress import Progress
from proxy.reading import waiting_calls

ALIVE_S = 10.0
"""Seconds in which a writer that works shows it."""
LITTLE_BYTES = 2**30
"""Free bytes of a disk below which recording is about to end."""
LOW_BYTES = 5 * 2**30
"""Free bytes that are less than a checkpoint or a night of calls may need."""


def database(subject: Subject) -> Iterator[Finding]:
    """It can be opened, has this release's schema, and takes what is written."""
    shown, file = shown_url(subject.settings.database), sqlite_file(subject.settings.database)
    if subject.refusal is not None:
        why = "Calls are kept in the journal alone, and nothing can be listed, rewarded or trained."
        yield wrong(subject.refusal.message.rstrip("."), why, subject.refusal.next_step)
    elif subject.store is None:
        yield from _not_there(shown, file)
    elif (refused := _refused(subject.store.database)) is not None:
        why = "It can be read, but nothing new gets into it; calls wait in the journal."
        yield wrong(f"database {shown} takes nothing: {refused.message.rstrip('.')}", why, refused.next_step)
    else:
        yield ok(f"database {shown} can be written, and has schema {HEAD}")


def _not_there(shown: str, file: Path | None) -> Iterator[Finding]:
    if file is None or _writable(file.parent):
        yield note(f"there is no database {shown} yet", "", "`mosaic serve` makes it.")
    else:
        step = "Set database to a file in a folder that this user may write to."
        yield wrong(
            f"database {shown} cannot be made: {file.parent} cannot be written", "Nothing can be recorded.", step
        )


class _TakenBack(Exception):
    """Ends a transaction without leaving anything."""


def _refused(opened: Database) -> StoreError | None:
    """Why it takes nothing that is written."""
    try:
        with opened.writing() as connection:
            connection.execute(insert(CounterRow), {"name": "doctor", "reason": str(time.time()), "value": 1})
            raise _TakenBack
    except _TakenBack:
        return None
    except StoreError as error:
        return error


def journal(subject: Subject) -> Iterator[Finding]:
    """Its folder can be written; calls leave it for the database."""
    spool = subject.settings.spool
    if not _writable(spool):
        step = "Set spool to a folder that this user may write to."
        yield wrong(f"the journal's folder {spool} cannot be written", "`mosaic serve` cannot record.", step)
        return
    if aside := sorted(one.name for one in spool.glob("damaged-*")):
        why = "Calls in them could not be read in full; those that could are stored."
        yield warning(f"{len(aside)} damaged files in {spool}", why, "Look at them, report it, then remove them.")
    waiting = waiting_calls(spool)
    if not waiting:
        yield ok("no call waits to be stored")
        return
    progress = Progress(spool)
    alive_at, refused = progress.alive[1], progress.error if progress.refusing else None
    progress.close()
    if refused is None and 0 <= time.monotonic() - alive_at < ALIVE_S:
        yield ok(f"{waiting} calls are on their way to the database")
        return
    reason = f"; the database refuses: {refused}" if refused else "; no writer is at work"
    step = "They are stored once a proxy runs and the database takes them."
    yield wrong(
        f"{waiting} calls wait in {spool}{reason}", "They are safe there, but nobody sees or trains them.", step
    )


def disk(subject: Subject) -> Iterator[Finding]:
    """There is room where calls and checkpoints go."""
    settings = subject.settings
    file = sqlite_file(settings.database)
    places = {"the journal": settings.spool, "checkpoints": settings.train.output}
    if file is not None:
        places["the database"] = file.parent
    for folder, names in _by_disk(places).items():
        free = shutil.disk_usage(folder).free
        what = f"{free / 2**30:.1f} GiB are free for {' and '.join(names)}"
        if free < LITTLE_BYTES:
            why = "When nothing is free calls are no longer recorded, and a job cannot write its checkpoint."
            yield wrong(what, why, "Make room: `mosaic db prune`, a smaller `train.keep_checkpoints`, another disk.")
        elif free < LOW_BYTES:
            why = "A checkpoint, or some days of calls, may not fit."
            yield warning(what, why, "Make room, or set retention_days and train.keep_checkpoints.")
        else:
            yield ok(what)


def _by_disk(places: dict[str, Path]) -> dict[Path, list[str]]:
    """A folder of each disk, with what goes there."""
    found: dict[int, tuple[Path, list[str]]] = {}
    for name, wanted in places.items():
        folder = _existing(wanted)
        found.setdefault(folder.stat().st_dev, (folder, []))[1].append(name)
    return dict(found.values())


def _writable(folder: Path) -> bool:
    """Whether a file can be made there, or the folder itself; one without a name, which is gone at once, is made."""
    try:
        with tempfile.TemporaryFile(dir=_existing(folder)):
            return True
    except OSError:
        return False


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    folder = folder.absolute()
    return next(one for one in (folder, *folder.parents) if one.is_dir())
