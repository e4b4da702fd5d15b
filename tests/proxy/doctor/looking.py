"""An engine with vLLM's administration, and the doctor's findings about it as a test reads them."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from mosaic.settings import Settings
from proxy.doctor import Finding, Level, findings
from proxy.doctor.checks import CHECKS
from proxy.doctor.subject import subject_of
from tests.engine import ScriptedEngine, Turn
from tests.engine.scripted import Script

LOOKS_UP = Turn("", (("look_up", '{"name": "Oslo"}'),))


def hello(body: dict[str, Any]) -> Turn:
    """Says hello, and calls a tool where it must."""
    return LOOKS_UP if isinstance(body.get("tool_choice"), dict) else Turn("Hello")


@dataclass
class Administered(ScriptedEngine):
    """Answers the questions that vLLM in developer mode answers."""

    script: Script = hello
    version: str | None = "0.32.0"
    models: list[dict[str, Any]] = field(default_factory=lambda: [{"id": "policy", "root": "/models/first"}])
    paused: bool | None = False
    """None: its administration is off."""
    weights: str = "default"
    scales_out: bool = False
    loads_adapters: bool = False
    date: str | None = None
    """What it says the time is; None: the truth."""
    list_status: int = 200
    tools_error: str | None = None
    """With what it refuses tools."""

    def _more_routes(self, app: web.Application) -> None:
        app.router.add_get("/version", self._version)
        app.router.add_get("/is_paused", self._paused)
        app.router.add_get("/weight_info", self._weights)
        app.router.add_post("/v1/load_lora_adapter", self._invalid(self.loads_adapters))
        app.router.add_post("/v1/chat/completions/render", self._invalid(self.scales_out))

    async def _models(self, _request: web.Request) -> web.Response:
        headers = {"date": self.date} if self.date else {}
        body = {"data": self.models} if self.list_status == 200 else {"error": {"message": "no"}}
        return web.json_response(body, status=self.list_status, headers=headers)

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": self.version} if self.version else {})

    async def _paused(self, _request: web.Request) -> web.Response:
        if self.paused is None:
            raise web.HTTPNotFound
        return web.json_response({"is_paused": self.paused})

    async def _weights(self, _request: web.Request) -> web.Response:
        if self.paused is None:
            raise web.HTTPNotFound
        return web.json_response({"weight_version": self.weights})

    @staticmethod
    def _invalid(there: bool) -> Any:
        async def answer(_request: web.Request) -> web.Response:
            return web.json_response({"error": {"message": "a field is missing"}}, status=422 if there else 404)

        return answer

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if self.tools_error is not None and (await request.json()).get("tools"):
            return web.json_response({"error": {"message": self.tools_error}}, status=400)
        return await super()._chat(request)


def settings_of(folder: Path, upstream: str = "http://127.0.0.1:9/v1", **more: Any) -> Settings:
    """Settings of an installation in a folder."""
    values: dict[str, Any] = {
        "upstream": upstream,
        "database": f"sqlite:///{folder}/mosaic.db",
        "spool": folder / "spool",
        "port": 9,
        **more,
    }
    return Settings(**values)


def found(settings: Settings, check: str) -> list[Finding]:
    """What one check finds."""
    subject = subject_of(settings, sampling=True)
    try:
        return list(CHECKS[check](subject))
    finally:
        if subject.store is not None:
            subject.store.close()


async def asked(settings: Settings, check: str) -> list[Finding]:
    """The same beside an engine in this event loop."""
    return await asyncio.to_thread(found, settings, check)


async def all_of(settings: Settings) -> list[Finding]:
    """What all checks find, the engine's tokens included."""
    return await asyncio.to_thread(findings, settings, sampling=True)


def only(seen: list[Finding], level: Level, what: str, *, step: str = "") -> None:
    """One finding is not `ok`: of this level, with these words, its reason and its next step."""
    (one,) = [finding for finding in seen if finding.level is not Level.OK]
    assert (one.level, what in one.what) == (level, True), one
    assert step in one.next_step, one
    if level in (Level.WARNING, Level.WRONG):
        assert one.why.endswith(".")
        assert one.next_step
