"""The model path: which wire a request speaks, who may, where it goes. The way itself is `relay`.

Pure ASGI, so that bytes leave as they come and a client's leaving is seen at once.
"""

import asyncio
import codecs
import re
from collections.abc import Mapping, MutableMapping
from functools import partial
from typing import Any

import aiohttp
import structlog

from adapters.wires import messages
from adapters.wires.json_text import dumps
from adapters.wires.wire import CHAT, MESSAGES, WIRES, Context, Wire, named_body
from mosaic.errors import RequestError, StoreError
from mosaic.keys import TRAJECTORY_ID, TRAJECTORY_ID_RULE
from mosaic.settings import Settings
from mosaic.store import Store
from proxy.access import agent_of, check_site
from proxy.exchange import Arrived, Exchange, affinity_of, headers_of, open_request, origin_of, query_of, read_body
from proxy.lookups import Lookups
from proxy.recorder import Recorder
from proxy.relay import Receive, Relay, Send, answer_headers, send_error, send_whole, while_there
from proxy.token_path import TokenPath
from proxy.upstream import Upstream
from proxy.weights import Weights

Scope = MutableMapping[str, Any]

_PATH = re.compile(r"(?:/t/(?P<trajectory>[^/]+))?/v1/(?P<rest>.+)")
BODY_S = 60.0
"""Seconds that a client may be silent while it sends its request."""

log = structlog.get_logger()


class ModelPath:
    """`/v1/...` and `/t/<trajectory>/v1/...`."""

    def __init__(self, settings: Settings, store: Store, upstream: Upstream, recorder: Recorder) -> None:
        self._settings = settings
        self._store = store
        self._upstream = upstream
        self._lookups = Lookups(settings, recorder)
        exact = settings.fidelity == "exact" and settings.record
        token_path = TokenPath(settings, upstream, store, self._lookups) if exact else None
        self._weights = Weights(settings, store, upstream, self._lookups)
        self._relay = Relay(settings, upstream, recorder, self._weights, token_path)
        self._recorder = recorder
        self._calls = 0

    @property
    def open_calls(self) -> int:
        """Calls that have not ended."""
        return self._calls

    def close(self) -> None:
        """Ask the store and the engines nothing more."""
        self._weights.close()
        self._lookups.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = headers_of(scope["headers"])
        match = _PATH.fullmatch(scope["path"])
        rest = match["rest"].rstrip("/") if match else ""
        wire = WIRES.get(rest) or (MESSAGES if rest.startswith("messages") else CHAT)
        try:
            if match is None:
                raise RequestError(
                    f"{scope['path']} is not served.", "Use /v1/... or /t/<trajectory>/v1/...", status=404
                )
            check_site(self._settings, scope["method"], headers)
            by_key = agent_of(self._settings, headers)
            query = query_of(scope["query_string"], wire)
            arrived = Arrived(headers, query, *_attribution(match["trajectory"], headers, by_key))
            if scope["method"] == "POST" and rest in WIRES:
                await self._call(wire, arrived, receive, send)
            elif scope["method"] == "POST" and rest == "messages/count_tokens":
                counted = read_body(await self._body(receive, headers), rewritten=True)
                await while_there(receive, self._count_tokens(counted, arrived, send))
            elif (scope["method"], rest) in (("GET", "models"), ("POST", "embeddings")):
                body = await self._body(receive, headers) if scope["method"] == "POST" else None
                await while_there(receive, self._pass_through(rest, body, arrived, send))
            else:
                raise RequestError(
                    f"{scope['method']} /v1/{rest} is not served.",
                    f"Served are POST /v1/{', /v1/'.join(WIRES)}, /v1/embeddings and GET /v1/models.",
                    status=404,
                )
        except RequestError as error:
            await send_error(send, error.status, wire.error_body(error.status, str(error), None))

    async def _call(self, wire: Wire, arrived: Arrived, receive: Receive, send: Send) -> None:
        if self._calls >= self._settings.max_calls:
            raise RequestError(f"{self._calls} calls are open already.", "Try again, or raise max_calls.", status=503)
        self._calls += 1
        self._recorder.serving(self._calls)
        try:
            raw = await self._body(receive, arrived.headers)
            if not self._upstream.named:
                await while_there(receive, self._upstream.learn_names())
            exchange = await self._open(wire, raw, arrived)
            await self._relay.run(exchange, receive, send)
        finally:
            self._calls -= 1
            self._recorder.serving(self._calls)

    async def _open(self, wire: Wire, raw: bytes, arrived: Arrived) -> Exchange:
        body = read_body(raw, rewritten=wire.translated)
        headers, trajectory_id = arrived.headers, arrived.trajectory_id
        target = await self._upstream.target(body.get("model"), partial(affinity_of, body, trajectory_id, headers))
        origin = origin_of(headers, wire, target, trajectory_id, arrived.attribution)
        record = self._settings.record
        previous = await self._previous(body) if wire.name == "responses" else ()
        context = Context(origin.call_id, origin.started_at, target.model, record, previous)
        return Exchange(wire, origin, headers, open_request(wire, raw, body, context), target, arrived.query)

    async def _previous(self, body: dict[str, Any]) -> tuple[Any, ...]:
        """The conversation that a response continues. Raises `RequestError`: 400 when it is not there, 503 when nobody
        can say."""
        response_id = body.get("previous_response_id")
        if response_id is None:
            return ()
        try:
            found = await self._lookups.ask(partial(self._store.conversation, str(response_id).removeprefix("resp_")))
        except StoreError as error:
            log.warning("response not looked up", error=str(error))
            raise RequestError("the store does not answer now.", "Try again.", status=503) from error
        if found is None:
            raise RequestError(
                f"there is no response {response_id!r}.", "Send the conversation itself as `input`.", status=400
            )
        return found

    async def _body(self, receive: Receive, headers: Mapping[str, str]) -> bytes:
        """A request's body; a byte order mark before it, which some clients write, is no part of it."""
        coding = headers.get("content-encoding", "identity")
        if coding.strip().lower() not in ("", "identity"):
            raise RequestError(f"a body in the coding {coding!r} is not read.", "Send it without.", status=415)
        return (await read_all(receive, self._settings.max_body_bytes)).removeprefix(codecs.BOM_UTF8)

    async def _pass_through(self, rest: str, body: bytes | None, arrived: Arrived, send: Send) -> None:
        """Embeddings, or, without a body, the list of models."""
        try:
            target = self._upstream.policy()
            if body is not None:
                asked = read_body(body)
                target = await self._upstream.target(asked.get("model"))
                body = named_body(body, asked, None if target.trained else target.model)
            method = "GET" if body is None else "POST"
            async with self._upstream.send(method, target, rest + arrived.query, body, arrived.headers) as response:
                answer = await response.read()
                await send_whole(send, response.status, answer_headers(response), answer)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RequestError(f"the engine cannot be reached ({error}).", status=502) from error

    async def _count_tokens(self, body: dict[str, Any], arrived: Arrived, send: Send) -> None:
        """Anthropic's token count, asked of the engine's own tokenizer."""
        target = await self._upstream.target(body.get("model"))
        asked = dumps({**messages.count_tokens_body(body), "model": target.model or body.get("model")})
        try:
            async with self._upstream.send("POST", target, "/tokenize", asked, arrived.headers) as response:
                answer = await response.read()
                if response.status != 200:
                    raise RequestError(f"the engine cannot count: {answer[:200]!r}.", status=502)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RequestError(f"the engine cannot be reached ({error}).", status=502) from error
        await send_whole(send, 200, [(b"content-type", b"application/json")], messages.count_tokens_answer(answer))


