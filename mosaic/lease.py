"""A lease that a process holds while it works, and renews by itself.

Leases lie in the database, so they hold between hosts. One whose owner died on this host is free at once; elsewhere it
is free when it has run out. An owner is a host, its namespace of process ids, a process and when that began.
"""

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from mosaic.errors import LeaseTaken, StoreError
from mosaic.store import Store

LEASE_S = 90.0
"""A process of another host that dies leaves its work to others after this long."""

log = structlog.get_logger()


@contextmanager
def held(store: Store, name: str, seconds: float = LEASE_S) -> Iterator["Lease"]:
    """Hold the lease for the block. Raises `LeaseTaken`."""
    lease = Lease(store, name, seconds)
    if not lease.take():
        raise LeaseTaken(
            f"another process does this already ({name}: {store.lease_holder(name)}).",
            f"Wait for it to end; if its host died, its lease runs out within {seconds:.0f} s.",
        )
    with lease.renewed():
        yield lease


class Lease:
    """One process's claim to some work."""

    def __init__(self, store: Store, name: str, seconds: float = LEASE_S) -> None:
        self._store = store
        self._name = name
        self._seconds = seconds
        self.owner = f"{_process(os.getpid())}/{secrets.token_hex(4)}"
        self._held = False
        self._lost = threading.Event()
        self._stop = threading.Event()

    def take(self) -> bool:
        """Take it, or keep it; False while another process has it."""
        self._held = self._store.take_lease(self._name, self.owner, self._seconds)
        if not self._held:
            other = self._store.lease_holder(self._name)
            if other is not None and is_gone(other):
                self._store.give_lease(self._name, other)
                self._held = self._store.take_lease(self._name, self.owner, self._seconds)
        return self._held

    def give(self) -> None:
        """Leave the work to others."""
        with contextlib.suppress(StoreError):  # it runs out by itself
            self._store.give_lease(self._name, self.owner)

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew it for the block, from a thread, as long as it is held; given back at its end."""
        thread = threading.Thread(target=self._renew, name=f"lease-{self._name}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
            self.give()

    def check(self) -> None:
        """Raises `LeaseTaken` when another process took it: this one was stopped for longer than the lease."""
        if self._lost.is_set():
            raise LeaseTaken(f"this process lost its lease on {self._name}.", "Another one goes on with the work.")

    def _renew(self) -> None:
        while not self._stop.wait(self._seconds / 3):
            try:
                if self._held and not self._store.take_lease(self._name, self.owner, self._seconds):
                    self._held = False
                    self._lost.set()
            except StoreError as error:
                log.warning("lease not renewed", lease=self._name, error=str(error))


def is_taken(store: Store, name: str) -> bool:
    """Whether somebody does this work now, as far as is known here."""
    owner = store.lease_holder(name)
    return owner is not None and not is_gone(owner)


def is_gone(owner: str) -> bool:
    """Whether an owner is known to be dead: a process of this host that is no more, or is another by now."""
    process, _, _ = owner.rpartition("/")
    here, _, pid_and_start = process.rpartition("/")
    if here != _host() or not Path("/proc/self/stat").exists():
        return False
    pid, _, _ = pid_and_start.partition("@")
    return not pid.isdigit() or _process(int(pid)) != process


def _process(pid: int) -> str:
    return f"{_host()}/{pid}@{_began(pid)}"


def _host() -> str:
    """This host, and its namespace of process ids: containers may share a name."""
    try:
        return f"{socket.gethostname()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _began(pid: int) -> str:
    """When a process began, in ticks since boot; empty when there is none, or it is dead and only not reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
