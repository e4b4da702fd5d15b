"""The output items of one response and the events that tell of them, in the order that the real API keeps.

Reasoning and text end when something else begins; tool calls may come interleaved, each under its `output_index`, and
end with the reply. Source: the types in `openai.types.responses`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from adapters.wires.responses_items import item_id, sealed
from adapters.wires.responses_tools import InputReader, Tool

Emit = Callable[..., None]
"""Takes an event's type and its fields."""


class _Item:
    """An item that is being told. Its events go to `emit`."""

    prefix: str

    def __init__(self, emit: Emit, call_id: str, index: int) -> None:
        self._place = {"item_id": item_id(self.prefix, call_id, index), "output_index": index}
        self._emit_all = emit
        self._pieces: list[str] = []
        self.final: dict[str, Any] | None = None
        """The item once it has ended."""

    def _emit(self, kind: str, **fields: Any) -> None:
        self._emit_all(kind, **self._place, **fields)

    def _emit_item(self, kind: str, item: Mapping[str, Any]) -> None:
        self._emit_all(kind, output_index=self._place["output_index"], item=item)

    @property
    def _text(self) -> str:
        return "".join(self._pieces)

    def begin(self) -> None:
        """Tell that the item begins."""
        self._emit_item("response.output_item.added", self._item("in_progress", begun=False))

    def end(self, status: str) -> None:
        """Tell that the item has ended."""
        self.final = self._item(status, begun=True)
        self._emit_item("response.output_item.done", self.final)

    def _item(self, status: str, *, begun: bool) -> dict[str, Any]:
        raise NotImplementedError


class Text(_Item):
    """A message of the assistant with one text."""

    prefix = "msg"

    def __init__(self, emit: Emit, call_id: str, index: int, logprobs: bool) -> None:
        super().__init__(emit, call_id, index)
        self._wants_logprobs = logprobs
        self.logprobs: list[dict[str, Any]] = []
        """Logprobs of the whole text, set before the end."""

    def begin(self) -> None:
        """Tell that the message and its only part begin."""
        super().begin()
        self._emit("response.content_part.added", content_index=0, part=self._part())

    def add(self, piece: str, logprobs: list[dict[str, Any]]) -> None:
        """More text."""
        self._pieces.append(piece)
        self._emit("response.output_text.delta", content_index=0, delta=piece, logprobs=logprobs)

    def end(self, status: str) -> None:
        """Tell that the text, its part and the message have ended."""
        self._emit("response.output_text.done", content_index=0, text=self._text, logprobs=self.logprobs)
        self._emit("response.content_part.done", content_index=0, part=self._part())
        super().end(status)

    def _part(self) -> dict[str, Any]:
        part = {"type": "output_text", "text": self._text, "annotations": []}
        return {**part, "logprobs": self.logprobs} if self._wants_logprobs else part

    def _item(self, status: str, *, begun: bool) -> dict[str, Any]:
        content = [self._part()] if begun else []
        ids = {"id": self._place["item_id"], "type": "message", "status": status, "role": "assistant"}
        return {**ids, "content": content}


class Reasoning(_Item):
    """Reasoning: as a summary where the client asked for one (Codex shows that), else as open content."""

    prefix = "rs"

    def __init__(self, emit: Emit, call_id: str, index: int, wanted: "Wanted") -> None:
        super().__init__(emit, call_id, index)
        self._wanted = wanted
        summary = wanted.summary
        self._name = "response.reasoning_summary_text" if summary else "response.reasoning_text"
        self._part_name = "response.reasoning_summary_part" if summary else "response.content_part"
        self._at = {"summary_index" if summary else "content_index": 0}

    def begin(self) -> None:
        """Tell that the item and its only part begin."""
        super().begin()
        self._emit(f"{self._part_name}.added", **self._at, part=self._part())

    def add(self, piece: str) -> None:
        """More reasoning."""
        self._pieces.append(piece)
        self._emit(f"{self._name}.delta", **self._at, delta=piece)

    def end(self, status: str) -> None:
        """Tell that the text, its part and the item have ended."""
        self._emit(f"{self._name}.done", **self._at, text=self._text)
        self._emit(f"{self._part_name}.done", **self._at, part=self._part())
        super().end(status)

    def _part(self) -> dict[str, str]:
        return {"type": "summary_text" if self._wanted.summary else "reasoning_text", "text": self._text}

    def _item(self, status: str, *, begun: bool) -> dict[str, Any]:
        parts = [self._part()] if begun else []
        item: dict[str, Any] = {"id": self._place["item_id"], "type": "reasoning", "status": status}
        item |= {"summary": parts} if self._wanted.summary else {"summary": [], "content": parts}
        return {**item, "encrypted_content": sealed(self._text)} if self._wanted.sealed and begun else item


class FunctionCall(_Item):
    """A call of a function. Its arguments are the engine's, to the letter."""

    prefix = "fc"

    def __init__(self, emit: Emit, call_id: str, index: int, names: Mapping[str, str]) -> None:
        super().__init__(emit, call_id, index)
        self._names = names

    def add(self, piece: str) -> None:
        """More of the arguments."""
        if piece:
            self._pieces.append(piece)
            self._emit("response.function_call_arguments.delta", delta=piece)

    def end(self, status: str) -> None:
        """Tell that the arguments and the call have ended."""
        self._emit("response.function_call_arguments.done", arguments=self._text)
        super().end(status)

    def _item(self, status: str, *, begun: bool) -> dict[str, Any]:  # noqa: ARG002
        ids = {"id": self._place["item_id"], "type": "function_call", "status": status}
        return {**ids, "arguments": self._text, **self._names}


