"""An engine that answers what a test tells it to, on a real socket, in vLLM's wire.

Token ids are the UTF-8 bytes of the text, so a prompt's ids are append-only by construction. A turn is chosen by a
function of the request; faults break the answer in a named way. What was received and which connections were dropped
early is kept for the test to look at.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from aiohttp import web

END = 256
"""Id of the end-of-turn token; 0-255 are bytes."""


class Fault(StrEnum):
    """How an answer breaks."""

    NONE = "none"
    HANG = "hang"
    """Nothing is sent, ever."""
    HANG_MID_STREAM = "hang_mid_stream"
    CUT_MID_STREAM = "cut_mid_stream"
    """The connection is reset after the first chunks."""
    NO_DONE = "no_done"
    """The stream ends without its last event."""
    GARBAGE = "garbage"
    """A chunk that is not JSON, in the middle."""
    IN_BAND_ERROR = "in_band_error"
    LOST_IDS = "lost_ids"
    """A chunk's token ids are missing (vllm-project/vllm#27482)."""
    NO_USAGE = "no_usage"
    REFUSE = "refuse"
    """HTTP 503."""
    OVERFLOW = "overflow"
    """HTTP 400, as vLLM says that the prompt is too long."""


@dataclass(frozen=True)
class Turn:
    """What the engine says."""

    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """(tool, arguments as JSON text) pairs."""
    reasoning: str = ""
    """Thought before it speaks; only `TokenEngine` knows it."""
    n: int = 1
    fault: Fault = Fault.NONE


OVERFLOW = {
    "message": "This model's maximum context length is 1024 tokens. However, you requested 16 output tokens and your "
    "prompt contains at least 1009 input tokens, for a total of at least 1025 tokens. Please reduce the length of the "
    "input prompt or the number of requested output tokens.",
    "type": "BadRequestError",
    "param": "input_tokens",
    "code": 400,
}

Script = Callable[[dict[str, Any]], Turn]


def render(messages: list[dict[str, Any]]) -> list[int]:
    """Prompt ids of a conversation: append-only by construction."""
    ids: list[int] = []
    for message in messages:
        ids += f"<{message['role']}>".encode()
        if message["role"] == "assistant":
            ids += [*said(message.get("content") or "", message.get("tool_calls") or [])]
        else:
            ids += [*json.dumps(message.get("content")).encode(), END]
    return [*ids, *b"<assistant>"]


def said(content: str, calls: list[dict[str, Any]]) -> list[int]:
    """Ids of an assistant turn."""
    text = content + "".join(f"[{c['function']['name']}|{c['function']['arguments']}]" for c in calls)
    return [*text.encode(), END]


def answer_to(body: dict[str, Any], turn: Turn) -> bytes:
    """The bytes that answer a request, whole or as a stream, without any engine."""
    choices = [_Choice(index, turn) for index in range(turn.n)]
    if not body.get("stream"):
        return json.dumps(_whole(body, turn, choices)).encode()
    events = [json.dumps(chunk) for chunk in _chunks(body, turn, choices)]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()


