"""Exact prefix mode on the way to the engine: render, put the sampled ids back, generate, parse.

What comes out is an answer of chat completions, streamed where the client streams, so that the relay, the record and
every wire go on as in capture mode. Only calls of the policy's chat go this way; for others, and where the engine or
the request does not allow it, `send` says so and the relay asks chat completions. A request is generated once: nothing
is tried again after `generate` was sent.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
import numpy as np
import orjson
from multidict import CIMultiDict, CIMultiDictProxy

from adapters.exact import generate
from adapters.exact.memory import Found, Memory, key_of, keys_of
from adapters.exact.splicing import Step, align, begins_with, boundary, ids_of
from adapters.wires import chat, json_text
from adapters.wires.sse import EventSplitter
from adapters.wires.tool_ids import unmarked_message
from mosaic.capture import Fidelity
from mosaic.records import IdArray, Message
from mosaic.settings import Settings
from mosaic.store import Store
from proxy.exchange import Exchange
from proxy.lookups import Lookups
from proxy.recall import Recall, reasoning_of
from proxy.upstream import Upstream

NOT_THERE = (404, 405, 501)
"""How an engine without these endpoints answers."""
BEFORE = 8
"""Ids that are turned into text before those that are wanted: the text of a token may depend on the one before."""

_WHOLE = CIMultiDict({"content-type": "application/json"})
_STREAM = CIMultiDict({"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"})


class Made:
    """An answer that was put together here: of an `aiohttp.ClientResponse`, what the relay needs."""

    def __init__(
        self, status: int, headers: CIMultiDictProxy[str], body: bytes = b"", content: "Content | None" = None
    ) -> None:
        self.status = status
        self.headers = headers
        self.content_type = headers.get("content-type", "application/json").partition(";")[0]
        self.content = content or Content(_once(body), None)
        self._body = body

    async def read(self) -> bytes:
        """The whole body."""
        return self._body

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.content.close()


class Content:
    """A body that comes in parts, and the connection that it comes from."""

    def __init__(self, parts: AsyncIterator[bytes], source: aiohttp.ClientResponse | None) -> None:
        self._parts = parts
        self._source = source

    def iter_any(self) -> AsyncIterator[bytes]:
        """The parts as they come."""
        return self._parts

    async def close(self) -> None:
        """Drop the connection: the engine stops generating."""
        if self._source is not None:
            self._source.close()


@dataclass(frozen=True, slots=True)
class _Prompt:
    """What is generated from."""

    ids_P: IdArray
    parent: Step | None
    """The step whose ids it begins with."""
    fidelity: Fidelity


class _Refused(Exception):
    """The engine answered a request that generates nothing with an error."""

    def __init__(self, answer: Made) -> None:
        super().__init__(answer.status)
        self.answer = answer


class TokenPath:
    """Exact prefix mode of one worker."""

    def __init__(self, settings: Settings, upstream: Upstream, store: Store, lookups: Lookups) -> None:
        self._upstream = upstream
        self._keep = settings.exact_reasoning == "keep"
        self._memory = Memory(settings.exact_memory_bytes)
        self._recall = Recall(store, lookups, self._memory)

    async def send(self, exchange: Exchange) -> Made | None:
        """The answer to a call, or None when chat completions is to be asked.

        Raises `aiohttp.ClientError` where the engine breaks, `aiohttp.ClientConnectorError` only before anything was
        generated.
        """
        if not exchange.target.trained or exchange.wire.upstream != "chat/completions":
            return None
        body = json_text.loads(exchange.opened.sent)
        reason = _wants_token_texts(exchange) or generate.unsupported(body)
        if reason is not None:
            exchange.fidelity = Fidelity("fell_back", reason)
            return None
        found = await self._find(exchange, body["messages"])
        with _as_vllm_answers():
            return await self._send(exchange, body, found)

    async def _send(self, exchange: Exchange, body: Mapping[str, Any], found: Found) -> Made | None:
        try:
            rendered = await self._ask(
                exchange, generate.RENDER, generate.render_body(body, offsets=found.step is not None)
            )
            if rendered.get("features") is not None:
                exchange.fidelity = Fidelity("fell_back", "multimodal")
                return None
            prompt = await self._prompt(exchange, rendered, found)
        except _Refused as error:
            if error.answer.status not in NOT_THERE:
                return error.answer
            exchange.fidelity = Fidelity("fell_back", "engine_lacks_endpoints")
            return None
        exchange.fidelity = prompt.fidelity
        return await self._generate(exchange, body, rendered, prompt)

    # the prompt

    async def _find(self, exchange: Exchange, messages: Sequence[Message]) -> Found:
        """The newest reply that was sampled here, or, in a trajectory that is named, that the store has."""
        keys, trajectory_id = keys_of(_scope(exchange), messages), exchange.origin.trajectory_id
        found = self._memory.find(keys)
        if found.reason != "not_remembered" or trajectory_id is None:
            return found
        await self._recall.fill(trajectory_id, _scope(exchange))
        return self._memory.find(keys)

    async def _prompt(self, exchange: Exchange, rendered: Mapping[str, Any], found: Found) -> _Prompt:
        """The rendering, with the ids that were sampled in the place of what was rendered of them."""
        ids_R = np.asarray(rendered["token_ids"], np.int32)
        if found.step is None:
            return _Prompt(ids_R, None, _fidelity("exact", found.reason))
        steps = found.step.steps()
        if begins_with(ids_R, ids_of(steps)):
            return _Prompt(ids_R, found.step, _fidelity("exact", found.reason))
        text, _ = await asyncio.gather(self._text(exchange, ids_R), self._read(exchange, steps))
        aligned = align(text, steps, keep=self._keep)
        if aligned.steps == 0:
            return _Prompt(ids_R, None, _fidelity("exact", aligned.reason))
        offsets = rendered.get("token_offsets")
        number = None if offsets is None else boundary(offsets, aligned.at)
        if number is None or await self._text(exchange, ids_R[:number]) != text[: aligned.at]:
            why = "no_offsets" if offsets is None else "boundary_inside_token" if number is None else "offsets_differ"
            return _Prompt(ids_R, None, Fidelity("fell_back", why))
        ids_P = np.concatenate([ids_of(steps[: aligned.steps]), ids_R[number:]])
        return _Prompt(ids_P, steps[aligned.steps - 1], _fidelity("spliced", aligned.reason or found.reason))

    async def _read(self, exchange: Exchange, steps: Sequence[Step]) -> None:
        """Have the engine say the text of what it sampled, once."""
        await asyncio.gather(*(self._read_step(exchange, step) for step in steps if step.sampled is None))

    async def _read_step(self, exchange: Exchange, step: Step) -> None:
        before = step.parent.sampled_ids if step.parent is not None else step.told_ids[:0]
        told, sampled = await asyncio.gather(
            self._text_after(exchange, before, step.told_ids),
            self._text_after(exchange, step.told_ids, step.sampled_ids),
        )
        step.told, step.sampled = told, sampled

    async def _text_after(self, exchange: Exchange, before: IdArray, ids: IdArray) -> str:
        before = before[-BEFORE:]
        if not len(before):
            return await self._text(exchange, ids)
        start, text = await asyncio.gather(
            self._text(exchange, before), self._text(exchange, np.concatenate([before, ids]))
        )
        return text[len(start) :]

    async def _text(self, exchange: Exchange, ids: IdArray) -> str:
        body = orjson.dumps({"model": _model(exchange), "tokens": ids}, option=orjson.OPT_SERIALIZE_NUMPY)
        return str((await self._ask(exchange, generate.DETOKENIZE, body))["prompt"])

    # the answer

    async def _generate(
        self, exchange: Exchange, body: Mapping[str, Any], rendered: Mapping[str, Any], prompt: _Prompt
    ) -> Made:
        sent = generate.generate_body(rendered, body, prompt.ids_P)
        response = await self._upstream.send("POST", exchange.target, generate.GENERATE, sent, exchange.headers)
        parsing = generate.Parsing(body, rendered["token_ids"])
        if response.status == 200 and response.content_type == "text/event-stream":
            stream = generate.Stream(rendered["request_id"], parsing)
            parts = self._parts(exchange, body, prompt, response, stream)
            return Made(200, CIMultiDictProxy(_STREAM), content=Content(parts, response))
        async with response:
            answer = await response.read()
            if response.status != 200:
                return Made(response.status, response.headers, answer)
        generated = _object(answer)
        to_parse = parsing.whole(generated)
        parsed = None if to_parse is None else await self._parse(exchange, to_parse)
        whole = generate.whole_answer({**generated, "request_id": rendered["request_id"]}, parsed, body)
        versions = {choice["index"]: generate.spans_of(choice) for choice in generated["choices"]}
        kept = chat.Answer(exchange.call_id)
        kept.whole(whole)
        self._ended(exchange, body, prompt, kept, {i: spans for i, spans in versions.items() if spans is not None})
        return Made(200, CIMultiDictProxy(_WHOLE), whole)

    async def _parts(
        self,
        exchange: Exchange,
        body: Mapping[str, Any],
        prompt: _Prompt,
        response: aiohttp.ClientResponse,
        stream: generate.Stream,
    ) -> AsyncIterator[bytes]:
        """Chat chunks, parsed as tokens come. While one part is parsed the next one gathers."""
        splitter, kept = EventSplitter(), chat.Answer(exchange.call_id)
        async for data in response.content.iter_any():
            with _as_vllm_answers():
                for event in splitter.feed(data):
                    stream.feed(event)
            if stream.failed is not None:
                yield stream.failed
                return
            for part in stream.due():
                parsed = await self._parse(exchange, stream.asked(part))
                with _as_vllm_answers():
                    chunk = stream.chunk(part, parsed)
                kept.event(chunk, 0.0)
                yield chunk
            if stream.ended:
                end = stream.close()
                for event in EventSplitter().feed(end):
                    kept.event(event, 0.0)
                self._ended(exchange, body, prompt, kept, stream.versions)
                yield end
                return

    def _ended(
        self,
        exchange: Exchange,
        body: Mapping[str, Any],
        prompt: _Prompt,
        kept: chat.Answer,
        versions: Mapping[int, Any],
    ) -> None:
        """Remember what was sampled, before the client can go on from it."""
        captured = kept.captured()
        exchange.fidelity = generate.fidelity_with(prompt.fidelity, versions)
        if captured.inexact_reason is not None or not np.array_equal(captured.prompt_ids_P, prompt.ids_P):
            return
        start = 0 if prompt.parent is None else len(ids_of(prompt.parent.steps()))
        for choice in captured.choices:
            step = Step(prompt.parent, prompt.ids_P[start:], choice.ids_T, reasoning_of(choice.message))
            key = key_of(_scope(exchange), body["messages"], unmarked_message(choice.message))
            self._memory.keep(key, step)

    async def _parse(self, exchange: Exchange, body: bytes) -> dict[str, Any]:
        """What the engine's parsers say. Raises `aiohttp.ClientPayloadError` when they say nothing."""
        try:
            return await self._ask(exchange, generate.DERENDER, body)
        except _Refused as error:
            said = (await error.answer.read())[:500].decode("utf-8", "replace")
            raise aiohttp.ClientPayloadError(f"it cannot parse what it sampled: {said}") from error
        except aiohttp.ClientConnectorError as error:  # not what the relay takes for "nothing was sent"
            raise aiohttp.ClientPayloadError(f"it went away before what it sampled was parsed: {error}") from error

    async def _ask(self, exchange: Exchange, path: str, body: bytes) -> dict[str, Any]:
        """An answer of an endpoint that generates nothing. Raises `_Refused`."""
        async with self._upstream.send("POST", exchange.target, path, body, exchange.headers) as response:
            answer = await response.read()
            if response.status != 200:
                raise _Refused(Made(response.status, response.headers, answer))
            return _object(answer)