class CustomCall(FunctionCall):
    """A call of a custom tool, whose input is free text."""

    prefix = "ctc"

    def __init__(self, emit: Emit, call_id: str, index: int, names: Mapping[str, str]) -> None:
        super().__init__(emit, call_id, index, names)
        self._reader = InputReader()

    def add(self, piece: str) -> None:
        """More of the arguments that hold the input."""
        if text := self._reader.feed(piece):
            self._tell(text)

    def _tell(self, text: str) -> None:
        self._pieces.append(text)
        self._emit("response.custom_tool_call_input.delta", delta=text)

    def end(self, status: str) -> None:
        """Tell that the input and the call have ended."""
        if rest := self._reader.text()[len(self._text) :]:
            self._tell(rest)
        self._emit("response.custom_tool_call_input.done", input=self._text)
        _Item.end(self, status)

    def _item(self, status: str, *, begun: bool) -> dict[str, Any]:  # noqa: ARG002
        ids = {"id": self._place["item_id"], "type": "custom_tool_call", "status": status}
        return {**ids, "input": self._text, **self._names}


_ItemT = TypeVar("_ItemT", Text, Reasoning, FunctionCall)


@dataclass(frozen=True, slots=True)
class Wanted:
    """How the client wants its items."""

    summary: bool
    """Reasoning as a summary."""
    sealed: bool
    """Reasoning also as `encrypted_content`, for clients that send it back only so."""
    logprobs: bool


@dataclass(slots=True)
class _CallSoFar:
    """A tool call of the engine; its item begins with its first arguments, when its name is whole."""

    id: str = ""
    name: str = ""
    item: FunctionCall | None = None


@dataclass(slots=True)
class Output:
    """The items of one response, in order."""

    emit: Emit
    call_id: str
    wanted: Wanted
    tools: Mapping[str, Tool]
    items: list[Text | Reasoning | FunctionCall] = field(default_factory=list)
    _calls: dict[int, _CallSoFar] = field(default_factory=dict)
    _speaking: Text | Reasoning | None = None
    _logprobs: list[dict[str, Any]] = field(default_factory=list)

    def reason(self, piece: str) -> None:
        """More reasoning."""
        if not isinstance(self._speaking, Reasoning):
            self._stop_speaking()
            self._speaking = self._begin(Reasoning(self.emit, self.call_id, len(self.items), self.wanted))
        self._speaking.add(piece)

    def say(self, piece: str, logprobs: list[dict[str, Any]]) -> None:
        """More text."""
        if not isinstance(self._speaking, Text):
            self._stop_speaking()
            self._speaking = self._begin(Text(self.emit, self.call_id, len(self.items), self.wanted.logprobs))
        self._speaking.add(piece, logprobs)

    def keep_logprobs(self, logprobs: list[dict[str, Any]]) -> None:
        """Logprobs of sampled tokens, whatever the tokens became."""
        self._logprobs += logprobs

    def call(self, index: int, call_id: str, name: str, arguments: str) -> None:
        """More of the engine's tool call `index`."""
        call = self._calls.setdefault(index, _CallSoFar())
        call.id = call.id or call_id
        call.name += name
        if arguments:
            self._item_of(index).add(arguments)

    def _item_of(self, index: int) -> FunctionCall:
        for at, call in sorted(self._calls.items()):
            if at <= index and call.item is None:
                self._stop_speaking()
                call.item = self._begin(self._new_call(call))
        found = self._calls[index].item
        assert found is not None
        return found

    def _new_call(self, call: _CallSoFar) -> FunctionCall:
        tool = self.tools.get(call.name)
        names = {"call_id": call.id, "name": tool.name if tool else call.name}
        if tool and tool.namespace:
            names["namespace"] = tool.namespace
        kind = CustomCall if tool and tool.custom else FunctionCall
        return kind(self.emit, self.call_id, len(self.items), names)

    def close(self, *, cut: bool) -> list[dict[str, Any]]:
        """End all that is open and return the items. `cut`: the last one is incomplete."""
        if self._calls:
            self._item_of(max(self._calls))
        if not self.items:
            self.say("", [])
        if self.wanted.logprobs and len(self.items) == 1 and isinstance(self._speaking, Text):
            # Only then is every sampled token one of the text.
            self._speaking.logprobs = self._logprobs
        for item in self.items:
            if item.final is None:
                item.end("incomplete" if cut and item is self.items[-1] else "completed")
        return self.so_far()

    def so_far(self) -> list[dict[str, Any]]:
        """The items that have ended."""
        return [item.final for item in self.items if item.final is not None]

    def _begin(self, item: _ItemT) -> _ItemT:
        self.items.append(item)
        item.begin()
        return item

    def _stop_speaking(self) -> None:
        if self._speaking is not None:
            self._speaking.end("completed")
            self._speaking = None
