"""The engine's chat answer as a Response of the OpenAI Responses API, whole or as a stream of events.

A whole answer takes the path of a stream with one chunk, so both give the same response. What the client did not ask
for it does not see. No clock and no sockets: ids and times are passed in.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from adapters.wires.json_text import dumps
from adapters.wires.responses_output import Output, Wanted
from adapters.wires.responses_request import wants_logprobs
from adapters.wires.responses_tools import offered, served
from adapters.wires.sse import data_of
from adapters.wires.tool_ids import index_of, mark_ids
from mosaic.errors import RequestError
from mosaic.nesting import WRITTEN, deeper

PING = b": ping\n\n"
"""A comment: every client ignores it."""

_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons of a reply that did not come to its end, and what the Responses API calls them."""
_BROKEN = frozenset({"abort", "error"})
"""Finish reasons of a reply that the engine gave up."""
_UNREADABLE = (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError, IndexError)

_ECHOED = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "temperature": None,
    "top_p": None,
    "top_logprobs": 0,
    "truncation": "disabled",
    "user": None,
    "store": True,
    "background": False,
    "parallel_tool_calls": True,
}
"""Parameters that a response repeats, and what stands where the client gave none."""


def response_of(body: Mapping[str, Any], response_id: str, created_at: float) -> dict[str, Any]:
    """The response to the request `body` before anything was sampled."""
    echoed = {key: default if body.get(key) is None else body[key] for key, default in _ECHOED.items()}
    reasoning, text = body.get("reasoning") or {}, body.get("text") or {}
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(created_at),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": str(body.get("model") or ""),
        "output": [],
        "usage": None,
        **echoed,
        "metadata": body.get("metadata") or {},
        "reasoning": {"effort": None, "summary": None, **reasoning},
        "text": {**text, "format": text.get("format") or {"type": "text"}},
        "tools": served(body.get("tools")),
        "tool_choice": _choice(body.get("tool_choice")),
    }


def _check_depth(response: Mapping[str, Any]) -> None:
    """Raises `RequestError` for a response that no event can carry."""
    try:
        orjson.dumps({"response": response})
    except TypeError as error:  # `dumps` writes what else orjson does not: integers over 64 bits
        if deeper(response, WRITTEN - 1):
            said = (
                "a response repeats `tools`, `metadata`, `text` and other fields, and one is nested too deeply to be."
            )
            raise RequestError(said, f"Nest each field at most {WRITTEN - 2} levels deep.") from error


def _choice(choice: object) -> object:
    """The client's choice, where it is in effect."""
    if isinstance(choice, dict):
        return choice if choice.get("type") in ("function", "custom", "allowed_tools") else "auto"
    return choice or "auto"