@contextlib.contextmanager
def _as_vllm_answers() -> Iterator[None]:
    """What is not as vLLM says it is the engine's failure: `aiohttp.ClientPayloadError`."""
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise aiohttp.ClientPayloadError(f"it answered otherwise than vLLM does: {error!r}") from error


def _object(answer: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(answer)
    except orjson.JSONDecodeError as error:
        raise aiohttp.ClientPayloadError(f"it sent no JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise aiohttp.ClientPayloadError("it sent no JSON object")
    return parsed


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _fidelity(kind: str, reason: str | None) -> Fidelity:
    """A prompt that lacks what was sampled last has fallen back, whatever it has of what came before."""
    return Fidelity(kind) if reason is None else Fidelity("fell_back", reason)


def _scope(exchange: Exchange) -> str:
    """Conversations of different trajectories never share what was sampled, were they word for word the same."""
    named = exchange.origin.trajectory_id
    return f"t:{named}" if named is not None else f"c:{exchange.origin.client}"


def _model(exchange: Exchange) -> str | None:
    return exchange.target.model


def _wants_token_texts(exchange: Exchange) -> str | None:
    """Parsers give no texts of a stream's tokens, and none of the one that ended a reply, which a client that itself
    asks for logprobs gets to see."""
    if b'"logprobs"' not in exchange.opened.recorded:
        return None
    return "logprobs" if orjson.loads(exchange.opened.recorded).get("logprobs") else None
