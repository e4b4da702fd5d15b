"""The mock engine of `benchmarks.load`: vLLM's answers, built beforehand, on bare sockets.

Chat completions and what exact prefix mode asks (`load_exact`). A request's own field says so where the answer is to be
paced or an error.
"""

import asyncio
import random
import re
from typing import Any, cast

import orjson

from benchmarks.load_exact import ScaleOut
from benchmarks.load_texts import PIECE, REPLY, REPLY_IDS, SAMPLED, TURNS, base_of, json_answer, prompt_ids

FAIL = {"mock_fails": True}
"""In a request's body: answer with an error."""

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_PACE = re.compile(rb'"mock_pace":\[(\d+),(\d+)\]')


def pace(chunks: int, per_s: int) -> dict[str, Any]:
    """In the body of a streamed request: answer with so many chunks of one token, so many a second."""
    return {"mock_pace": [chunks, per_s]}


def _logprobs(start: int, end: int) -> dict[str, Any]:
    draw = random.Random(9)
    values = [-draw.expovariate(2) for _ in range(SAMPLED)]
    step = len(REPLY) // SAMPLED
    pieces = [REPLY[at * step : (at + 1) * step] for at in range(SAMPLED)]
    entries = zip(pieces[start:end], values[start:end], strict=True)
    return {"content": [{"token": t, "logprob": p, "bytes": [*t.encode()], "top_logprobs": []} for t, p in entries]}


def _usage(turn: int, sampled: int = SAMPLED) -> dict[str, Any]:
    prompt = len(prompt_ids(turn))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": None,
    }


def whole_answer(turn: int, ids: bool) -> bytes:
    """The HTTP answer to a call that does not stream."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": REPLY, "refusal": None, "tool_calls": []},
        "logprobs": _logprobs(0, SAMPLED) if ids else None,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": REPLY_IDS if ids else None,
    }
    answer = {**base_of("chat.completion"), "choices": [choice], "usage": _usage(turn), "prompt_logprobs": None}
    return json_answer(b"200 OK", {**answer, "prompt_token_ids": prompt_ids(turn) if ids else None})


def stream_answer(turn: int, ids: bool, usage: bool, chunks: int = 0) -> list[bytes]:
    """The HTTP answer to a streamed call, in the pieces in which it leaves: the usual reply, or chunks of a token."""

    def event(choice: dict[str, Any] | None, **more: Any) -> bytes:
        choices = [] if choice is None else [{"index": 0, "logprobs": None, "finish_reason": None, **choice}]
        return orjson.dumps({**base_of("chat.completion.chunk"), "choices": choices, **more})

    role = {"delta": {"role": "assistant", "content": ""}}
    events = [event(role, prompt_token_ids=prompt_ids(turn) if ids else None)]
    width = 1 if chunks else PIECE
    step = len(REPLY) * width // SAMPLED
    for at in range(chunks or SAMPLED // PIECE):
        start = at * width % SAMPLED
        last = start + width == SAMPLED
        piece: dict[str, Any] = {
            "delta": {"content": REPLY[start // width * step : None if last else (start // width + 1) * step]}
        }
        if ids:
            piece["logprobs"] = _logprobs(start, start + width)
            piece["token_ids"] = REPLY_IDS[start : start + width]
        events.append(event(piece))
    events.append(event({"delta": {"content": ""}, "finish_reason": "stop", "stop_reason": None}))
    if usage:
        events.append(event(None, usage=_usage(turn, chunks or SAMPLED)))
    data = [b"data: " + e + b"\n\n" for e in [*events, b"[DONE]"]]
    parts = [b"%x\r\n%s\r\n" % (len(d), d) for d in data]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    return [head + parts[0], *parts[1:-1], parts[-1] + b"0\r\n\r\n"]


class Answers:
    """All answers, each built once: a whole one is a single piece."""

    def __init__(self) -> None:
        both = (False, True)
        self._whole = {(turn, ids): [whole_answer(turn, ids)] for turn in range(TURNS) for ids in both}
        self._stream = {
            (turn, ids, usage, 0): stream_answer(turn, ids, usage)
            for turn in range(TURNS)
            for ids in both
            for usage in both
        }
        self._models = [json_answer(b"200 OK", {"object": "list", "data": [{"id": "policy"}]})]
        self._scale_out = ScaleOut()
        error = {"message": "asked to fail", "type": "InternalServerError", "code": 500}
        self._error = [json_answer(b"500 Internal Server Error", {"error": error})]

    def to(self, request: bytes) -> tuple[list[bytes], float]:
        """The pieces that answer a request, and the seconds between them (0: they leave as soon as they can).

        The turn is told by the replies in the history.
        """
        if request.startswith(b"GET "):
            return self._models, 0
        if b'"mock_fails":true' in request:
            return self._error, 0
        if (exact := self._scale_out.to(request)) is not None:
            return exact, 0
        turn = request.count(b'"role":"assistant"')
        ids = b'"return_token_ids":true' in request
        if b'"stream":true' not in request:
            return self._whole[turn, ids], 0
        paced = _PACE.search(request)
        chunks, per_s = (int(paced[1]), int(paced[2])) if paced else (0, 0)
        key = (turn, ids, b'"include_usage":true' in request, chunks)
        if key not in self._stream:  # takes a while when there are many chunks
            self._stream[key] = stream_answer(*key)
        return self._stream[key], 1 / per_s if per_s else 0


class EngineConnection(asyncio.Protocol):
    """Answers one call after the other; each piece leaves in a turn of the loop of its own."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._pending = b""
        self._gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer is there."""
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio passes it
        """Nobody wants the rest."""
        self._gone = True

    def data_received(self, data: bytes) -> None:
        """Answer once the request is complete; peers send the next one after the answer."""
        self._pending += data
        head = self._pending.find(b"\r\n\r\n")
        if head < 0:
            return
        length = LENGTH.search(self._pending, 0, head)
        if len(self._pending) < head + 4 + (int(length[1]) if length else 0):
            return
        pieces, every_s = self._answers.to(self._pending)
        self._pending = b""
        if every_s:
            self._send_paced(pieces, 0, self._loop.time(), every_s)
        else:
            self._send(pieces, 0)

    def _send(self, pieces: list[bytes], at: int) -> None:
        self._transport.write(pieces[at])
        if at + 1 < len(pieces):
            self._loop.call_soon(self._send, pieces, at + 1)

    def _send_paced(self, pieces: list[bytes], at: int, due: float, every_s: float) -> None:
        if self._gone:
            return
        self._transport.write(pieces[at])
        if at + 1 < len(pieces):
            due += every_s
            self._loop.call_at(due, self._send_paced, pieces, at + 1, due, every_s)


async def serve() -> None:
    """Serve on a free loopback port, printed first, until killed."""
    answers = Answers()
    server = await asyncio.get_running_loop().create_server(
        lambda: EngineConnection(answers), "127.0.0.1", 0, backlog=1024
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