class Shown:
    """What the client gets of the engine's chat answer."""

    def __init__(self, body: Mapping[str, Any], call_id: str, created_at: float) -> None:
        """`body`: the client's request, one that `to_chat` took; `created_at`: Unix seconds.

        Raises `RequestError` (400) for a request that is nested too deeply to be repeated in the response.
        """
        self.done = False
        """True once the upstream stream ended as its wire says it must."""
        self.error: str | None = None
        """The engine's in-band error, when it sent one."""
        self._call_id = call_id
        self._response = response_of(body, f"resp_{call_id}", created_at)
        _check_depth(self._response)
        self._events: list[dict[str, Any]] = []
        self._sequence = 0
        self._opened = False
        self._finish_reason: str | None = None
        self._logprobs = wants_logprobs(body)
        summary = self._response["reasoning"].get("summary") or self._response["reasoning"].get("generate_summary")
        sealed = "reasoning.encrypted_content" in (body.get("include") or ())
        wanted = Wanted(summary=bool(summary), sealed=sealed, logprobs=self._logprobs)
        self._output = Output(self._emit, call_id, wanted, _offered(body))

    def opening(self) -> bytes:
        """SSE bytes before the first upstream event; empty when they were given already."""
        if self._opened:
            return b""
        self._opened = True
        for kind in ("response.created", "response.in_progress"):
            self._emit(kind, response=self._response)
        return self._sent()

    def event(self, event: bytes) -> bytes:
        """The client's SSE bytes for one upstream event, possibly none. What is not understood is left out."""
        before = self.opening()
        data = data_of(event)
        if data is None or self.done:
            return before
        if data.strip() == b"[DONE]":
            self.done = True
            return before + (b"" if self.error is not None else self._end())
        try:
            parsed = orjson.loads(data)
            if parsed.get("error") is not None:
                return before + self._engine_failed(parsed["error"])
            self._keep(parsed, "delta")
        except _UNREADABLE:
            pass  # The record names it (`unreadable_chunk`); the client's stream goes on.
        return before + self._sent()

    def whole(self, body: bytes) -> bytes:
        """A whole Response. One that failed, and `error`, when the answer is not understood."""
        self._opened = True
        try:
            parsed = orjson.loads(body)
            parsed["choices"][0]["message"].get("content")
            self._keep(parsed, "message")
            self._close()
        except _UNREADABLE:
            self.error = "the engine's answer is not a chat completion."
            self._fail(self.error, None)
        self.done = True
        return dumps(self._response)

    def failed(self, message: str, code: str | None = None) -> bytes:
        """SSE bytes that end the stream as a failure, under this response's own id and numbers."""
        before = self.opening()
        self._fail(message, code)
        error = {"type": "error", "code": code or "server_error", "message": message, "param": None}
        # First what makes the openai client raise, then what Codex takes as the end.
        self._emit("error", **{**error, "error": error})
        self._emit("response.failed", response=self._response)
        return before + self._sent()

    def _engine_failed(self, error: object) -> bytes:
        known = error if isinstance(error, dict) else {"message": error}
        if self.error is not None:
            return b""
        self.error = str(known.get("message", error))
        code = known.get("code")
        return self.failed(self.error, code if isinstance(code, str) else None)

    def _fail(self, message: str, code: str | None) -> None:
        error = {"code": code or "server_error", "message": message}
        self._response |= {"status": "failed", "error": error, "output": self._output.so_far()}

    def _keep(self, parsed: Mapping[str, Any], part: str) -> None:
        """Keep a chunk, or a whole answer, which is a chunk that holds everything."""
        if not self._response["model"]:
            self._response["model"] = str(parsed.get("model") or "")
        if isinstance(parsed.get("usage"), dict):
            self._response["usage"] = _usage(parsed["usage"])
        for choice in parsed.get("choices") or ():
            if choice.get("index", 0) == 0:
                self._finish_reason = choice.get("finish_reason") or self._finish_reason
                self._keep_delta(choice.get(part) or {}, self._logprobs_of(choice))

    def _logprobs_of(self, choice: Mapping[str, Any]) -> list[dict[str, Any]]:
        entries = (choice.get("logprobs") or {}).get("content") or () if self._logprobs else ()
        logprobs = [_logprob(entry) for entry in entries]
        self._output.keep_logprobs(logprobs)
        return logprobs

    def _keep_delta(self, delta: Mapping[str, Any], logprobs: list[dict[str, Any]]) -> None:
        reasoning, text = delta.get("reasoning") or delta.get("reasoning_content"), delta.get("content")
        calls = delta.get("tool_calls") or ()
        if isinstance(reasoning, str) and reasoning:
            self._output.reason(reasoning)
        if isinstance(text, str) and text:
            self._output.say(text, [] if reasoning or calls else logprobs)
        mark_ids(calls, self._call_id, 0, make=True)
        for at, call in enumerate(calls):
            function = call.get("function") or {}
            self._output.call(
                index_of(call, at), call["id"], function.get("name") or "", function.get("arguments") or ""
            )

    def _end(self) -> bytes:
        self._close()
        if self._response["status"] == "failed":
            return self.failed(self.error or "", None)
        self._emit(f"response.{self._response['status']}", response=self._response)
        return self._sent()

    def _close(self) -> None:
        """End the items and the response."""
        if not isinstance(self._finish_reason, str):
            self._finish_reason = None
        if self._finish_reason in _BROKEN:
            self.error = f"the engine gave up the reply ({self._finish_reason})."
            self._fail(self.error, None)
            return
        cut = _CUT.get(self._finish_reason or "")
        self._response["output"] = self._output.close(cut=cut is not None)
        self._response["status"] = "completed" if cut is None else "incomplete"
        self._response["incomplete_details"] = None if cut is None else {"reason": cut}

    def _emit(self, kind: str, **fields: Any) -> None:
        self._events.append({**fields, "type": kind, "sequence_number": self._sequence})
        self._sequence += 1

    def _sent(self) -> bytes:
        sent = b"".join(_sse(event) for event in self._events)
        self._events.clear()
        return sent


def _offered(body: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return offered(body.get("tools"))
    except RequestError:
        return {}


def error_body(status: int, message: str, code: str | None = None) -> bytes:
    """OpenAI's error answer."""
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


def error_event(message: str, code: str | None = None) -> bytes:
    """A failure where no response is known; where one is, use `Shown.failed`."""
    shown = Shown({}, "unknown", 0)
    shown.opening()
    return shown.failed(message, code)


def _sse(event: Mapping[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: ".encode() + dumps(event) + b"\n\n"


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    prompt, sampled = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": usage.get("total_tokens") or prompt + sampled,
    }


def _logprob(entry: Mapping[str, Any]) -> dict[str, Any]:
    top = [_token(other) for other in entry.get("top_logprobs") or ()]
    return {**_token(entry), "top_logprobs": top}


def _token(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": entry["token"], "bytes": entry.get("bytes") or [], "logprob": entry["logprob"]}
