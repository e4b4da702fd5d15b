"""The engines: do they answer, are they what Mosaic needs, do they serve the policy, can their weights be swapped."""

import re
from collections.abc import Iterator
from pathlib import Path

from mosaic.errors import EngineError
from mosaic.lease import is_taken
from mosaic.store.policies import LEASE, live_of, serves, started_on
from proxy.doctor.asking import Engine
from proxy.doctor.finding import Finding, note, ok, warning, wrong
from proxy.doctor.subject import Subject

OLDEST = (0, 32)
"""First version of vLLM whose wire this release knows."""
DEV_MODE = "Start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment, on an address that only this machine reaches."


def reachable(subject: Subject) -> Iterator[Finding]:
    """Every engine answers, those of other models too."""
    for engine in subject.engines:
        yield _reached(engine, "Agents' calls wait for it and then get an error.", "upstream_api_key")
    for pattern, other in subject.settings.models.items():
        why = f"Calls for models named {pattern} get an error; the policy's do not."
        yield _reached(Engine(other.upstream, other.api_key, subject.until), why, f'models."{pattern}".api_key')


def _reached(engine: Engine, why: str, key: str) -> Finding:
    listed = engine.listed
    if isinstance(listed, EngineError):
        return wrong(listed.message.rstrip("."), why, "Start vLLM, or set upstream to where it listens.")
    if listed.status in (401, 403):
        return wrong(
            f"the engine {engine.base} refuses the key", why, f"Set {key} to the key that it was started with."
        )
    if listed.status != 200:
        step = "Look at its log; upstream must be the address of an OpenAI-compatible server, up to and with /v1."
        return wrong(f"the engine {engine.base} answers {listed.status}: {listed.message}", why, step)
    return ok(f"engine {engine.base} answers")


def version(subject: Subject) -> Iterator[Finding]:
    """Every engine is a vLLM that is new enough, and all are alike."""
    said = {engine.base: _version(engine) for engine in subject.up}
    for base, found in said.items():
        numbers = tuple(map(int, re.findall(r"\d+", found or "")[:2]))
        if found is None:
            why = "Only vLLM is known to return the ids that were sampled."
            yield note(f"engine {base} does not say its version", why, "Look at what the check `capture` finds.")
        elif numbers < OLDEST:
            why = "Ids or logprobs may be missing, and weights may not be swapped."
            yield warning(
                f"engine {base} is vLLM {found}", why, f"Upgrade it to {'.'.join(map(str, OLDEST))} or newer."
            )
        else:
            yield ok(f"engine {base} is vLLM {found}")
    if len(set(said.values())) > 1:
        why = "Equal weights give other logprobs there, so a session that moves is off its own policy."
        yield warning("the replicas are of different versions", why, "Start all of them from one installation.")


def _version(engine: Engine) -> str | None:
    said = engine.ask("/version").json.get("version")
    return None if said is None else str(said)[:100]


def model_names(subject: Subject) -> Iterator[Finding]:
    """The engines serve the policy, under the name by which it is asked for."""
    wanted = subject.settings.policy_model
    for engine in subject.up:
        names = [model["id"] for model in engine.models]
        why = "Every call for the policy gets 404."
        if not names:
            yield wrong(f"engine {engine.base} lists no model", why, "Start vLLM with --model.")
        elif subject.model not in names:
            step = f"Start vLLM with --served-model-name {subject.model} (an adapter: --lora-modules), "
            step += "or correct policy_model." if wanted else "as the other replicas."
            yield wrong(f"engine {engine.base} serves {', '.join(names)}, not {subject.model}", why, step)
        elif wanted is None and len(names) > 1:
            why = "What is asked for under another name of these is served by it, and recorded as the policy's."
            step = f'Set policy_model, to "{names[0]}" if that is the one that is trained.'
            yield note(f"engine {engine.base} serves {', '.join(names)}; {names[0]} is the policy", why, step)
        else:
            yield ok(f"engine {engine.base} serves the policy as {subject.model}")


def weights(subject: Subject) -> Iterator[Finding]:
    """The engines serve the weights that the database says are live."""
    at_work = subject.store is not None and is_taken(subject.store, LEASE)
    versions = [] if subject.store is None else subject.store.versions()
    if not versions:
        yield ok("version 0 is live: the checkpoint that the engine started with")
        return
    current = live_of(versions)
    live, path = (0, "the first checkpoint") if current is None else (current.version, current.path)
    for engine in subject.up:
        told = engine.ask("/weight_info").json.get("weight_version")
        said, root = None if told is None else str(told), started_on(engine.models, subject.model, unseen=False)
        live_there = serves(versions, said, root, at_work=at_work)
        if live_there:
            yield ok(f"engine {engine.base} serves version {live} ({path})")
        elif live_there is None:
            yield note(f"engine {engine.base} does not say which weights it serves", "Only its administration does.")
        else:
            found = f"version {said}" if str(said).isdecimal() else root or said
            why = "Its calls are recorded, but not trained: the live policy did not sample them."
            step = f"Start vLLM on {path}; jobs refuse to run until then."
            yield wrong(f"engine {engine.base} does not serve version {live}, but {found}", why, step)


def swapping(subject: Subject) -> Iterator[Finding]:
    """New weights can be put into the engines, and none was left paused."""
    training = subject.store is not None and is_taken(subject.store, LEASE)
    for engine in subject.up:
        if engine.paused is None:
            what = f"engine {engine.base} has pause, reload and resume switched off"
            why = "`mosaic train` cannot put weights live; recording needs nothing of it."
            yield (warning if _trains(subject) else note)(what, why, DEV_MODE)
        elif engine.paused and not training:
            why = "It answers no call until it is resumed; a job that was killed inside a swap leaves it so."
            step = "Run `mosaic train`, which loads what is live and resumes, or restart it: it may have others."
            yield wrong(f"engine {engine.base} is paused, and no job runs", why, step)
        else:
            yield ok(f"engine {engine.base} can be paused, given new weights and resumed")
        yield from _adapter(subject, engine)


def _trains(subject: Subject) -> bool:
    """Whether anybody means to train, and not only to record."""
    settings, store = subject.settings, subject.store
    begun = store is not None and bool(store.jobs(1))
    return settings.train.model is not None or settings.schedule.starts or begun


def _adapter(subject: Subject, engine: Engine) -> Iterator[Finding]:
    """Where the policy is a LoRA adapter, the engine reads it from a link, which a swap points elsewhere."""
    folder = subject.settings.train.model
    if folder is None or not (folder / "adapter_config.json").is_file():
        return
    root = started_on(engine.models, subject.model) or Path()
    if not root.is_absolute() or not root.is_symlink():
        step = "Start vLLM with --enable-lora --lora-modules NAME=LINK; `mosaic policy adapter` makes the link."
        what = f"engine {engine.base} does not read its adapter from a symbolic link, but from {root}"
        yield warning(what, "A job cannot put the one that it trains live.", step)


def exact_mode(subject: Subject) -> Iterator[Finding]:
    """With `fidelity = "exact"`, the engines take tokens in and give tokens out."""
    if subject.settings.fidelity != "exact":
        return
    for engine in subject.up:
        if engine.ask("/v1/chat/completions/render", {}).status == 404:
            step = 'Start vLLM with --enable-scale-out, or set fidelity = "capture".'
            why = "Every call falls back to capture, where a template that is not append-only cuts sessions up."
            yield warning(f"engine {engine.base} lacks what exact mode needs", why, step)
        else:
            yield ok(f"engine {engine.base} has what exact mode needs")
