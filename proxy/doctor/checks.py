"""All checks in their order, and how they are run: one that breaks is a finding of its own, and the others go on."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from mosaic.errors import MosaicError
from mosaic.settings import Settings
from mosaic.terminal import printable
from proxy.doctor import access, engine, machine, recorded, sampling, storage, training
from proxy.doctor.finding import Finding, Level
from proxy.doctor.subject import Subject, subject_of

Check = Callable[[Subject], Iterable[Finding]]

CHECKS: Mapping[str, Check] = {
    "engine": engine.reachable,
    "version": engine.version,
    "model": engine.model_names,
    "weights": engine.weights,
    "swapping": engine.swapping,
    "exact mode": engine.exact_mode,
    "capture": sampling.capture,
    "template": sampling.template,
    "tool ids": sampling.tool_ids,
    "proxy": access.proxy,
    "keys": access.keys,
    "exposure": access.exposure,
    "database": storage.database,
    "journal": storage.journal,
    "disk": storage.disk,
    "clock": machine.clock,
    "counters": recorded.counters,
    "lineage": recorded.lineage,
    "trainable": recorded.trainable,
    "rewards": recorded.rewards,
    "jobs": training.jobs,
    "policy": training.policy,
    "gate": training.gate,
    "libraries": machine.libraries,
    "gpu": machine.gpu,
}


def findings(settings: Settings, *, sampling: bool = False) -> list[Finding]:
    """All that is found, in order; with `sampling` the engine is asked for some tokens, which may take long.

    What an engine or a client said in it cannot steer a terminal.
    """
    subject = subject_of(settings, sampling=sampling)
    try:
        return [_harmless(found) for name, check in CHECKS.items() for found in _found(name, check, subject)]
    finally:
        if subject.store is not None:
            subject.store.close()


def _harmless(found: Finding) -> Finding:
    what, why, step = (printable(" ".join(text.split())) for text in (found.what, found.why, found.next_step))
    return replace(found, what=what, why=why, next_step=step)


def _found(name: str, check: Check, subject: Subject) -> Iterator[Finding]:
    try:
        for found in check(subject):
            yield replace(found, check=name)
    except MosaicError as error:
        why = "What this check looks at could not be seen to its end."
        yield Finding(Level.WRONG, error.message, why, error.next_step or "Do what the other findings say first.", name)
    except Exception as error:  # noqa: BLE001 - one broken check must not hide what the others find
        why = "This is a fault of the doctor's, not of what it looked at."
        yield Finding(Level.WARNING, f"the check broke: {error!r}", why, "Report it with this line.", name)
