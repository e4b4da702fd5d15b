"""Which database the calls in a spool folder go to: one, for as long as any proxy uses the folder.

The folder has one writer for all proxies on it, which brings their calls into its own database. The database's name
stands in a small file that each of them holds locked together with the others.
"""

import contextlib
import fcntl
import os
from pathlib import Path

import structlog
from sqlalchemy.engine import make_url

from mosaic.errors import SettingsError
from mosaic.settings import Settings
from mosaic.urls import shown_url
from proxy import owned
from proxy.reading import waiting_calls

NAME = ".database"
MOST = 4096
"""Bytes of a name."""

log = structlog.get_logger()


class Belonging:
    """This process's word that a folder's calls go to its database; others that say the same share the folder."""

    def __init__(self, settings: Settings) -> None:
        """Raises `SettingsError` while a process uses the folder for another database."""
        self._descriptor: int | None = None
        if not settings.record:
            return
        ours = _named(settings.database)
        try:
            settings.spool.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(settings.spool / NAME, os.O_RDWR | os.O_CREAT, 0o600)
            theirs = _agreed(self._descriptor, ours, settings.spool)
        except OSError as error:  # a full disk is no reason not to serve; a folder that is none is told of elsewhere
            log.warning("the spool folder is not marked with its database", error=str(error))
            return
        if theirs not in (ours, ""):
            self.close()
            raise SettingsError(
                f"the folder {settings.spool} is in use by a proxy that records to {theirs}, not to {ours}.",
                "Give this one a folder of its own: MOSAIC_SPOOL=var/spool-2, or `spool` in mosaic.toml.",
            )

    def close(self) -> None:
        """Take it back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _agreed(descriptor: int, ours: str, folder: Path) -> str:
    """The database that stands there, ours where nobody else uses the folder. Raises `OSError`."""
    if owned.take(descriptor):
        before = _read(descriptor)
        if before not in (ours, "") and (calls := waiting_calls(folder)):
            log.warning("calls that wait here for another database go to this one", calls=calls, other=before)
        if before != ours:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, ours.encode("utf-8", "surrogateescape"), 0)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return _read(descriptor)  # between the two locks another one may have come


def _read(descriptor: int) -> str:
    return os.pread(descriptor, MOST, 0).decode("utf-8", "surrogateescape")


def _named(database: str) -> str:
    """A URL without its password; of a file, wherever it is named from."""
    with contextlib.suppress(Exception):  # what is no URL is told of when it is opened
        url = make_url(database)
        if url.get_backend_name() == "sqlite" and url.database:
            return f"sqlite:///{Path(url.database).resolve()}"
    return shown_url(database)
