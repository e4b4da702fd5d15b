"""Chat deltas put into the order of a Messages stream: one content block at a time, each opened, filled and closed.

Chat completions may send several tool calls interleaved by index, and text while a call is still open. Blocks are
kept in the order in which they began; the first that is not closed is shown as its deltas come, the others wait.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from adapters.wires.tool_ids import index_of

_DELTAS = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool_use": ("input_json_delta", "partial_json"),
}


def sse(kind: str, data: Mapping[str, Any]) -> bytes:
    """One event as Anthropic writes it: its name, and its data with that name as `type`."""
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **data}) + b"\n\n"


class ArgumentsObject:
    """Cuts the JSON object out of a call's arguments, in whatever pieces they come."""

    def __init__(self) -> None:
        self.complete = False
        """True when nothing that follows can belong to the object, also when the arguments begin none."""
        self._depth = 0
        self._in_string = False
        self._escaped = False

    @property
    def cut(self) -> bool:
        """True when the object began and has not ended."""
        return self._depth > 0

    def feed(self, piece: str) -> str:
        """What of the piece belongs to the object."""
        if self._depth == 0 and not self.complete:
            piece = piece.lstrip()
            self.complete = piece[:1] not in ("", "{")
        if self.complete:
            return ""
        for at, char in enumerate(piece):
            self._step(char)
            if self._depth == 0:
                self.complete = True
                return piece[: at + 1]
        return piece

    def _step(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._in_string:
            self._escaped = char == "\\"
            self._in_string = char != '"'
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1


def tool_input(arguments: str) -> orjson.Fragment:
    """The input of a whole answer's call: the object in the arguments, to the letter; `{}` when they hold none.

    A stream cannot take back what it has sent: there, an object that is cut or wrong inside reaches the client as far
    as it came, and what follows the object is left out, as here. vLLM reads such arguments as `{}` when they come back.
    """
    taken = ArgumentsObject().feed(arguments)
    try:
        parsed = json.loads(taken, parse_constant=_refuse)
    except (ValueError, RecursionError):
        parsed = None
    return orjson.Fragment(taken if isinstance(parsed, dict) else "{}")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON.")


@dataclass(slots=True)
class _Block:
    kind: str
    """`thinking`, `text` or `tool_use`."""
    pending: list[str] = field(default_factory=list)
    """Pieces that were not shown yet."""
    started: bool = False
    id: str = ""
    name: str = ""
    arguments: ArgumentsObject = field(default_factory=ArgumentsObject)

    def head(self) -> dict[str, Any]:
        """The block as it is before its first delta."""
        if self.kind == "tool_use":
            return {"type": "tool_use", "id": self.id, "name": self.name, "input": {}}
        if self.kind == "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "text", "text": ""}


class Blocks:
    """The content blocks of one streamed answer. Feed deltas, then take the events that they allow."""

    def __init__(self) -> None:
        self._waiting: deque[_Block] = deque()
        self._calls: dict[int, _Block] = {}
        self._closed = 0

    @property
    def called(self) -> bool:
        """True when a tool was called."""
        return bool(self._calls)

    @property
    def cut(self) -> bool:
        """True when a call's arguments began and have not ended."""
        return any(block.arguments.cut for block in self._calls.values())

    @property
    def empty(self) -> bool:
        """True when the answer has no block yet."""
        return not self._waiting and not self._closed

    def say(self, kind: str, piece: str) -> None:
        """Add to the answer's `text` or `thinking`; it goes on in the newest block, or begins one."""
        if not self._waiting or self._waiting[-1].kind != kind:
            self._waiting.append(_Block(kind))
        self._waiting[-1].pending.append(piece)

    def call(self, delta: Mapping[str, Any], at: int) -> None:
        """Add a tool call's delta, which has an id and stands at place `at` of its chunk. First id and name hold."""
        index = index_of(delta, at)
        block = self._calls.get(index)
        if block is None:
            block = self._calls[index] = _Block("tool_use", id=delta["id"])
            self._waiting.append(block)
        function = delta.get("function") or {}
        if not block.started and not block.name:
            block.name = str(function.get("name") or "")
        if piece := block.arguments.feed(function.get("arguments") or ""):
            block.pending.append(piece)

    def ready(self, *, ended: bool = False) -> bytes:
        """The events that can be shown now; all that are left when the answer has ended."""
        return b"".join(self._ready(ended))

    def _ready(self, ended: bool) -> Iterator[bytes]:
        while self._waiting:
            block = self._waiting[0]
            if block.kind == "tool_use" and not block.name and not ended:
                return
            yield from self._shown(block)
            followed = len(self._waiting) > 1 and (block.kind != "tool_use" or block.arguments.complete)
            if not followed and not ended:
                return
            yield from self._close(block)

    def _shown(self, block: _Block) -> Iterator[bytes]:
        if not block.started:
            block.started = True
            yield sse("content_block_start", {"index": self._closed, "content_block": block.head()})
        if piece := "".join(block.pending):
            kind, name = _DELTAS[block.kind]
            yield self._delta({"type": kind, name: piece})
        block.pending.clear()

    def _close(self, block: _Block) -> Iterator[bytes]:
        if block.kind == "thinking":
            yield self._delta({"type": "signature_delta", "signature": ""})
        yield sse("content_block_stop", {"index": self._closed})
        self._waiting.popleft()
        self._closed += 1

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        return sse("content_block_delta", {"index": self._closed, "delta": delta})
