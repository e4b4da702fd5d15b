"""Putting a checkpoint into running vLLM replicas, without a failed request and with a way back.

    pause all (requests freeze) -> load, name the version, drop old KV -> weights changed? -> on_loaded() -> resume all
    -> probe: do the engine's logprobs equal the checkpoint's own? -> live
    any fault: pause -> load the previous checkpoint -> on_rolled_back() -> resume -> PublishError

All replicas move together. Generation is resumed on every path, errors and Ctrl-C included. A paused vLLM computes
nothing, so the probe has to run after resuming: until it is judged (tens of milliseconds) tokens may be sampled with
the new weights. They carry the new version, because `on_loaded` has recorded its start, and `on_rolled_back` its end.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from mosaic.errors import EngineError, MosaicError, PublishError
from mosaic.records import IdArray, LogprobArray
from trainer.engine_control import EngineControl
from trainer.probe import CheckpointLogprobs, checkpoint_shapes

NOISE = 1e-5
"""Largest logprob change, in nats, that two float32 passes over equal weights may show."""


@dataclass(frozen=True, slots=True)
class Publication:
    """What to put live, and what to go back to."""

    checkpoint: Path
    version: int
    previous_checkpoint: Path
    """What the engines serve now."""
    previous_version: int
    probe_ids_L: IdArray
    """Token ids to compare logprobs on: at least 2, shorter than the engine's context; best a training sequence."""
    gap_growth: float = 4.0
    """The new weights count as loaded while engine and checkpoint agree on them at most this many times worse than they
    agreed on the previous ones. Mean |engine - checkpoint| logprob is about 1e-6 nats in float32, 0.05 in bfloat16."""
    gap_floor: float = 1e-3
    """A mean gap in nats up to this always counts as loaded."""


@dataclass(frozen=True, slots=True)
class PublishReport:
    """How a successful publication went; logprobs in nats, worst replica."""

    version: int
    gap_mean: float
    """Mean |engine - checkpoint| logprob over the probe."""
    gap_max: float
    change_mean: float
    """Mean |engine - previous checkpoint| logprob over the probe."""
    change_max: float
    pause_seconds: float | None
    """How long generation stood still; None when another process put the version live and died."""
    seconds: float
    """Everything, the checkpoint's own forward pass included."""

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, float]) -> "PublishReport":
        """The report as a job keeps it, `publish_` before each name."""
        numbers = {name: metrics.get(f"publish_{name}") for name in cls.__dataclass_fields__}
        return cls(**{**numbers, "version": int(metrics["publish_version"])})  # type: ignore[arg-type]

    @property
    def metrics(self) -> dict[str, float]:
        """What `from_metrics` reads."""
        return {f"publish_{name}": float(value) for name, value in asdict(self).items() if value is not None}


def publish(
    engines: Sequence[EngineControl],
    publication: Publication,
    on_loaded: Callable[[], None],
    on_rolled_back: Callable[[], None] = lambda: None,
) -> PublishReport:
    """Make the replicas serve the new version; return when it is verified, or raise PublishError after rolling back.

    `on_loaded` runs after every replica has loaded and before generation resumes: commit the version's live time there.
    If it raises, the load is undone. `on_rolled_back` runs, again before generation resumes, if the previous version
    was put back after `on_loaded` had been called. Ctrl-C before the end rolls back too, and is raised again.
    """
    started = time.monotonic()
    _check_shapes(publication)
    probe = _Probe(publication)
    before = [probe.gap(engine, publication.previous_checkpoint) for engine in engines]
    swap = _Swap(engines, publication, on_loaded, on_rolled_back)
    try:
        paused = swap.forward(probe.differs)
        verified = [probe.verify(*pair) for pair in zip(engines, before, strict=True)]
    except BaseException as error:
        if swap.loaded:
            swap.backward(error)
        raise
    return _report(publication, verified, paused, time.monotonic() - started)


