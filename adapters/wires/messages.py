"""Anthropic's Messages API, translated to and from the chat completions that vLLM serves. No sockets, no clock.

The upstream is always chat completions: only there vLLM returns token ids. `messages_request` turns requests into chat,
`messages_answer` chat answers into Messages (`messages_blocks` orders the streams), `messages_errors` words the errors.
"""

import orjson

from adapters.wires.messages_answer import Shown
from adapters.wires.messages_errors import PING, error_body, error_event
from adapters.wires.messages_request import count_tokens_body, to_chat
from mosaic.errors import EngineError

__all__ = [
    "NAME",
    "PING",
    "Shown",
    "count_tokens_answer",
    "count_tokens_body",
    "error_body",
    "error_event",
    "to_chat",
]

NAME = "messages"


def count_tokens_answer(upstream: bytes) -> bytes:
    """The answer of `/v1/messages/count_tokens` for what vLLM's `/tokenize` said. Raises `EngineError` otherwise."""
    try:
        return orjson.dumps({"input_tokens": int(orjson.loads(upstream)["count"])})
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise EngineError("the engine's /tokenize answered without a count.", "Check that upstream is vLLM.") from error