async def read_all(receive: Receive, limit: int) -> bytes:
    """A request's body. Raises `RequestError`: 413 beyond `limit` bytes, 408 for a silent client, 499 when it left."""
    parts: list[bytes] = []
    size = 0
    while True:
        try:
            async with asyncio.timeout(BODY_S):
                event = await receive()
        except TimeoutError:
            raise RequestError("the request was not complete in time.", status=408) from None
        if event["type"] == "http.disconnect":
            raise RequestError("the client left before its request was complete.", status=499)
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise RequestError(f"the body is larger than {limit} bytes.", "Raise max_body_bytes.", status=413)
        if not event.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _attribution(in_path: str | None, headers: dict[str, str], by_key: str | None) -> tuple[str | None, str]:
    """(trajectory id or None, what named it). Raises `RequestError` for a bad id."""
    in_header = headers.get("x-mosaic-trajectory")
    if by_key is not None and {in_path, in_header} - {None, by_key}:
        raise RequestError(f"the key is for trajectory {by_key!r} alone.", status=403)
    trajectory_id = in_path or by_key or in_header
    if trajectory_id is not None and not TRAJECTORY_ID.fullmatch(trajectory_id):
        raise RequestError(f"trajectory id {trajectory_id!r} is not usable.", TRAJECTORY_ID_RULE)
    attribution = "path" if in_path else "key" if by_key else "header" if in_header else "lineage"
    return trajectory_id, attribution
