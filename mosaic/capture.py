"""A call as the proxy captured it, before lineage has placed it.

It is what travels from the wire to lineage and the store. It never holds a credential. Nobody changes it; what is made
for every call is not `frozen` only because that makes its `__init__` three times as slow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from mosaic.records import IdArray, LogprobArray, Message

Spans = tuple[tuple[int, int, int], ...]
"""(policy version, first token, end) over the tokens of a choice."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """What exact prefix mode made of a call (DESIGN.md §5)."""

    kind: str
    """`exact`: the engine's rendering had the sampled ids already (or nothing was sampled before). `spliced`: they were
    put into it. `fell_back`: the last reply in the prompt is not the ids that were sampled, or nobody knows."""
    reason: str | None = None
    """Why it fell back."""
    versions: tuple[tuple[int, Spans], ...] = ()
    """(choice, its versions) where the engine named them."""


class CallStatus(StrEnum):
    """How a call ended."""

    OK = "ok"
    ABORTED = "aborted"
    """The client left before the end."""
    FAILED = "failed"
    """The engine refused, died or sent something unusable."""
    INTERRUPTED = "interrupted"
    """The proxy was killed while the call was in flight."""


@dataclass(slots=True)
class Choice:
    """One choice of the reply."""

    index: int
    message: Message
    """The assistant message, assembled from the stream where there was one."""
    finish_reason: str | None
    ids_T: IdArray
    """Sampled token ids; empty when the engine sent none."""
    logprobs_T: LogprobArray
    """Natural-log probabilities, one per sampled id; empty when the engine sent none."""
    arrivals: tuple[tuple[int, float], ...] = ()
    """(tokens so far, unix seconds) at each chunk: tells which policy version sampled which token."""


@dataclass(slots=True)
class CapturedCall:
    """One request and its answer, as seen on the wire."""

    call_id: str
    wire: str
    """Name of the wire, for example `chat`."""
    status: CallStatus
    http_status: int
    """Status that the client got; 499 when it left before any."""
    messages: tuple[Message, ...]
    """The request's messages."""
    params: Mapping[str, Any]
    """The request's body without its messages."""
    choices: tuple[Choice, ...]
    prompt_ids_P: IdArray
    """Prompt ids as the engine reported them; empty when it sent none."""
    usage: Mapping[str, Any] | None
    inexact_reason: str | None
    """Why the call cannot be trained, or None when it is exact."""
    started_at: float
    """Unix seconds when the request was complete."""
    first_byte_at: float | None
    """Unix seconds of the engine's first body bytes; None when there were none."""
    ended_at: float
    trajectory_id: str | None = None
    """The operator's trajectory (path, key or header); None when lineage has to find it."""
    attribution: str = "lineage"
    """What named the trajectory: `path`, `header` or `lineage`."""
    task_key: str | None = None
    """The operator's task key; None derives it from the first user message."""
    client: str = ""
    """What tells clients apart without naming them: user agent and a digest of the key."""
    retry_count: int = 0
    """The SDK's own retry counter (`x-stainless-retry-count`)."""
    error: str | None = None
    """One line on what went wrong, for failed and aborted calls."""
    streamed: bool = False
    fidelity: Fidelity | None = None
    """None in capture mode."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Request headers that frameworks use for their ids; never credentials."""

    @property
    def exact(self) -> bool:
        """True when ids, logprobs and usage agree, so that the call can be trained."""
        return self.inexact_reason is None

    @property
    def tool_names(self) -> frozenset[str]:
        """Names of the tools that the request offers."""
        tools = self.params.get("tools")
        found = [t.get("function", t) for t in tools if isinstance(t, dict)] if isinstance(tools, list) else []
        return frozenset(str(f.get("name", "")) for f in found if isinstance(f, dict))
