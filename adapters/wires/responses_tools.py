"""Tools of the Responses API as functions of chat completions, and their calls back again.

A namespaced tool is a function `<namespace>__<name>`; a custom tool is a function with one string parameter `input`.
Both ways depend on the item alone and not on the tools of the request, so that a history reads the same in a request
that offers none (Codex compacts so). Tools that the engine would have to run are left out.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mosaic.errors import RequestError

_SERVED = frozenset({"function", "custom", "namespace"})


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the client offers."""

    name: str
    namespace: str | None
    custom: bool
    """True when its input is free text and not JSON arguments."""
    function: Mapping[str, Any]
    """The function that the engine is told."""


def chat_name(name: str, namespace: object) -> str:
    """The name of the function that stands for a tool."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def offered(tools: object) -> dict[str, Tool]:
    """The tools that the engine gets, by their name in chat. Raises `RequestError` for one that cannot be read."""
    if tools is None:
        return {}
    if not isinstance(tools, list) or not all(isinstance(t, dict) for t in tools):
        raise RequestError("`tools` must be a list of objects.", 'For example [{"type": "function", "name": ...}].')
    found = (tool for at, raw in enumerate(tools) for tool in _tools_of(raw, f"tools[{at}]"))
    return {chat_name(tool.name, tool.namespace): tool for tool in found}


def served(tools: object) -> list[dict[str, Any]]:
    """The client's tools of the kinds that are in effect, with the fields that the real API fills in."""
    known = [t for t in tools if isinstance(t, dict) and t.get("type") in _SERVED] if isinstance(tools, list) else []
    return [_shown(tool) for tool in known]


def _shown(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool["type"] == "function":
        return {"description": None, "parameters": None, "strict": None, **tool}
    return {"description": "", **tool} if tool["type"] == "namespace" else dict(tool)


def _tools_of(raw: Mapping[str, Any], field: str, namespace: str | None = None) -> Iterator[Tool]:
    kind = raw.get("type")
    if kind not in _SERVED:
        return
    name = raw.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"`{field}.name` must be a text that is not empty.", "Name the tool.")
    if kind == "namespace":
        inner = raw.get("tools") or ()
        for at, tool in enumerate(t for t in inner if isinstance(t, dict)):
            yield from _tools_of(tool, f"{field}.tools[{at}]", name)
    elif kind == "custom":
        yield Tool(name, namespace, True, _custom_function(raw, chat_name(name, namespace)))
    else:
        yield Tool(name, namespace, False, _function(raw, chat_name(name, namespace)))


def _function(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
    function |= {key: raw[key] for key in ("description", "strict") if raw.get(key) is not None}
    return {**function, "parameters": raw.get("parameters") or {"type": "object", "properties": {}}}


def _custom_function(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    description = str(raw.get("description") or "")
    form = raw.get("format")
    if isinstance(form, dict) and form.get("type") == "grammar":
        grammar = f"The input must follow this {form.get('syntax')} grammar:\n{form.get('definition')}"
        description = f"{description}\n\n{grammar}".lstrip()
    text = {"type": "string", "description": "The whole input of the tool, as plain text."}
    parameters = {"type": "object", "properties": {"input": text}, "required": ["input"]}
    return {"name": name, "description": description, "parameters": parameters}


def arguments_of(text: str) -> str:
    """The arguments of the function that stands for a custom tool, written as vLLM's parsers write them."""
    return json.dumps({"input": text}, ensure_ascii=False)


_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_TOKEN = r"""
    [^"\\]++                                                  # plain text
  | \\["\\/bfnrt]
  | \\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}    # a pair of surrogates
  | \\u[dD][89abAB][0-9a-fA-F]{2}(?=[^\\]|\\[^u]|\\u(?:[^dD]|[dD][^c-fC-F]))  # half a pair: no more comes
  | \\u(?![dD][89abAB])[0-9a-fA-F]{4}
  | \\u(?=[0-9a-fA-F]{0,3}[^0-9a-fA-F])                       # not an escape of JSON: taken as it stands
  | \\[^"\\/bfnrtu]
"""
_ONE = re.compile(_TOKEN, re.VERBOSE)
_MANY = re.compile(f"(?:{_TOKEN})*+", re.VERBOSE)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}


class InputReader:
    """Reads a custom tool's text out of `{"input": "..."}` while it comes, whatever way it was split.

    What a model got wrong inside the string (escapes that JSON does not know, raw line ends) is taken as it stands;
    arguments of another shape are the text themselves.
    """

    def __init__(self) -> None:
        self._raw = ""
        self._at: int | None = None
        """Where the part of the string that was not read yet begins; None before the string begins."""
        self._pieces: list[str] = []

    def feed(self, piece: str) -> str:
        """The text that `piece` adds for certain."""
        self._raw += piece
        if self._at is None:
            opening = _OPENING.match(self._raw)
            if opening is None:
                return ""
            self._at = opening.end()
        end = self._end_of_known()
        text = _ONE.sub(_unescaped, self._raw[self._at : end])
        self._at = end
        self._pieces.append(text)
        return text

    def _end_of_known(self) -> int:
        found = _MANY.match(self._raw, self._at or 0)
        assert found is not None
        return found.end()

    def text(self) -> str:
        """The whole text, once no more comes."""
        if self._at is not None:
            return "".join(self._pieces)
        try:
            parsed = json.loads(self._raw, strict=False)
        except (ValueError, RecursionError):
            return self._raw
        text = parsed.get("input") if isinstance(parsed, dict) else None
        return _scalar(text) if isinstance(text, str) else self._raw


def _unescaped(found: re.Match[str]) -> str:
    token = found[0]
    if token[0] != "\\":
        return token
    if token[1] != "u":
        return _ESCAPES.get(token[1], token)
    return token if len(token) == 2 else _scalar(json.loads(f'"{token}"'))


def _scalar(text: str) -> str:
    """The text with U+FFFD in place of what no encoding can carry."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
