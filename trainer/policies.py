"""Which weights are live: putting a job's checkpoint live, and putting older weights back.

Whoever calls this holds the training lease. Every change goes through `publish`: all replicas or none, verified, and
undone by itself when the engines do not serve what they were given.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from mosaic.errors import PolicyPinned, PublishError, SettingsError
from mosaic.records import IdArray
from mosaic.settings import Settings
from mosaic.store import Store
from mosaic.store.policies import PolicyVersion, original, same_weights
from trainer.publish import Publication, PublishReport, publish, verify_live
from trainer.replicas import MAX_GAP, Live, running_engines
from trainer.round import ADAPTER_CONFIG

MAX_PROBE = 512
"""Longest probe for the check of published weights, in tokens."""


def checkpoint_of(store: Store, version: int, first: Path | None) -> Path:
    """The folder of a version. For 0, the one that the first jobs trained, or `first` where they have not, or where it
    is gone. Raises `SettingsError` when it holds no checkpoint."""
    folder = first
    if version:
        folder = Path(find(store.versions(), version).path)
    elif (known := store.first_version()) is not None:
        settled = store.policy()[0] != 0 and _is_checkpoint(Path(known.path))
        folder = Path(known.path) if settled or first is None else first
    if folder is None:
        raise SettingsError(
            "the checkpoint that the engine started with is not known.",
            "Pass --model, or set model under [train] in mosaic.toml.",
        )
    if not _is_checkpoint(folder):
        raise SettingsError(
            f"{folder} holds no checkpoint (neither config.json nor {ADAPTER_CONFIG}).",
            "Pass the folder that vLLM serves as --model; old checkpoints go after `keep_checkpoints`.",
        )
    return folder


def _is_checkpoint(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("config.json", ADAPTER_CONFIG))


def check_pin(store: Store) -> None:
    """Raises `PolicyPinned` when the live version is."""
    live, _ = store.policy()
    if any(v.pinned and v.version == live for v in store.versions()):
        raise PolicyPinned(f"the policy is pinned at version {live}.", "Let go of it: mosaic policy pin --off.")


def go_live(store: Store, settings: Settings, publication: Publication, check: Callable[[], None]) -> PublishReport:
    """Put a checkpoint live and verify it. What a process that died had done of it is undone or completed.

    `check` is called last before the version is announced, and may refuse. Raises `EngineError` before anything is
    changed, `PublishError` after everything was undone.
    """
    check_pin(store)
    live, _ = store.policy()
    checkpoint = publication.checkpoint if live == publication.version else publication.previous_checkpoint
    engines = running_engines(settings, serving(store, live, checkpoint), publication.probe_ids_L)

    def rolled_back() -> None:
        store.version_restored(publication.version, str(publication.previous_checkpoint), publication.previous_version)

    if live == publication.version:
        # How far apart engine and trainer were on the weights before is lost with the process that knew it.
        return verify_live(engines, replace(publication, gap_floor=MAX_GAP), rolled_back)

    def loaded() -> None:
        check()
        store.version_live(publication.version)

    return publish(engines, publication, loaded, rolled_back)


def put_back(
    store: Store, settings: Settings, target: int, check: Callable[[], None], *, probe_ids_L: IdArray | None = None
) -> int:
    """Serve the weights of an earlier version again, under a new number, which is returned.

    0 is the checkpoint that the engine started with. Raises as `go_live` does.
    """
    check_pin(store)
    live, _ = store.policy()
    config = settings.train
    publication = Publication(
        checkpoint=checkpoint_of(store, target, config.model),
        version=0,
        previous_checkpoint=checkpoint_of(store, live, config.model),
        previous_version=live,
        probe_ids_L=probe(store) if probe_ids_L is None else probe_ids_L,
    )
    version = store.new_version(str(publication.checkpoint.absolute()), None, restores=weights_of(store, target))
    try:
        go_live(store, settings, replace(publication, version=version), check)
    except Exception:
        if store.policy()[0] != version:
            store.version_failed(version)
        raise
    return version


def weights_of(store: Store, version: int) -> int:
    """The version that first had these weights: `version` itself, unless it put older ones back."""
    return original(store.versions(), version)


def serving(store: Store, version: int, checkpoint: Path) -> Live:
    """What engines that serve a version have, by all that the database knows of it."""
    found = store.versions()
    numbers = same_weights(found, version)
    gaps = [v.verification["gap_mean"] for v in found if v.version in numbers and "gap_mean" in v.verification]
    return Live(checkpoint, version, numbers, max(gaps, default=None))


def before(store: Store) -> int:
    """The version whose weights served before those that are live; 0 for the first. Raises `PublishError`."""
    live, _ = store.policy()
    current = weights_of(store, live)
    earlier = [v for v in store.versions() if v.live_at is not None and v.state == "live" and v.version < live]
    for one in reversed(earlier):
        if weights_of(store, one.version) < current:
            return one.version
    if current == 0:
        raise PublishError("there is no version to go back to.", "See `mosaic policy list`.")
    return 0


def probe(store: Store) -> IdArray:
    """Token ids to compare logprobs on: the newest recorded call's, as far as it is exact, else any ids."""
    for one in store.trajectories(20):
        calls = [call for session in store.trajectory(one.trajectory_id).sessions for call in session.calls]
        for call in reversed(calls):
            if call.exact and call.samples and len(call.prompt_ids_P) > 1:
                ids_L: IdArray = np.concatenate([call.prompt_ids_P, call.samples[0].ids_T]).astype(np.int32)
                return ids_L[:MAX_PROBE]
    return np.arange(8, 40, dtype=np.int32)


def listed(store: Store) -> list[PolicyVersion]:
    """All versions, oldest first, with version 0 where its checkpoint is known."""
    first = store.first_version()
    return [*([] if first is None else [first]), *store.versions()]


def state_of(one: PolicyVersion, live: int) -> str:
    """The state in words: only one version is live, and those that served before were."""
    return "was live" if one.state == "live" and one.version != live else one.state


def find(found: Iterable[PolicyVersion], version: int) -> PolicyVersion:
    """One of these versions. Raises `SettingsError` when it is not among them."""
    for one in found:
        if one.version == version:
            return one
    raise SettingsError(f"there is no policy version {version}.", "See `mosaic policy list`.")
