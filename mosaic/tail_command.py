"""`mosaic tail`: calls as they end, one line each, from the database or from a running proxy elsewhere.

Neither source is given up: a database that refuses, or a proxy that is started anew, is asked again, and the calls of
meanwhile follow.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
import typer
from rich.console import Console
from rich.text import Text
from sqlalchemy import Connection

from mosaic.client import Client
from mosaic.errors import MosaicError, RequestError, StoreError
from mosaic.settings import Settings, load
from mosaic.store import Store, call_browsing, feed
from mosaic.store.feed import Followed
from mosaic.terminal import DATABASE, SHORTENED, how_ended, printable, shortened

EVERY_S = 0.5
"""Seconds between two looks at the database."""
SAID = 20
"""Columns of a narrow terminal that an id leaves to the reply."""
FIELDS = (
    "call_id",
    "trajectory_id",
    "session_id",
    "auxiliary",
    "wire",
    "status",
    "http_status",
    "error",
    "exact",
    "inexact_reason",
    "prompt_tokens",
    "sampled_tokens",
    "policy_version",
    "started_at",
    "first_byte_at",
    "ended_at",
)
"""What a JSON line says of a call, with `says`, its reply."""
Call = dict[str, Any]


def tail(
    *,
    trajectory: str | None = typer.Option(None, help="Only calls of this trajectory."),
    proxy: str | None = typer.Option(
        None, help="Follow the proxy at this address instead of the database; with the first of api_keys."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print each call as one line of JSON."),
    database: str | None = DATABASE,
) -> None:
    """Follow calls as they end, one line each, until Ctrl-C.

    A line says when the call ended, its trajectory, prompt and sampled tokens, seconds, what it is worth to training
    (exact, or why it is not) and its reply, or what failed, as far as the terminal is wide; in a pipe all of it. Calls
    that ended before are listed by `mosaic show`. What breaks is taken up again where it broke.

        mosaic tail
        mosaic tail --trajectory run-17
        mosaic tail --json --proxy http://gpu-1:8080
    """
    settings = load(database=database)
    followed = _of_proxy(settings, proxy, trajectory) if proxy else _of_store(settings, trajectory)
    with contextlib.suppress(KeyboardInterrupt):
        for call in followed:
            typer.echo(_json(call) if as_json else _line(call, _width()))


def _of_store(settings: Settings, trajectory_id: str | None) -> Iterator[Call]:
    store = Store(settings.database, create=False)
    followed = Followed(store.database, None if trajectory_id is None else store.whole_trajectory_id(trajectory_id))
    refused = False
    while True:
        try:
            calls = _read(followed)
            refused = False
        except StoreError as error:
            calls = []
            if not refused:
                _say(f"{error.message} It is asked again.")
            refused = True
        yield from calls
        if not calls:
            time.sleep(EVERY_S)


def _read(followed: Followed) -> list[Call]:
    """The calls that have ended since the last time. Raises `StoreError`."""
    shown, trajectory_id, begins = followed.database.shown_url, followed.trajectory_id, followed.mark is None
    with followed.look() as look:
        if begins:
            known = trajectory_id is None or feed.is_known(look.connection, trajectory_id)
            _begin(f"in {shown}", trajectory_id, known=known)
        if look.gone:
            what = "no longer holds what was followed (replaced, restored or pruned); what ends from now on follows"
            _say(f"{shown} {what}")
        return [call for event in look.events if event.call_id for call in _stored(look.connection, event.call_id)]


def _stored(connection: Connection, call_id: str) -> Iterator[Call]:
    """The call; nothing when it was pruned meanwhile."""
    with contextlib.suppress(RequestError):
        row = call_browsing.call_row(connection, call_id)
        yield _call({**row}, call_browsing.replies(connection, call_id))


def _of_proxy(settings: Settings, address: str, trajectory_id: str | None) -> Iterator[Call]:
    client = Client(address, settings.api_keys[0].get_secret_value() if settings.api_keys else None)
    _begin(f"of {address}", trajectory_id, known=trajectory_id is None or _is_known(client, trajectory_id))
    for event in client.events(trajectory_id):
        if event.kind != "call":
            continue
        try:
            row = client.call(event.data["call_id"])
        except MosaicError as error:  # the proxy is going, or the call was pruned: the stream goes on by itself
            _say(f"call {event.data['call_id']} cannot be shown: {error.message}")
            continue
        yield _call(row, row["choices"])


def _is_known(client: Client, trajectory_id: str) -> bool:
    try:
        client.trajectory(trajectory_id)
    except RequestError as error:
        if error.status != 404:
            raise
        return False
    return True


def _begin(where: str, trajectory_id: str | None, *, known: bool) -> None:
    """Say what is followed, and whether that is there yet: a name may be mistyped, or its first call still to come."""
    hint = "" if known else f"; there is no trajectory {trajectory_id!r} yet (`mosaic trajectories` lists them)"
    _say(f"following calls {where}; Ctrl-C ends{hint}")


def _call(row: Mapping[str, Any], choices: Sequence[Mapping[str, Any]]) -> Call:
    return {**{name: row[name] for name in FIELDS}, "says": _says(choices[0]["body"]) if choices else ""}


def _says(message: Mapping[str, Any]) -> str:
    """A reply on one line: its text, and the tools that it calls."""
    content = message.get("content")
    named = [str(call["function"]["name"]) for call in message.get("tool_calls") or () if call.get("function")]
    return " ".join([*str(content or "").split(), *(f"[{name}]" for name in named)])


def _json(call: Call) -> str:
    try:
        return orjson.dumps(call).decode()
    except orjson.JSONEncodeError:  # half of a surrogate pair, which a model may say and UTF-8 cannot
        return json.dumps(call)


def _line(call: Call, width: int | None) -> str:
    """The call as a person reads it, in so many columns; None: whole. It cannot steer the terminal."""
    ended = time.strftime("%H:%M:%S", time.localtime(call["ended_at"]))
    kind = f" {call['auxiliary']}" if call["auxiliary"] else ""
    worth = "exact" if call["exact"] else call["inexact_reason"] or "inexact"
    if call["status"] != "ok":
        worth = how_ended(call["status"], call["http_status"])
    figures = (
        f"{kind}  {call['prompt_tokens']} -> {call['sampled_tokens']} tokens"
        f"  {call['ended_at'] - call['started_at']:.2f} s  v{call['policy_version']}  {worth}  "
    )
    says = " ".join((call["says"] or call["error"] or "").split())
    name = printable(call["trajectory_id"])
    if width is not None:
        name = shortened(name, max(SHORTENED, width - SAID - len(ended) - len(figures)))
    line = Text(f"{ended} {name}{printable(figures)}{printable(says)}".rstrip())
    if width is not None:
        line.truncate(width, overflow="ellipsis")
    return line.plain


def _width() -> int | None:
    """Columns of the terminal; None where none reads."""
    console = Console()
    return console.width if console.is_terminal else None


def _say(what: str) -> None:
    typer.echo(f"mosaic: {what}", err=True)
