"""What exact prefix mode asks of the mock engine: render, detokenize, generate and derender, with vLLM's shapes.

Its template never gives a reply's ids back, so that every call but a trajectory's first is spliced. Nothing is parsed
but what an answer depends on.
"""

from typing import Any

import orjson

from benchmarks.load_texts import (
    FIRST,
    NEW,
    PIECE,
    REPLY,
    REPLY_IDS,
    SAMPLED,
    TURNS,
    base_of,
    ids_of,
    json_answer,
)

RETOKENISED = 10**6
"""Added to a sampled id, another id of the same text."""
_CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class ScaleOut:
    """Answers to `vLLM --enable-scale-out`'s endpoints."""

    def __init__(self) -> None:
        self._rendered = [json_answer(b"200 OK", _rendered(turn)) for turn in range(TURNS)]
        self._parsed = json_answer(b"200 OK", _parsed())

    def to(self, request: bytes) -> list[bytes] | None:
        """The pieces that answer a request, or None for one of chat completions."""
        path = request[: request.index(b"\r\n")].split(b" ")[1]
        if path.endswith(b"/chat/completions/render"):
            return [self._rendered[request.count(b'"role":"assistant"')]]
        if path.endswith(b"/detokenize"):
            return [json_answer(b"200 OK", {"prompt": "".join(map(_text, _body(request)["tokens"]))})]
        if path.endswith(b"/inference/v1/generate"):
            return _generated(_body(request))
        if path.endswith(b"/chat/completions/derender"):
            return [json_answer(b"200 OK", _part(_body(request))) if b'"stream":true' in request else self._parsed]
        return None


def _body(request: bytes) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(request[request.index(b"\r\n\r\n") + 4 :])
    return body


def _text(token: int) -> str:
    return f" {token % RETOKENISED}"


def _rendered(turn: int) -> dict[str, Any]:
    ids = ids_of(FIRST, 2)
    for at in range(turn):
        ids += [*(token + RETOKENISED for token in REPLY_IDS), *ids_of(NEW, 3 + at)]
    offsets, at = [], 0
    for token in ids:
        offsets.append((at, at := at + len(_text(token))))
    sampling = {"n": 1, "max_tokens": 512, "temperature": 1.0, "logprobs": 0}
    asked = {"request_id": "chatcmpl-" + "0" * 32, "token_ids": ids, "features": None, "sampling_params": sampling}
    return {**asked, "model": "policy", "token_offsets": offsets, "stream": False}


def _choice(start: int, end: int) -> dict[str, Any]:
    entries = [{"token_id": token, "logprob": -0.5, "top_logprobs": []} for token in REPLY_IDS[start:end]]
    finish = "stop" if end == SAMPLED else None
    return {
        "index": 0,
        "token_ids": REPLY_IDS[start:end],
        "logprobs": {"content": entries},
        "finish_reason": finish,
        "stop_reason": None,
    }


def _generated(asked: dict[str, Any]) -> list[bytes]:
    prompt = asked["token_ids"]
    head = {"request_id": asked["request_id"], "prompt_token_ids": prompt}
    usage = {
        "prompt_tokens": len(prompt),
        "completion_tokens": SAMPLED,
        "total_tokens": len(prompt) + SAMPLED,
    }
    if not asked["stream"]:
        return [json_answer(b"200 OK", {**head, "choices": [_choice(0, SAMPLED)], "usage": usage})]
    events: list[dict[str, Any]] = [{"choices": [_choice(at, at + PIECE)]} for at in range(0, SAMPLED, PIECE)]
    events[0] |= head
    events.append({"choices": [], "usage": usage})
    data = [b"data: " + orjson.dumps(event) + b"\n\n" for event in events] + [b"data: [DONE]\n\n"]
    parts = [b"%x\r\n%s\r\n" % (len(one), one) for one in data]
    return [_CHUNKED + parts[0], *parts[1:-1], parts[-1] + b"0\r\n\r\n"]


def _parsed() -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": REPLY, "refusal": None, "tool_calls": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    return {**base_of("chat.completion"), "choices": [choice]}


def _part(asked: dict[str, Any]) -> dict[str, Any]:
    """The text of the next tokens; the last token of all, which ended the reply, is not among them."""
    (choice,) = asked["generate_chunk"]["choices"]
    start = (asked["stream_state"] or {"at": 0})["at"]
    ended = choice["finish_reason"] is not None
    end = start + len(choice["token_ids"])
    step = len(REPLY) // SAMPLED
    delta = {"role": None if start else "assistant", "content": REPLY[start * step : None if ended else end * step]}
    made = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": choice["finish_reason"]}
    chunk = {**base_of("chat.completion.chunk"), "choices": [made], "usage": None}
    return {"chunk": chunk, "stream_state": {"at": end}}
