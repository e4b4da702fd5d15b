"""Who can reach what: the proxy, its keys, and the engines' administration, which nobody else may reach."""

import ipaddress
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from mosaic.errors import EngineError, SettingsError
from mosaic.settings import CONFIG_FILE, origins
from proxy.access import check_bind, has_keys
from proxy.doctor.asking import Engine, Server
from proxy.doctor.finding import Finding, note, ok, warning, wrong
from proxy.doctor.subject import Subject

SHORTEST = 16
"""Characters of a key that is not guessed."""
ADMINISTRATION = "/is_paused"
"""An endpoint of vLLM's that changes nothing, beside those that pause it and load weights."""
MASK = "*****"
"""What `mosaic config` shows of a secret."""
FAR = "192.0.2.1"
"""An address of no machine (RFC 5737): asking which of ours leads there sends nothing."""


def proxy(subject: Subject) -> Iterator[Finding]:
    """A proxy runs where the settings say, and lets nobody through to the engine's administration."""
    settings = subject.settings
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    address = f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"
    served = Server(address, settings.api_keys[0] if settings.api_keys else None, subject.until)
    try:
        found = served.ask("/")
    except EngineError:
        yield note(f"no proxy runs at {address}", "Nothing is recorded while none does.", "Run `mosaic serve`.")
        return
    if found.json.get("service") != "mosaic":
        why = "`mosaic serve` cannot listen there, and agents that are sent there are not recorded."
        yield wrong(f"something else than Mosaic listens at {address}", why, "Stop it, or set another port.")
        return
    if served.ask(ADMINISTRATION).json.keys() & {"is_paused"}:
        why = "Whoever reaches the proxy can pause the engine and load weights into it."
        yield wrong(f"{address} passes the engine's administration on", why, "Stop it, and report it as a fault.")
    else:
        yield ok(f"a proxy runs at {address}, and the engine's administration is not reached through it")


def keys(subject: Subject) -> Iterator[Finding]:
    """An address that others reach has keys, and they are worth the name."""
    settings = subject.settings
    try:
        check_bind(settings)
    except SettingsError as error:
        yield wrong(error.message.rstrip("."), "`mosaic serve` refuses to run so.", error.next_step)
        return
    given = [key.get_secret_value() for key in (*settings.api_keys, *settings.agent_keys)]
    if any(len(key) < SHORTEST for key in given):
        step = "Make one: python -c 'import secrets; print(secrets.token_urlsafe(24))'"
        yield warning(f"a key has fewer than {SHORTEST} characters", "It can be guessed.", step)
    elif len(set(given)) < len(given):
        why = "An agent with it reads every trajectory and gives itself rewards."
        yield warning("a key stands twice, perhaps in api_keys and agent_keys", why, "Give agents keys of their own.")
    elif has_keys(settings):
        yield ok(f"keys are set; the proxy listens on {settings.host}")
    else:
        yield ok(f"no keys are set; only this machine reaches {settings.host}")
    yield from _readable(subject)


def _readable(subject: Subject) -> Iterator[Finding]:
    """Secrets in a file that others can read."""
    file = Path(CONFIG_FILE)
    shown = origins(subject.settings).items()
    held = [name for name, (value, origin) in shown if origin == CONFIG_FILE and MASK in str(value)]
    if held and file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        what = f"{CONFIG_FILE} holds {', '.join(held)}, and others on this machine can read it"
        yield warning(what, "So they have the key.", f"chmod 600 {CONFIG_FILE}, or set it in the environment.")


def exposure(subject: Subject) -> Iterator[Finding]:
    """The engines' administration can be reached from where it is needed alone."""
    for engine in subject.up:
        if engine.paused is None:
            continue  # It is off.
        host, port = _place(engine)
        outward = _outward()
        if not _is_loopback(host):
            why = (
                "Whoever reaches that address can pause the engine and load weights into it; it asks for no key there."
            )
            yield note(
                f"the administration of {engine.base} is open on the network", why, "Let only proxy and trainer in."
            )
        elif outward is not None and _reached(outward, port, subject.until):
            why = "Whoever reaches this machine can pause the engine and load weights into it."
            step = "Start vLLM with --host 127.0.0.1."
            yield wrong(f"the administration of {engine.base} can be reached at {outward}:{port}", why, step)
        else:
            yield ok(f"the administration of {engine.base} is reached from this machine alone")


def _place(engine: Engine) -> tuple[str, int]:
    parts = urlsplit(engine.root)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _outward() -> str | None:
    """This machine's address for others; None when it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((FAR, 9))
        except OSError:
            return None
        found = str(probe.getsockname()[0])
    return None if _is_loopback(found) else found


def _reached(address: str, port: int, until: float) -> bool:
    try:
        return "is_paused" in Server(f"http://{address}:{port}", until=until).ask(ADMINISTRATION).json
    except EngineError:
        return False
