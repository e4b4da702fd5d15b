"""What the tests of the Messages wire are made of: chat answers, the real client, and strategies."""

from collections.abc import Mapping
from typing import Any

import anthropic
import httpx2
import orjson
from anthropic.types import Message
from hypothesis import strategies as st

from adapters.wires import messages
from adapters.wires.messages_request import arguments_of
from adapters.wires.sse import EventSplitter, data_of

Json = dict[str, Any]

ASKED: Json = {"model": "policy", "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]}
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}}
DONE = b"data: [DONE]\n\n"


def chat_of(*given: Json, **fields: Any) -> list[Json]:
    """The chat messages of a request with these messages."""
    found: list[Json] = messages.to_chat({**ASKED, "messages": list(given), **fields})["messages"]
    return found


def user(*blocks: Json | str) -> Json:
    return {"role": "user", "content": [text(b) if isinstance(b, str) else b for b in blocks]}


def assistant(*blocks: Json) -> Json:
    return {"role": "assistant", "content": list(blocks)}


def text(said: str) -> Json:
    return {"type": "text", "text": said}


def tool_use(id: str, name: str, **given: Any) -> Json:
    return {"type": "tool_use", "id": id, "name": name, "input": given}


def result(id: str, content: Any, **fields: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **fields}


def call(id: str, name: str, arguments: str) -> Json:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def reply(content: str | None = None, *calls: Json, **fields: Any) -> Json:
    """A chat message as vLLM answers it."""
    return {"role": "assistant", "content": content, **fields, **({"tool_calls": list(calls)} if calls else {})}


def answer(message: Json, finish: str = "stop", stop: Any = None) -> bytes:
    """A whole chat answer."""
    choice = {"index": 0, "message": message, "finish_reason": finish, "stop_reason": stop, "token_ids": [1]}
    return orjson.dumps({"id": "chatcmpl-1", "model": "policy", "choices": [choice], "usage": USAGE})


def chunk(delta: Json, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None, **fields}
    return b"data: " + orjson.dumps({"id": "chatcmpl-1", "model": "policy", "choices": [choice]}) + b"\n\n"


def stream(deltas: list[Json], finish: str = "stop", stop: Any = None) -> list[bytes]:
    """The events of a streamed chat answer, in vLLM's order."""
    usage = b"data: " + orjson.dumps({"choices": [], "usage": USAGE}) + b"\n\n"
    last = chunk({}, finish_reason=finish, stop_reason=stop)
    return [chunk({"role": "assistant", "content": ""}), *(chunk(d) for d in deltas), last, usage, DONE]


def shown(events: list[bytes], body: Mapping[str, Any] = ASKED) -> bytes:
    """What the client gets of a stream."""
    wire = messages.Shown(body, "c1")
    return wire.opening() + b"".join(wire.event(e) for e in events)


def whole(body: bytes) -> Json:
    """The Message for a whole chat answer."""
    found: Json = orjson.loads(messages.Shown(ASKED, "c1").whole(body))
    return found


def events_of(sent: bytes) -> list[tuple[str, Json]]:
    """(event name, data) of everything that was sent; nothing may be left over."""
    splitter = EventSplitter()
    events = [(e.split(b"\n")[0].removeprefix(b"event: ").decode(), data_of(e)) for e in splitter.feed(sent)]
    assert not splitter.last()
    return [(name, orjson.loads(data or b"null")) for name, data in events]


def client(body: bytes, *, kind: str = "application/json", status: int = 200) -> anthropic.Anthropic:
    """The real client, which gets `body` whatever it asks and believes nothing that its types do not allow."""

    def serve(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, headers={"content-type": kind}, content=body)

    return anthropic.Anthropic(
        api_key="key",
        base_url="http://mosaic",
        max_retries=0,
        http_client=httpx2.Client(transport=httpx2.MockTransport(serve)),
        _strict_response_validation=True,
    )


def ask(body: bytes) -> Message:
    """What the client makes of a whole answer."""
    with client(body) as anthropic_client:
        return anthropic_client.messages.create(
            model="policy", max_tokens=64, messages=[{"role": "user", "content": "Hi"}]
        )


