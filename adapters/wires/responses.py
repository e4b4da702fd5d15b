"""The OpenAI Responses API (what Codex and the OpenAI Agents SDK speak), translated to and from chat completions.

The engine is always asked for a chat completion, because only there vLLM returns token ids. Pure functions: see
`responses_request` for the way there and `responses_answer` for the way back.
"""

from adapters.wires.responses_answer import PING, Shown, error_body, error_event
from adapters.wires.responses_request import left_out, to_chat

__all__ = ["NAME", "PING", "Shown", "error_body", "error_event", "left_out", "to_chat"]

NAME = "responses"
