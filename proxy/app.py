"""Puts the server together: model path, control API, recorder, engine client."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.routing import Route

from mosaic.errors import MosaicError, RequestError, StoreError
from mosaic.settings import Settings
from mosaic.store import Store
from proxy import api
from proxy.recorder import Recorder
from proxy.routes import ModelPath
from proxy.upstream import Upstream


def create_app(settings: Settings) -> FastAPI:
    """The ASGI application. Raises `StoreError` when the database cannot be opened."""
    store = Store(settings.database)
    recorder = Recorder(store, settings)
    recorder.replay_now()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        upstream = Upstream(settings)
        model_path = ModelPath(settings, upstream, recorder)
        for path in ("/v1/{rest:path}", "/t/{trajectory}/v1/{rest:path}"):
            app.router.routes.append(Route(path, model_path, methods=None))
        # Long-lived objects leave the collector's sight: full collections cost the p99 (FACTS.md §4).
        gc.collect()
        gc.freeze()
        try:
            yield
        finally:
            await upstream.close()
            recorder.close()
            store.close()

    open_docs = None if settings.api_keys else "/openapi.json"
    app = FastAPI(title="Mosaic", lifespan=lifespan, openapi_url=open_docs)
    app.include_router(api.router(settings, store, recorder))
    app.add_exception_handler(MosaicError, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    return app


async def _answer_invalid(_request: Request, error: Exception) -> JSONResponse:
    """FastAPI's own answer repeats the input, which may be no JSON (NaN, for example)."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    message = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}."
    return JSONResponse({"error": {"message": message, "type": "RequestError"}}, 422)


async def _answer_error(_request: Request, error: Exception) -> JSONResponse:
    status = error.status if isinstance(error, RequestError) else 507 if isinstance(error, StoreError) else 500
    return JSONResponse({"error": {"message": str(error), "type": type(error).__name__}}, status)
