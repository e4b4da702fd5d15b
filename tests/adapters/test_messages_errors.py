"""Errors in Anthropic's words, raised by the `anthropic` client itself."""

import json

import anthropic
import orjson
import pytest

from adapters.wires import messages
from tests.adapters.messages_builders import (
    client,
    events_of,
)


@pytest.mark.parametrize(
    ("status", "kind", "raised"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (401, "authentication_error", anthropic.AuthenticationError),
        (403, "permission_error", anthropic.PermissionDeniedError),
        (404, "not_found_error", anthropic.NotFoundError),
        (413, "request_too_large", anthropic.APIStatusError),
        (422, "invalid_request_error", anthropic.UnprocessableEntityError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (500, "api_error", anthropic.InternalServerError),
        (502, "api_error", anthropic.InternalServerError),
        (503, "overloaded_error", anthropic.APIStatusError),
        (529, "overloaded_error", anthropic.APIStatusError),
    ],
)
def test_an_error_has_the_type_of_its_status(status: int, kind: str, raised: type[anthropic.APIStatusError]) -> None:
    body = messages.error_body(status, "It went wrong.")
    assert orjson.loads(body) == {"type": "error", "error": {"type": kind, "message": "It went wrong."}}
    with client(body, status=status) as anthropic_client, pytest.raises(raised, match=r"It went wrong\."):
        anthropic_client.messages.create(model="policy", max_tokens=1, messages=[{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input "
            "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the prompt.",
            "prompt is too long: 4097 tokens > 4096 maximum",
        ),
        (
            "This model's maximum context length is 4096 tokens. However, your prompt contains 99999 characters (more "
            "than 81920 characters, which is the upper bound for 4096 input tokens). Please reduce the length.",
            "prompt is too long: 4097 tokens > 4096 maximum",
        ),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4500 in the "
            "messages, 500 in the completion). Please reduce the length of the messages or completion.",
            "prompt is too long: 4500 tokens > 4096 maximum",
        ),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 512 output tokens and your "
            "prompt contains at least 3800 input tokens, for a total of at least 4312 tokens.",
            "input length and `max_tokens` exceed context limit: 3800 + 512 > 4096, "
            "decrease input length or `max_tokens` and try again",
        ),
        (
            "Input length (5000) exceeds model's maximum context length (4096).",
            "prompt is too long: 5000 tokens > 4096 maximum",
        ),
        ("The model `x` does not exist.", "The model `x` does not exist."),
    ],
)
def test_a_full_context_is_told_in_anthropics_words(said: str, told: str) -> None:
    assert json.loads(messages.error_body(400, said))["error"]["message"] == told
    assert events_of(messages.error_event(said))[0][1]["error"]["message"] == told


def test_a_full_context_is_known_by_its_code_too() -> None:
    body = messages.error_body(400, "It does not fit.", "context_length_exceeded")
    assert json.loads(body)["error"]["message"] == "prompt is too long: It does not fit."