def follow(sent: bytes) -> Message:
    """What the client makes of a stream."""
    with (
        client(sent, kind="text/event-stream") as anthropic_client,
        anthropic_client.messages.stream(
            model="policy", max_tokens=64, messages=[{"role": "user", "content": "Hi"}]
        ) as running,
    ):
        return running.get_final_message()


def plain(message: Message) -> Json:
    return message.to_dict(exclude_none=True)


def assert_valid_order(sent: bytes) -> None:
    """One message, its blocks one after the other, each delta in its open block and of its kind."""
    kinds = {
        "thinking": {"thinking_delta", "signature_delta"},
        "text": {"text_delta"},
        "tool_use": {"input_json_delta"},
    }
    events = events_of(sent)
    assert all(name == data["type"] for name, data in events)
    assert [n for n, _ in events[:1] + events[-2:]] == ["message_start", "message_delta", "message_stop"]
    opened, is_open, kind = -1, False, ""
    for name, data in events[1:-2]:
        if name == "content_block_start":
            assert not is_open
            opened, is_open, kind = opened + 1, True, data["content_block"]["type"]
        elif name == "content_block_delta":
            assert is_open
            assert data["delta"]["type"] in kinds[kind]
        else:
            assert name == "content_block_stop"
            assert is_open
            is_open = False
        assert data["index"] == opened
    assert not is_open
    assert opened >= 0


def deltas_of(message: Json) -> list[Json]:
    """The message in as few deltas as there can be."""
    found: list[Json] = [{k: message[k]} for k in ("reasoning", "reasoning_content", "content") if message.get(k)]
    calls = [{"index": at, **c} for at, c in enumerate(message.get("tool_calls", ()))]
    return found + ([{"tool_calls": calls}] if calls else [])


SAID = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | SAID | st.sampled_from(['"', "\\", "}{", "é", "\\u"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SAID, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["Read", "Bash", "mcp__x__y"])


@st.composite
def replies(draw: st.DrawFn) -> Json:
    """A chat reply with something in it, its arguments compact as a policy samples them."""
    inputs = draw(st.lists(st.dictionaries(SAID, VALUES, max_size=3), max_size=3))
    ids = draw(st.lists(st.uuids(), min_size=len(inputs), max_size=len(inputs), unique=True))
    calls = [call(f"chatcmpl-tool-{i}", draw(NAMES), arguments_of(g)) for i, g in zip(ids, inputs, strict=True)]
    content = draw(SAID | st.none())
    reasoning = draw(SAID | st.none())
    if not (calls or content or reasoning):
        content = "."
    return reply(content, *calls, **({"reasoning": reasoning} if reasoning else {}))


def pieces(draw: st.DrawFn, said: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(said)), max_size=4)))
    return [said[a:b] for a, b in zip([0, *cuts], [*cuts, len(said)], strict=True)]


def call_parts(draw: st.DrawFn, index: int, whole_call: Json) -> list[Json]:
    """A call's deltas: first its id and name, then its arguments in pieces."""
    name, arguments = whole_call["function"]["name"], whole_call["function"]["arguments"]
    head = {"index": index, "id": whole_call["id"], "type": "function", "function": {"name": name}}
    return [head, *({"index": index, "function": {"arguments": p}} for p in pieces(draw, arguments))]


@st.composite
def divided(draw: st.DrawFn) -> tuple[Json, list[Json]]:
    """A reply, and its deltas in some division: calls interleaved, several in one chunk or one in each."""
    message = draw(replies())
    deltas: list[Json] = []
    for key in ("reasoning", "content"):
        deltas += [{key: p} for p in pieces(draw, message.get(key) or "")]
    queues = [call_parts(draw, at, c) for at, c in enumerate(message.get("tool_calls", ()))]
    parts: list[Json] = []
    while any(queues):
        # A call begins only after the one before it, as its index says.
        begun = [
            at
            for at, q in enumerate(queues)
            if q and (at == 0 or len(queues[at - 1]) == 0 or "id" not in queues[at - 1][0])
        ]
        parts.append(queues[draw(st.sampled_from(begun))].pop(0))
    while parts:
        take = draw(st.integers(1, 3))
        deltas.append({"tool_calls": parts[:take]})
        parts = parts[take:]
    return message, deltas