@dataclass
class ScriptedEngine:
    """Use as `async with ScriptedEngine(script).serve() as base_url`."""

    script: Script
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    dropped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client closes a connection while the engine hangs."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the engine starts to hang."""

    @asynccontextmanager
    async def serve(self, port: int = 0) -> AsyncIterator[str]:
        """Serve on a loopback port, a free one unless it is given."""
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completion)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/embeddings", self._embeddings)
        app.router.add_post("/tokenize", self._tokenize)
        self._more_routes(app)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        host, port = runner.addresses[0][:2]
        try:
            yield f"http://{host}:{port}/v1"
        finally:
            await runner.cleanup()

    def _more_routes(self, app: web.Application) -> None:
        """What a kind of engine serves besides."""

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "policy", "object": "model"}]})

    async def _completion(self, request: web.Request) -> web.Response:
        """A legacy completion, whole; its prompt's ids are its bytes."""
        body = await request.json()
        self.requests.append(body)
        turn = self.script(body)
        if turn.fault is Fault.HANG:
            await self._hang()
        choice = _Choice(0, turn)
        asked = bool(body.get("return_token_ids"))
        logprobs = {"token_logprobs": choice.logprobs, "tokens": [str(i) for i in choice.ids]}
        prompt = list(str(body["prompt"]).encode())
        said = {
            "index": 0,
            "text": choice.content,
            "finish_reason": "stop",
            "logprobs": logprobs if body.get("logprobs") is not None else None,
            "token_ids": choice.ids if asked else None,
            "prompt_token_ids": prompt if asked else None,
        }
        counted = {"prompt_tokens": len(prompt), "completion_tokens": len(choice.ids)}
        return web.json_response({"id": "cmpl-1", "object": "text_completion", "choices": [said], "usage": counted})

    async def _embeddings(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [], "asked": await request.json()})

    async def _tokenize(self, request: web.Request) -> web.Response:
        ids = render((await request.json())["messages"])
        return web.json_response({"count": len(ids), "max_model_len": 4096, "tokens": ids})

    async def _hang(self) -> None:
        self.reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.dropped.set()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        if body.get("model") not in (None, "policy"):
            error = {"message": f"The model `{body['model']}` does not exist.", "type": "NotFoundError", "code": 404}
            return web.json_response({"error": error}, status=404)
        turn = self.script(body)
        if turn.fault is Fault.HANG:
            await self._hang()
        if turn.fault is Fault.REFUSE:
            return web.json_response({"error": {"message": "busy"}}, status=503)
        if turn.fault is Fault.OVERFLOW:
            return web.json_response({"error": OVERFLOW}, status=400)
        choices = [_Choice(index, turn) for index in range(turn.n)]
        if body.get("stream"):
            return await self._stream(request, body, turn, choices)
        return web.json_response(_whole(body, turn, choices))

    async def _stream(
        self, request: web.Request, body: dict[str, Any], turn: Turn, choices: "list[_Choice]"
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        chunks = list(_chunks(body, turn, choices))
        for at, chunk in enumerate(chunks):
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            if at == 2:
                if turn.fault is Fault.HANG_MID_STREAM:
                    await self._hang()
                if turn.fault is Fault.CUT_MID_STREAM:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                if turn.fault is Fault.GARBAGE:
                    await response.write(b'data: {"choices": [nonsense\n\n')
                if turn.fault is Fault.IN_BAND_ERROR:
                    await response.write(b'data: {"error": {"message": "engine died"}}\n\n')
                    break
        if turn.fault is not Fault.NO_DONE:
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


class _Choice:
    def __init__(self, index: int, turn: Turn) -> None:
        self.index = index
        self.content = turn.content if turn.n == 1 else f"{turn.content} ({index})"
        self.calls = [
            {"id": f"chatcmpl-tool-{uuid.uuid4().hex}", "type": "function", "function": {"name": n, "arguments": a}}
            for n, a in turn.calls
        ]
        self.ids = said(self.content, self.calls)
        self.logprobs = [-(1 + at % 7) / 8 for at in range(len(self.ids))]
        self.finish = "tool_calls" if self.calls else "stop"


def _logprobs(body: dict[str, Any], choice: _Choice, start: int, end: int) -> dict[str, Any] | None:
    if not body.get("logprobs"):
        return None
    entries = zip(choice.ids[start:end], choice.logprobs[start:end], strict=True)
    return {
        "content": [{"token": f"token_id:{i}", "logprob": p, "bytes": None, "top_logprobs": []} for i, p in entries]
    }


def _usage(body: dict[str, Any], choices: list[_Choice]) -> dict[str, int]:
    prompt, sampled = len(render(body["messages"])), sum(len(c.ids) for c in choices)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _whole(body: dict[str, Any], turn: Turn, choices: list[_Choice]) -> dict[str, Any]:
    ids = bool(body.get("return_token_ids"))
    answer: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion", "model": "policy", "unknown_field": 7}
    answer["prompt_token_ids"] = render(body["messages"]) if ids else None
    answer["choices"] = [
        {
            "index": c.index,
            "message": {"role": "assistant", "content": c.content or None, "tool_calls": c.calls},
            "finish_reason": c.finish,
            "logprobs": _logprobs(body, c, 0, len(c.ids)),
            "token_ids": (c.ids[1:] if turn.fault is Fault.LOST_IDS else c.ids) if ids else None,
        }
        for c in choices
    ]
    if turn.fault is not Fault.NO_USAGE:
        answer["usage"] = _usage(body, choices)
    return answer


def _chunks(body: dict[str, Any], turn: Turn, choices: list[_Choice]) -> list[dict[str, Any]]:
    """Role first, then the text in pieces of three tokens (the choices interleaved), tool calls, finish, usage."""
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "policy"}
    ids = bool(body.get("return_token_ids"))
    first: dict[str, Any] = {**base, "choices": [_delta(c, {"role": "assistant", "content": ""}) for c in choices]}
    first["prompt_token_ids"] = render(body["messages"]) if ids else None
    chunks = [first]
    longest = max(len(c.ids) for c in choices)
    for start in range(0, longest, 3):
        for choice in choices:
            piece = choice.ids[start : start + 3]
            if not piece:
                continue
            raw = _delta(choice, _piece_delta(choice, start))
            raw["logprobs"] = _logprobs(body, choice, start, start + 3)
            raw["token_ids"] = piece if ids and not (turn.fault is Fault.LOST_IDS and start == 3) else None
            if start + 3 >= len(choice.ids):
                raw["finish_reason"] = choice.finish
            chunks.append({**base, "choices": [raw]})
    if (body.get("stream_options") or {}).get("include_usage") and turn.fault is not Fault.NO_USAGE:
        chunks.append({**base, "choices": [], "usage": _usage(body, choices)})
    return chunks


def _delta(choice: _Choice, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}


def _piece_delta(choice: _Choice, start: int) -> dict[str, Any]:
    """Text as its bytes come (a cut character waits), tool calls with the last piece, their arguments in halves."""
    content = choice.content.encode()
    shown = content[: start + 3].decode(errors="ignore")[len(content[:start].decode(errors="ignore")) :]
    if start + 3 < len(choice.ids) or not choice.calls:
        return {"content": shown}
    return {"content": shown, "tool_calls": [{"index": at, **call} for at, call in enumerate(choice.calls)]}
