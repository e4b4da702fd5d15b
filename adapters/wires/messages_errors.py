"""Errors as Anthropic words them, so that agents react as they would to Anthropic.

Agents compact on "prompt is too long", and lower `max_tokens` on the other context error: both are recognised by their
words. Source: platform.claude.com, "Errors"; anthropics/claude-code#228 and #4951 for the wording.
"""

import re

import orjson

from adapters.wires.messages_blocks import sse

_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}

_CONTEXT = re.compile(r"maximum context length (?:is|of|\()\s*(?P<limit>\d+)")
_PROMPT = re.compile(
    r"(?:contains (?:at least )?|input length \(|\()(?P<prompt>\d+)\s*(?:input tokens|in the messages|\) exceeds)",
    re.IGNORECASE,
)
_OUTPUT = re.compile(r"requested (?P<requested>\d+) output tokens|(?P<completion>\d+) in the completion")

PING = sse("ping", {})
"""Keeps a quiet stream open; clients skip it."""


def error_body(status: int, message: str, code: str | None = None) -> bytes:
    """The body of an answer with that status. A full context is told in Anthropic's own words."""
    return orjson.dumps(_error(error_type(status), _in_anthropic_words(message, code)))


def error_event(message: str) -> bytes:
    """The event that ends a stream that broke."""
    return sse("error", _error("api_error", _in_anthropic_words(message, None)))


def error_type(status: int) -> str:
    """Anthropic's name for an error of that status."""
    return _TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")


def _error(kind: str, message: str) -> dict[str, object]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def _in_anthropic_words(message: str, code: str | None) -> str:
    """What vLLM says of a full context, in Anthropic's words; any other message as it is.

    vLLM counts characters, not tokens, when a prompt cannot fit by far: the count is then the least that is too long.
    """
    limit = _CONTEXT.search(message)
    if limit is None:
        return f"prompt is too long: {message}" if code == "context_length_exceeded" else message
    most = int(limit["limit"])
    prompt, output = _PROMPT.search(message), _OUTPUT.search(message)
    tokens = int(prompt["prompt"]) if prompt else most + 1
    if output and tokens < most:
        asked = int(output["requested"] or output["completion"])
        tail = f"{tokens} + {asked} > {most}, decrease input length or `max_tokens` and try again"
        return f"input length and `max_tokens` exceed context limit: {tail}"
    return f"prompt is too long: {max(tokens, most + 1)} tokens > {most} maximum"
