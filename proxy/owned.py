"""Files that belong to one process for as long as it lives, and that others may take over once it has died.

The owner holds an advisory lock (`flock`), which the kernel gives up with the process, however that ends. A process id
would not do: containers share folders, and ids come back.
"""

import fcntl
import os
import secrets
import time
from pathlib import Path

import structlog

log = structlog.get_logger()


def create(folder: Path, prefix: str) -> tuple[Path, int]:
    """A new, empty, locked file and its descriptor (append mode). Its name sorts after those of earlier ones.

    The folder's entry is durable when this returns. Raises `OSError`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{prefix}{time.time_ns():020}-{secrets.token_hex(4)}"
    making = path.with_name(f".{path.name}")
    descriptor = os.open(making, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND, 0o600)
    try:
        # Locked under another name first: nobody finds the file before it has its owner.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.rename(making, path)
        sync_folder(folder)
    except OSError:
        os.close(descriptor)
        making.unlink(missing_ok=True)
        raise
    return path, descriptor


def take(descriptor: int) -> bool:
    """Make an open file ours if its owner has let go of it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def remove(path: Path, descriptor: int) -> None:
    """Remove a file that we own. One that cannot be removed is read again, which changes nothing."""
    try:
        path.unlink()
    except OSError as error:
        log.warning("file of the journal not removed", path=str(path), error=str(error))
    os.close(descriptor)


def set_aside(path: Path, descriptor: int) -> None:
    """Keep a file that we own and that cannot be read in full, under a name that nobody takes over."""
    try:
        path.rename(path.with_name(f"damaged-{path.name}"))
    except OSError as error:
        log.warning("damaged file of the journal not put aside", path=str(path), error=str(error))
    os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
