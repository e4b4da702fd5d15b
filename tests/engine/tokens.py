"""A scripted engine with vLLM's token-in, token-out endpoints, whose template retokenises what was sampled.

The policy samples bytes, one token each; the template's tokenizer makes one token of two bytes. So the ids of a reply
never come back in a rendering, and its text does, unless the engine is told to change that as well. Shapes are those of
vLLM 0.32 (entrypoints/scale_out); replies are those of the script, which sees the chat request that was rendered.
"""

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from aiohttp import web

from tests.engine.scripted import END, OVERFLOW, Fault, ScriptedEngine, Turn

PAIR = 1000
"""Ids from here on stand for two bytes."""
_SPECIAL = "<|end|>"
NewId = Callable[[int, str], str]
"""(place in its message, tool) -> id of a tool call."""
_CALL = re.compile(r"<call>(\w+)\|(.*?)</call>", re.DOTALL)
_THOUGHT = re.compile(r"\A(?:<think>)?(.*?)</think>\n?", re.DOTALL)


def rendered_ids(text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Ids of a text as the template's tokenizer makes them, and the characters of each."""
    ids: list[int] = []
    offsets: list[tuple[int, int]] = []
    for match in re.finditer(r"<\|end\|>|(?s:.)", text):
        start, end = match.span()
        if match[0] == _SPECIAL:
            ids.append(END)
            offsets.append((start, end))
            continue
        for byte in match[0].encode():
            single = bool(ids) and ids[-1] < 256 and offsets[-1][1] >= start
            if single and byte < 128 and ids[-1] < 128:
                ids[-1] = PAIR + ids[-1] * 256 + byte
                offsets[-1] = (offsets[-1][0], end)
            else:
                ids.append(byte)
                offsets.append((start, end))
    return ids, offsets


def text_of(ids: list[int]) -> str:
    """The text of ids, special tokens included."""
    parts = [_SPECIAL.encode() if i == END else bytes([i]) if i < 256 else bytes(divmod(i - PAIR, 256)) for i in ids]
    return b"".join(parts).decode(errors="replace")


def said(turn: Turn, opened: bool) -> str:
    """What the policy samples, without its end."""
    thought = f"{'' if opened else '<think>'}{turn.reasoning}</think>\n" if turn.reasoning else ""
    return thought + turn.content + "".join(f"<call>{name}|{arguments}</call>" for name, arguments in turn.calls)


def parsed(text: str) -> dict[str, Any]:
    """(reasoning, content, tool calls) of what was sampled so far; what may be markup is held back."""
    text = text.removesuffix(_SPECIAL)
    thought = _THOUGHT.match(text)
    if thought is None and "<think>".startswith(text[:7]):
        return {"reasoning": "", "content": "", "calls": []}
    rest = text[thought.end() :] if thought else text
    content = rest.partition("<")[0]
    return {"reasoning": thought[1] if thought else "", "content": content, "calls": _CALL.findall(rest)}


@dataclass
class TokenEngine(ScriptedEngine):
    """Use as `async with TokenEngine(script).serve() as base_url`."""

    drops_reasoning: bool = False
    """The template leaves reasoning out of history."""
    opens_reasoning: bool = False
    """The generation prompt ends with `<think>`."""
    writes: Callable[[str], str] = str
    """How the template writes arguments."""
    lacks: set[str] = field(default_factory=set)
    """Endpoints that are not there, for example `render`."""
    garbles: set[str] = field(default_factory=set)
    """Endpoints that answer an empty object."""
    hangs: set[str] = field(default_factory=set)
    """Endpoints that never answer."""
    counts_ids: bool = False
    """Tool calls of every reply are numbered from 0 (Kimi's parser); else their ids are random."""
    cannot_parse: bool = False
    offsets: bool = True
    paths: list[str] = field(default_factory=list)
    """What was asked of it, in order."""
    prompts: list[list[int]] = field(default_factory=list)
    """Prompt ids of all that was generated, by chat or by generate."""
    sampled: list[list[int]] = field(default_factory=list)
    """First choices of all that was generated."""
    versions: list[dict[str, Any]] | None = None
    _bodies: dict[str, dict[str, Any]] = field(default_factory=dict)
    _numbers: "count[int]" = field(default_factory=count)

    def _more_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/chat/completions/render", self._render)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_post("/v1/chat/completions/derender", self._derender)
        app.router.add_post("/detokenize", self._detokenize)

    def template(self, messages: list[dict[str, Any]]) -> str:
        """The text of a prompt."""
        text = "".join(f"<|{m['role']}|>{self._body_of(m)}{_SPECIAL}\n" for m in messages)
        return f"{text}<|assistant|>{'<think>' if self.opens_reasoning else ''}"

    def _body_of(self, message: dict[str, Any]) -> str:
        content = message.get("content") or ""
        content = content if isinstance(content, str) else json.dumps(content)
        thought = "" if self.drops_reasoning else message.get("reasoning") or message.get("reasoning_content") or ""
        calls = [
            (c["function"]["name"], self.writes(c["function"]["arguments"])) for c in message.get("tool_calls") or ()
        ]
        return said(Turn(content, tuple(calls), reasoning=thought), opened=False)

    def _id(self, at: int, name: str) -> str:
        return f"functions.{name}:{at}" if self.counts_ids else uuid.uuid4().hex

    async def _asked(self, request: web.Request) -> str:
        name = request.path.rpartition("/")[2]
        self.paths.append(name)
        if name in self.hangs:
            await self._hang()
        if name in self.garbles:
            raise web.HTTPOk(text="{}", content_type="application/json")
        if name in self.lacks:
            raise web.HTTPNotFound(text='{"detail":"Not Found"}', content_type="application/json")
        return name

    async def _render(self, request: web.Request) -> web.Response:
        await self._asked(request)
        body = await request.json()
        if self.script(body).fault is Fault.OVERFLOW:
            return web.json_response({"error": OVERFLOW}, status=400)
        ids, offsets = rendered_ids(self.template(body["messages"]))
        request_id = f"chatcmpl-{next(self._numbers)}"
        self._bodies[request_id] = body
        sampling = {"n": body.get("n") or 1, "max_tokens": body.get("max_tokens") or 4096 - len(ids), "logprobs": 0}
        asked = {"request_id": request_id, "token_ids": ids, "features": None, "sampling_params": sampling}
        told = offsets if body.get("return_token_offsets") and self.offsets else None
        return web.json_response({**asked, "model": body.get("model"), "token_offsets": told, "stream": False})

    async def _detokenize(self, request: web.Request) -> web.Response:
        await self._asked(request)
        return web.json_response({"prompt": text_of((await request.json())["tokens"])})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        await self._asked(request)
        asked = await request.json()
        body = self._bodies[asked["request_id"]]
        self.requests.append(body)
        turn = self.script(body)
        if turn.fault is Fault.HANG:
            await self._hang()
        if turn.fault is Fault.REFUSE:
            return web.json_response({"error": {"message": "busy"}}, status=503)
        choices = self._choices(turn, asked["token_ids"], asked["sampling_params"]["n"])
        usage = _usage(asked["token_ids"], choices)
        head = {"request_id": asked["request_id"], "prompt_token_ids": asked["token_ids"]}
        if not asked["stream"]:
            return web.json_response({**head, "model": "policy", "choices": choices, "usage": usage})
        chunks = _chunks(choices)
        events = [{**(head if at == 0 else {}), "choices": [c]} for at, c in enumerate(chunks)]
        if turn.fault is not Fault.NO_USAGE:
            events.append({"choices": [], "usage": usage})
        return await self._stream_events(request, turn, events)

    def _choices(self, turn: Turn, prompt: list[int], number: int) -> list[dict[str, Any]]:
        choices: list[dict[str, Any]] = []
        for index in range(number):
            spoken = turn if number == 1 else Turn(f"{turn.content} ({index})", turn.calls, reasoning=turn.reasoning)
            ids = [*said(spoken, self.opens_reasoning).encode(), END]
            entries = [{"token_id": i, "logprob": logprob(at, i), "top_logprobs": []} for at, i in enumerate(ids)]
            made = {"index": index, "token_ids": ids, "logprobs": {"content": entries}, "finish_reason": "stop"}
            choices.append({**made, "stop_reason": None, "weight_versions": self.versions})
        self.prompts.append(prompt)
        self.sampled.append(choices[0]["token_ids"])
        return choices

    async def _stream_events(
        self, request: web.Request, turn: Turn, events: list[dict[str, Any]]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for at, event in enumerate(events):
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            if at == 2 and turn.fault is Fault.HANG_MID_STREAM:
                await self._hang()
            if at == 2 and turn.fault is Fault.CUT_MID_STREAM:
                assert request.transport is not None
                request.transport.abort()
                return response
            if at == 2 and turn.fault is Fault.GARBAGE:
                await response.write(b'data: {"choices": [nonsense\n\n')
            if at == 2 and turn.fault is Fault.IN_BAND_ERROR:
                await response.write(b'data: {"error": {"message": "engine died"}}\n\n')
        if turn.fault is not Fault.NO_DONE:
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _derender(self, request: web.Request) -> web.Response:
        await self._asked(request)
        asked = await request.json()
        if self.cannot_parse or asked["prompt_token_ids"] is None or asked["chat_request"] is None:
            return web.json_response({"error": {"message": "it cannot be parsed"}}, status=400)
        if not asked.get("stream"):
            choices = [_whole_choice(choice, self._id) for choice in asked["generate_response"]["choices"]]
            whole = {"object": "chat.completion", "created": 1, "model": asked["model"] or "policy"}
            return web.json_response({"id": "x", **whole, "choices": choices, "prompt_logprobs": None})
        (choice,) = asked["generate_chunk"]["choices"]
        state = asked["stream_state"] or {"output_token_ids": [], "ids": [], "role_sent": False}
        before, after = state["output_token_ids"], state["output_token_ids"] + choice["token_ids"]
        # As vLLM's parsers do it: what ends reasoning is in the prompt already, so nothing of this is reasoning.
        ended = self.drops_reasoning and "</think>" in text_of(asked["prompt_token_ids"])
        delta = _delta(text_of(before), text_of(after), state, self._id)
        if ended:
            delta = {**delta, "reasoning": None, "content": text_of(choice["token_ids"]), "tool_calls": []}
        finish = choice["finish_reason"]
        if finish is not None and state["ids"]:
            finish = "tool_calls"
        made = {"index": choice["index"], "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "policy", "choices": [made]}
        left = {"output_token_ids": after, "ids": state["ids"], "role_sent": True}
        return web.json_response({"chunk": {**chunk, "usage": None}, "stream_state": left})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        """Chat completions over the same template and the same samples; a stream comes in one chunk."""
        await self._asked(request)
        body = await request.json()
        self.requests.append(body)
        turn = self.script(body)
        if turn.fault is Fault.OVERFLOW:
            return web.json_response({"error": OVERFLOW}, status=400)
        prompt, _ = rendered_ids(self.template(body["messages"]))
        generated = self._choices(turn, prompt, body.get("n") or 1)
        choices = [
            {**_whole_choice(c, self._id), "token_ids": c["token_ids"], "logprobs": _texts(c)} for c in generated
        ]
        for choice in choices:
            called = choice["message"]["tool_calls"] and not isinstance(body.get("tool_choice"), dict)
            choice["finish_reason"] = "tool_calls" if called else "stop"
        answer: dict[str, Any] = {"id": "chatcmpl-x", "model": "policy", "prompt_token_ids": prompt, "choices": choices}
        answer["usage"] = _usage(prompt, generated)
        if not body.get("stream"):
            return web.json_response({**answer, "object": "chat.completion", "created": 1})
        for choice in choices:
            message = choice.pop("message")
            calls = [{"index": at, **call} for at, call in enumerate(message["tool_calls"])]
            choice["delta"] = {**message, "tool_calls": calls}
        return await self._stream_events(request, turn, [{**answer, "object": "chat.completion.chunk"}])


def logprob(at: int, token: int) -> float:
    """The logprob of a sampled token."""
    return -(1 + (at + token) % 7) / 8


def _usage(prompt: list[int], choices: list[dict[str, Any]]) -> dict[str, int]:
    number = sum(len(c["token_ids"]) for c in choices)
    return {"prompt_tokens": len(prompt), "completion_tokens": number, "total_tokens": len(prompt) + number}


def _chunks(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pieces of three tokens, the choices in turns; the last of each says how it ended."""
    chunks = []
    for start in range(0, max(len(c["token_ids"]) for c in choices), 3):
        for choice in choices:
            ids = choice["token_ids"][start : start + 3]
            if not ids:
                continue
            last = start + 3 >= len(choice["token_ids"])
            end = choice if last else {"finish_reason": None, "weight_versions": None}
            content = choice["logprobs"]["content"][start : start + 3]
            piece = {"index": choice["index"], "token_ids": ids, "logprobs": {"content": content}}
            chunks.append({**piece, "finish_reason": end["finish_reason"], "weight_versions": end["weight_versions"]})
    return chunks


def _whole_choice(choice: dict[str, Any], new_id: NewId) -> dict[str, Any]:
    found = parsed(text_of(choice["token_ids"]))
    message = {
        "role": "assistant",
        "reasoning": found["reasoning"] or None,
        "content": found["content"] or (None if found["calls"] else ""),
        "tool_calls": [_call(new_id(at, call[0]), *call) for at, call in enumerate(found["calls"])],
    }
    made = {"index": choice["index"], "message": message, "finish_reason": choice["finish_reason"]}
    return {**made, "logprobs": _texts(choice), "stop_reason": None, "token_ids": None}


def _texts(choice: dict[str, Any]) -> dict[str, Any]:
    """Logprobs with the text of each token, as chat has them."""
    entries = choice["logprobs"]["content"]
    return {"content": [{"token": text_of([e["token_id"]]), "logprob": e["logprob"], "bytes": None} for e in entries]}


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _delta(before: str, after: str, state: dict[str, Any], new_id: NewId) -> dict[str, Any]:
    """What a part adds, with vLLM's nulls."""
    old, new = parsed(before), parsed(after)
    calls = []
    for at in range(len(old["calls"]), len(new["calls"])):
        state["ids"].append(new_id(at, new["calls"][at][0]))
        calls.append({"index": at, **_call(state["ids"][at], *new["calls"][at])})
    return {
        "role": None if state["role_sent"] else "assistant",
        "content": new["content"][len(old["content"]) :] or None,
        "reasoning": new["reasoning"][len(old["reasoning"]) :] or None,
        "tool_calls": calls,
    }
