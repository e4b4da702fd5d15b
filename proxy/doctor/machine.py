"""The machine: its clock against those of others, the libraries of training, its GPUs."""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, requires, version

from sqlalchemy import select, text

from mosaic.errors import EngineError
from mosaic.store import Store
from mosaic.store.models import CallRow
from proxy.doctor.asking import Engine
from proxy.doctor.finding import Finding, note, ok, warning, wrong
from proxy.doctor.subject import Subject

SKEW_S = 5.0
"""Seconds that two clocks may differ; HTTP's dates have whole seconds."""
DISTRIBUTION = "mosaic-rl"
SET_CLOCK = "Run an NTP client (chrony, systemd-timesyncd) on both machines."
WHY_CLOCK = "Which policy version sampled a token is told by the clock, and so are age, retention and the schedule."
_SPECIFIER = re.compile(r"(>=|==|<)\s*([\d.]+)")


def clock(subject: Subject) -> Iterator[Finding]:
    """It agrees with the engines', the database's and the newest call's."""
    seen = {engine.base: found for engine in subject.up if (found := _of_engine(engine)) is not None}
    if subject.store is not None:
        if subject.store.database.engine.dialect.name == "postgresql":
            seen["the database"] = _of_database(subject.store)
        yield from _future(subject.store)
    off = {name: skew for name, skew in seen.items() if abs(skew) > SKEW_S}
    for name, skew in off.items():
        yield warning(f"the clock of {name} is {skew:+.0f} s from this one", WHY_CLOCK, SET_CLOCK)
    if seen and not off:
        yield ok(f"this clock agrees with that of {', '.join(seen)}")


def _of_engine(engine: Engine) -> float | None:
    """Seconds that its clock is ahead; None where it does not say."""
    said = None if isinstance(engine.listed, EngineError) else engine.ask("/v1/models").headers.get("date")
    try:
        return None if said is None else parsedate_to_datetime(said).timestamp() - time.time()
    except ValueError:
        return None


def _of_database(store: Store) -> float:
    with store.database.reading() as connection:
        return float(connection.scalar(text("select extract(epoch from clock_timestamp())")) or 0) - time.time()


def _future(store: Store) -> Iterator[Finding]:
    with store.database.reading() as connection:
        newest = connection.scalar(select(CallRow.ended_at).order_by(CallRow.seq.desc()).limit(1)) or 0.0
    if (ahead := newest - time.time()) > SKEW_S:
        what = f"the newest call ended {ahead:.0f} s from now: this clock was set back, or another proxy's is ahead"
        yield warning(what, WHY_CLOCK, SET_CLOCK)


def libraries(_subject: Subject) -> Iterator[Finding]:
    """What training needs is installed, in versions that fit."""
    found, lacking, unfit = [], [], []
    for name, bounds in _wanted().items():
        try:
            have = version(name)
        except PackageNotFoundError:
            lacking.append(name)
            continue
        found.append(f"{name} {have}")
        if not all(_fits(have, sign, bound) for sign, bound in bounds):
            unfit.append(f"{name} {have} (needs {','.join(map(''.join, bounds))})")
    if unfit:
        why = "Training with other versions is not tested; TRL's inner parts change between minor versions."
        yield warning(f"libraries do not fit: {', '.join(unfit)}", why, "Install from the lock: `make install`.")
    if lacking:
        why = "`mosaic train` cannot run here; recording needs none of them."
        step = "On the machine that trains: pip install 'mosaic-rl[train]', or `make install`."
        yield note(f"not installed: {', '.join(lacking)}", why, step)
    if found and not unfit:
        yield ok(", ".join(found))


def _wanted() -> dict[str, list[tuple[str, str]]]:
    """What the extra `train` asks for: name -> bounds."""
    found = {}
    for line in _requirements():
        name, _, condition = line.partition(";")
        if "'train'" in condition.replace('"', "'"):
            found[re.split(r"[^\w.-]", name.strip(), maxsplit=1)[0]] = _SPECIFIER.findall(name)
    return found


def _requirements() -> list[str]:
    try:
        return requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return []


def _fits(have: str, sign: str, bound: str) -> bool:
    numbers, limit = ([int(part) for part in re.findall(r"\d+", text)[:3]] for text in (have, bound))
    return {">=": numbers >= limit, "==": numbers[: len(limit)] == limit, "<": numbers < limit}[sign]


def gpu(subject: Subject) -> Iterator[Finding]:
    """There are GPUs where the settings want them."""
    train = subject.settings.train
    cards = _cards()
    if cards:
        for card in cards:
            yield ok(f"GPU: {card}")
        return
    step = "Train on a machine with GPUs, or change the setting."
    if train.transport == "nccl":
        what = 'train.transport = "nccl", and this machine has no GPU (nvidia-smi names none)'
        yield wrong(what, "A job refuses to start.", step)
    elif train.bf16:
        why = "Mixed precision is slower than float32 on most CPUs."
        yield warning("train.bf16 is on, and this machine has no GPU (nvidia-smi names none)", why, step)
    else:
        yield note("this machine has no GPU (nvidia-smi names none)", "Training here runs on the CPU.", "")


def _cards() -> list[str]:
    """Name, memory in use and in all, and driver of each GPU, as nvidia-smi says them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,memory.used,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []
