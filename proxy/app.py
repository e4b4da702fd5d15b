"""Puts the server together: model path, control API, recorder, engine client."""

import asyncio
import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import orjson
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from mosaic import logs
from mosaic.errors import MosaicError, RequestError, StoreError
from mosaic.settings import Settings, load
from mosaic.store import Store
from proxy import announcements, api, browse_api, maintenance, metrics, stopping, webhooks
from proxy.access import check_bind, check_host, check_key, check_site
from proxy.doctor import Latest
from proxy.events import Events
from proxy.exchange import headers_of
from proxy.recorder import Recorder
from proxy.relay import Receive, Send, send_whole
from proxy.routes import ModelPath, Scope, read_all
from proxy.ui import entry, pages
from proxy.ui.token_texts import TokenTexts
from proxy.upstream import Upstream
from proxy.writer import COLLECT_AFTER

MAX_CONTROL_BYTES = 2**20
"""Largest body that a control route takes."""
CALLS_SHOWN = ("/api/trajectories", "/api/calls", "/api/group", webhooks.PREFIX, "/ui/t", "/ui/c")
"""Routes that show or change what calls have become: all that have ended must be in the database first."""

log = structlog.get_logger()


class Application:
    """The ASGI application: model calls go straight to the model path, all else to FastAPI."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._store = Store(settings.database, settings.reward_window_s)
        self._recorder = Recorder(settings)
        self._model_path: ModelPath | None = None
        self._events = Events(self._store)
        self._texts = TokenTexts()
        self._control = self._make_control()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the server's life."""
        if scope["type"] == "http" and scope["path"].startswith(("/v1/", "/t/")) and self._model_path is not None:
            await self._model_path(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == "/" and scope["method"] in ("HEAD", "GET"):
            # Claude Code asks whether anybody is there before it sends its first message.
            await send_whole(send, 200, [(b"content-type", b"application/json")], b'{"service":"mosaic"}')
        elif scope["type"] == "http":
            await self._guarded(scope, receive, send)
        else:
            await self._control(scope, receive, send)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The control routes: nothing is looked up before the key, or a webhook's signature, is known to be good."""
        headers, path = headers_of(scope["headers"]), scope["path"]
        if entry.is_ui(path):
            send = _protected(send)
        try:
            check_host(self._settings, headers)
            if entry.is_ui(path):
                entry.check(self._settings, scope["method"], path, headers)
            elif not path.startswith(webhooks.PREFIX):
                check_site(self._settings, scope["method"], headers)
                check_key(self._settings, headers)
            body = await read_all(receive, min(MAX_CONTROL_BYTES, self._settings.max_body_bytes))
            if path.startswith(webhooks.PREFIX):
                webhooks.check(self._settings, headers, body)
        except RequestError as error:
            if entry.is_ui(path) and error.status == 401 and scope["method"] == "GET":
                to = entry.to_login(path, scope["query_string"]).encode("ascii", "replace")
                named = b"hx-redirect" if "hx-request" in headers else b"location"
                await send_whole(send, 200 if named == b"hx-redirect" else 303, [(named, to)], b"")
                return
            said = orjson.dumps({"error": {"message": str(error), "type": type(error).__name__}})
            await send_whole(send, error.status, [(b"content-type", b"application/json")], said)
            return
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again() -> MutableMapping[str, Any]:
            return next(given, None) or await receive()

        if path.startswith(CALLS_SHOWN):
            await self._recorder.caught_up()
        await self._control(scope, again, send)

    @asynccontextmanager
    async def _life(self, _app: FastAPI) -> AsyncIterator[None]:
        upstream = Upstream(self._settings)
        self._texts.use(upstream)
        await self._recorder.start()
        self._model_path = ModelPath(self._settings, self._store, upstream, self._recorder)
        # Long-lived objects leave the collector's sight: full collections cost the p99 (FACTS.md §4).
        gc.collect()
        gc.freeze()
        gc.set_threshold(*COLLECT_AFTER)
        try:
            async with (
                maintenance.running(self._store, self._settings),
                announcements.running(self._store, self._settings),
            ):
                with stopping.at_once(partial(self._stop, asyncio.get_running_loop())):
                    yield
        finally:
            self._events.stop()
            self._model_path.close()
            await upstream.close()
            await self._recorder.close()
            self._store.close()

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called in a signal handler."""
        self._events.stop()
        loop.call_soon_threadsafe(self._say_waiting)

    def _say_waiting(self) -> None:
        if self._model_path is not None and self._model_path.open_calls:
            waiting = {"calls": self._model_path.open_calls, "at_most_s": self._settings.drain_s}
            log.info("stopping; open calls get time to end", **waiting)

    def _make_control(self) -> FastAPI:
        app = FastAPI(title="Mosaic", lifespan=self._life, redirect_slashes=False)
        app.include_router(api.router(self._settings, self._store, self._recorder))
        found = Latest(self._settings)
        app.include_router(browse_api.router(self._store, self._events, found))
        app.include_router(webhooks.router(self._store))
        app.include_router(pages.router(self._settings, self._store, self._events, self._texts, found))
        app.include_router(metrics.router(self._settings, self._store, self._recorder))
        app.add_exception_handler(MosaicError, _answer_error)
        app.add_exception_handler(HTTPException, _answer_http)
        app.add_exception_handler(RequestValidationError, _answer_invalid)
        return app


def _protected(send: Send) -> Send:
    async def protected(message: MutableMapping[str, Any]) -> None:
        await send(entry.protect(message))

    return protected


def create_app(settings: Settings | None = None) -> Application:
    """The application; without settings, those that are in force (`uvicorn --factory proxy.app:create_app`).

    Raises `StoreError` when the database cannot be opened, `SettingsError` for an address that needs keys.
    """
    supervisor = multiprocessing.parent_process()
    if supervisor is not None:
        logs.configure()
        _end_with(supervisor.pid)
    settings = settings or load()
    check_bind(settings)
    announcements.check(settings)
    return Application(settings)


def _end_with(supervisor: int | None) -> None:
    """A worker whose supervisor was killed would hold the port for good: let the kernel tell it to stop (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if supervisor is not None and os.getppid() != supervisor:
        raise SystemExit("the supervisor was killed before its worker had started")


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if pages.wants_page(request):
        return pages.failed(request, error.status_code, f"{error.detail}.", "")
    said = {"error": {"message": f"{error.detail}.", "type": "RequestError"}}
    return JSONResponse(said, error.status_code, error.headers)


async def _answer_invalid(request: Request, error: Exception) -> JSONResponse:
    """FastAPI's own answer repeats the input, which may be no JSON (NaN, for example)."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where, said = ".".join(str(part) for part in first["loc"]), first["msg"]
    if where == "body" and "json" not in request.headers.get("content-type", ""):
        said = "it is not said to be JSON. Send it with the header content-type: application/json"
    elif first["type"] == "json_invalid":
        where, said = "body", f"it is no JSON: {first['ctx']['error']}"
    elif first["type"] == "extra_forbidden":
        said = "nothing of this name is known here. /openapi.json lists what is"
    return JSONResponse({"error": {"message": f"{where}: {said}.", "type": "RequestError"}}, 422)


async def _answer_error(request: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, RequestError) else 507 if isinstance(error, StoreError) else 500
    if pages.wants_page(request) and isinstance(error, MosaicError):
        return pages.failed(request, status, error.message, error.next_step)
    return JSONResponse({"error": {"message": str(error), "type": type(error).__name__}}, status)