def verify_live(
    engines: Sequence[EngineControl], publication: Publication, on_rolled_back: Callable[[], None]
) -> PublishReport:
    """Verify a version that another process put live before it died; roll it back and raise PublishError if it is not
    the checkpoint. How well engine and checkpoint agreed before is not known any more: only `gap_floor` counts."""
    started = time.monotonic()
    swap = _Swap(engines, publication, lambda: None, on_rolled_back, announced=True, loaded=True)
    try:
        probe = _Probe(publication)
        verified = [probe.verify(engine, 0.0) for engine in engines]
    except BaseException as error:
        swap.backward(error)
        raise
    return _report(publication, verified, None, time.monotonic() - started)


def _report(
    publication: Publication, verified: list[tuple[LogprobArray, LogprobArray]], paused: float | None, seconds: float
) -> PublishReport:
    gaps, changes = [gap_L for gap_L, _ in verified], [change_L for _, change_L in verified]
    return PublishReport(
        version=publication.version,
        gap_mean=max(float(gap_L.mean()) for gap_L in gaps),
        gap_max=max(float(gap_L.max()) for gap_L in gaps),
        change_mean=max(float(change_L.mean()) for change_L in changes),
        change_max=max(float(change_L.max()) for change_L in changes),
        pause_seconds=paused,
        seconds=seconds,
    )


def _check_shapes(publication: Publication) -> None:
    """Refuse a checkpoint of another architecture before any engine has touched it."""
    new, old = checkpoint_shapes(publication.checkpoint), checkpoint_shapes(publication.previous_checkpoint)
    odd = sorted(name for name in new.keys() | old.keys() if new.get(name) != old.get(name))
    if odd:
        raise PublishError(
            f"{publication.checkpoint} does not fit the model that is served: {len(odd)} tensors differ in name or "
            f"shape from {publication.previous_checkpoint}, the first is {odd[0]}.",
            "Publish a checkpoint of the same architecture, or restart the engine with this one.",
        )


class _Probe:
    """What engines say, against what the checkpoints themselves say."""

    def __init__(self, publication: Publication) -> None:
        self._publication = publication
        self._own = CheckpointLogprobs()
        ids_L = publication.probe_ids_L
        new_N = self._own.last(publication.checkpoint, ids_L, len(ids_L) - 1)
        old_N = self._own.last(publication.previous_checkpoint, ids_L, len(ids_L) - 1)
        self.differs = bool(np.abs(new_N - old_N).max() > NOISE)
        """Whether the probe can tell the two checkpoints apart."""

    def gap(self, engine: EngineControl, checkpoint: Path) -> float:
        """Return the mean |engine - checkpoint| in nats."""
        ids_L, said_N = engine.probe(self._publication.probe_ids_L)
        return float(np.abs(said_N - self._own.last(checkpoint, ids_L, len(said_N))).mean())

    def verify(self, engine: EngineControl, gap_before: float) -> tuple[LogprobArray, LogprobArray]:
        """Return gaps to the new checkpoint and changes against the old one; raise PublishError if the engine does not
        serve the new weights."""
        publication = self._publication
        ids_L, said_N = engine.probe(publication.probe_ids_L)
        new_N = self._own.last(publication.checkpoint, ids_L, len(said_N))
        old_N = self._own.last(publication.previous_checkpoint, ids_L, len(said_N))
        gap_N, change_N = np.abs(said_N - new_N), np.abs(said_N - old_N)
        where = f"{engine.shown} after loading {publication.checkpoint} as version {publication.version}"
        allowed = max(publication.gap_floor, publication.gap_growth * gap_before)
        if not np.isfinite(gap_N).all() or gap_N.mean() > allowed:
            raise PublishError(
                f"{where}: its logprobs are {gap_N.mean():.3g} nats off the checkpoint's own on average (largest "
                f"{gap_N.max():.3g}, allowed {allowed:.3g}).",
                "vLLM's CPU build keeps the old output head of a model with tied embeddings: save it once with "
                "tie_word_embeddings=false. Otherwise check that both sides use the same architecture and rope "
                "settings.",
            )
        if np.abs(new_N - old_N).max() > NOISE and gap_N.mean() > change_N.mean():
            raise PublishError(
                f"{where}: its logprobs are nearer to the previous checkpoint than to the new one, so it still serves "
                "the old weights.",
                "Restart the engine on the new checkpoint.",
            )
        return gap_N, change_N


@dataclass(slots=True)
class _Swap:
    """The paused part of a publication, in both directions."""

    engines: Sequence[EngineControl]
    publication: Publication
    on_loaded: Callable[[], None]
    on_rolled_back: Callable[[], None]
    announced: bool = False
    """Whether on_loaded has been called."""
    loaded: bool = False
    """Whether every engine has the new weights, and none has been rolled back."""

    def forward(self, must_change: bool) -> float:
        """Load the new version; return the seconds of standstill. Puts the previous one back on a fault."""
        checksums = [engine.checksums() for engine in self.engines]
        with _paused(self.engines):
            started = time.monotonic()
            try:
                for engine, old_checksums in zip(self.engines, checksums, strict=True):
                    engine.load(self.publication.checkpoint, self.publication.version)
                    if must_change and old_checksums is not None and engine.checksums() == old_checksums:
                        raise PublishError(
                            f"{engine.shown} says that it loaded {self.publication.checkpoint}, but its weights did "
                            "not change.",
                            "Restart the engine on the new checkpoint.",
                        )
                self.announced = True
                self.on_loaded()
                self.loaded = True
            except BaseException as error:
                self._restore(error)
                raise
        return time.monotonic() - started

    def backward(self, cause: BaseException) -> None:
        """Put the previous version back after the new one went live, and raise what is to be told."""
        with _paused(self.engines):
            self._restore(cause)

    def _restore(self, cause: BaseException) -> None:
        """Load the previous version and raise what is to be told; returns only for Ctrl-C and the like."""
        publication = self.publication
        self.loaded = False
        try:
            with _signals_held():
                for engine in self.engines:
                    self._load_previous(engine)
                if self.announced:
                    self.on_rolled_back()
        except Exception as error:  # noqa: BLE001 - whatever it is, the engines' weights are unknown now
            raise PublishError(
                f"Version {publication.version} could not be put live ({cause}), and going back to version "
                f"{publication.previous_version} failed as well: {error}",
                f"Restart the engines on {publication.previous_checkpoint}.",
            ) from cause
        if isinstance(cause, Exception):
            next_step = cause.next_step if isinstance(cause, MosaicError) else ""
            reason = cause.message if isinstance(cause, MosaicError) else repr(cause)
            raise PublishError(
                f"Version {publication.version} was not put live, version {publication.previous_version} serves on: "
                f"{reason}",
                next_step,
            ) from cause

    def _load_previous(self, engine: EngineControl) -> None:
        # After a load that failed half-way vLLM 0.32 mixes its leftovers into the next one, which fails too, and clears
        # them; the one after that works (run).
        for attempt in range(3):
            try:
                engine.load(self.publication.previous_checkpoint, self.publication.previous_version)
                return
            except EngineError:
                if attempt == 2:
                    raise


@contextmanager
def _paused(engines: Sequence[EngineControl]) -> Iterator[None]:
    """Pause all engines for the block, and resume every one of them whatever happens; no signal interrupts that."""
    try:
        for engine in engines:
            engine.pause()
        yield
    finally:
        with _signals_held():
            _resume(engines)


def _resume(engines: Sequence[EngineControl]) -> None:
    failures = []
    for engine in engines:
        for attempt in range(3):
            try:
                engine.resume()
                break
            except MosaicError as error:
                if attempt == 2:
                    failures.append(f"{engine.shown}: {error.message}")
                time.sleep(0.2)
    if failures:
        raise PublishError(
            f"Generation could not be resumed ({'; '.join(failures)}).",
            "POST /resume to these engines, or restart them.",
        )


@contextmanager
def _signals_held() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back for the block; only the main thread receives signals, so others need not."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
