"""From a recorded trajectory and its credit to training sequences.

The calls of a session are joined while each prompt starts exactly with the ids of the call before it, prompt and
sample; where it does not, a new sequence starts and its cause is named. So every sampled token is trained once, at the
position and after the very prefix at which it was sampled (DESIGN.md, invariant 18), and whatever is left out is listed
with a reason. Numpy only: nothing here may tokenise text, invent a logprob or import torch.

Suffixes: `_L` tokens of a sequence, `_P` prompt tokens of a call, `_T` sampled tokens.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from mosaic.records import Call, IdArray, LogprobArray, Sample, Session, SessionKind, Trajectory

UNTRAINED_VERSION = -1
"""Policy version of a token that the policy did not sample here."""


class Cause(StrEnum):
    """Why a sequence starts: the first five open a session, the others break one."""

    ROOT = "root"
    COMPACTION = "compaction"
    SPAWN = "spawn"
    HANDOFF = "handoff"
    FORK = "fork"
    SUMMARY = "summary"
    """The call that writes a summary, handed a prompt that does not extend the session."""
    CHOICE = "choice"
    """Another choice (n > 1) of a call whose chain goes on, or ends, with a different one."""
    BRANCH = "branch"
    """Extends a sample that another call has already extended."""
    RESAMPLED = "resampled"
    """The very prompt of an earlier call again."""
    REPLY_CHANGED = "reply_changed"
    """Extends an earlier call's prompt but not its sampled ids: edited, dropped or tokenised differently."""
    PREFIX_BROKEN = "prefix_broken"
    """Not even the prompts agree: changed system prompt or tools, or history rewritten further back."""


class Reason(StrEnum):
    """Why a call, or one of its samples, is not trained."""

    AUXILIARY = "auxiliary"
    INEXACT = "inexact"
    EMPTY = "empty"
    BAD_LOGPROBS = "bad_logprobs"
    """Logprobs are missing, positive or not finite."""
    NO_CREDIT = "no_credit"
    """Its session has no advantage."""
    DUPLICATE = "duplicate"
    """The call already belongs to an earlier session of the trajectory."""
    TOO_LONG = "too_long"
    """Its last token lies beyond the maximal sequence length."""


@dataclass(frozen=True, slots=True)
class Credit:
    """The advantages of one trajectory, as the credit rule gave them."""

    sessions: Mapping[str, float]
    """Advantage per session id; a session that is missing is left out of training."""
    calls: Mapping[str, float] = field(default_factory=dict)
    """Advantage per call id where it differs from the session's (decision spans: handoff, spawn, answer)."""


@dataclass(frozen=True, slots=True)
class Span:
    """Where the sampled tokens of one call stand in its sequence."""

    call_id: str
    sample_index: int
    """Index of the choice in the reply."""
    start: int
    """Position of the first sampled token; everything before it is the call's prompt."""
    end: int
    """Position after the last sampled token."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """One row of training data; all `_L` arrays have the same length."""

    trajectory_id: str
    session_id: str
    cause: Cause
    ids_L: IdArray
    mask_L: NDArray[np.bool_]
    """True where the policy sampled the token and it is trained here."""
    logprobs_L: LogprobArray
    """Engine logprob at sampling, natural logarithm; 0 where not trained."""
    advantages_L: NDArray[np.float32]
    """0 where not trained."""
    versions_L: NDArray[np.int32]
    """Policy version that sampled the token; -1 where not trained. When a swap fell inside a call only both ends are
    known: the last token has the later version, all before it the earlier one."""
    prompt_len: int
    """Tokens before the first trained one."""
    spans: tuple[Span, ...]
    """One per call, in order."""

    @property
    def call_ids(self) -> tuple[str, ...]:
        """Ids of the calls trained here, in order."""
        return tuple(span.call_id for span in self.spans)

    @property
    def n_trained(self) -> int:
        """Number of trained tokens, at least 1."""
        return int(self.mask_L.sum())


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A call, or one sample of it, that is not trained."""

    call_id: str
    sample_index: int | None
    """Choice that is left out; None for the whole call."""
    reason: Reason


@dataclass(frozen=True, slots=True)
class TrajectorySequences:
    """What one trajectory became."""

    sequences: tuple[Sequence, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def causes(self) -> Counter[Cause]:
        """Number of sequences per cause."""
        return Counter(sequence.cause for sequence in self.sequences)

    @property
    def reasons(self) -> Counter[Reason]:
        """Number of calls (or samples) left out per reason."""
        return Counter(item.reason for item in self.left_out)


def build_sequences(trajectory: Trajectory, credit: Credit, max_length: int) -> TrajectorySequences:
    """Turn a trajectory into training sequences of at most `max_length` tokens.

    A chain that is too long loses whole calls from its end. The order is that of sessions, then of chains.
    """
    summary_calls = {
        session.opened_by_call_id
        for session in trajectory.sessions
        if session.kind in (SessionKind.COMPACTION, SessionKind.HANDOFF) and session.opened_by_call_id is not None
    }
    left_out: list[LeftOut] = []
    sequences: list[Sequence] = []
    seen: set[str] = set()
    for session in trajectory.sessions:
        calls = list(_trainable_calls(session, credit, seen, left_out))
        for chain in _chains(session, calls, summary_calls):
            _truncate(chain, max_length, left_out)
            if chain.parts:
                sequences.append(_sequence(trajectory.trajectory_id, session.session_id, chain, credit))
    return TrajectorySequences(tuple(sequences), tuple(left_out))


def answer_call_id(trajectory: Trajectory) -> str | None:
    """Return the task call that ends the trajectory, whose tokens are the "answer" span; None without a task call.

    It is the last task call of the root, or, where contexts were compacted or handed over, of the session at the end of
    that chain (mosaic.md 4.6).
    """
    if not trajectory.sessions:
        return None
    session = trajectory.sessions[0]
    for candidate in trajectory.sessions[1:]:
        continues = candidate.kind in (SessionKind.COMPACTION, SessionKind.HANDOFF)
        if continues and candidate.parent_session_id == session.session_id:
            session = candidate
    return next((call.call_id for call in reversed(session.calls) if call.auxiliary is None), None)


@dataclass(slots=True)
class _Chain:
    """A sequence in the making: decided parts, and the call whose continued sample is not known yet."""

    cause: Cause
    parts: list[tuple[Call, Sample]]
    tail: Call | None


def _trainable_calls(session: Session, credit: Credit, seen: set[str], left_out: list[LeftOut]) -> Iterator[Call]:
    for call in session.calls:
        reason = Reason.NO_CREDIT if session.session_id not in credit.sessions else _reason_against(call)
        if call.call_id in seen:
            reason = Reason.DUPLICATE
        seen.add(call.call_id)
        if reason is None:
            yield call
        else:
            left_out.append(LeftOut(call.call_id, None, reason))


def _reason_against(call: Call) -> Reason | None:
    if call.auxiliary is not None:
        return Reason.AUXILIARY
    if not call.exact or not len(call.prompt_ids_P):
        return Reason.INEXACT
    if not any(len(sample.ids_T) for sample in call.samples):
        return Reason.EMPTY
    if not all(_has_logprobs(sample) for sample in call.samples):
        return Reason.BAD_LOGPROBS
    return None


def _has_logprobs(sample: Sample) -> bool:
    logprobs_T = sample.logprobs_T
    # The engine rounds: a certain token may come back a hair above 0.
    return len(logprobs_T) == len(sample.ids_T) and bool(np.isfinite(logprobs_T).all() and (logprobs_T <= 1e-3).all())


def _samples(call: Call) -> list[Sample]:
    return [sample for sample in call.samples if len(sample.ids_T)]


def _extends(call: Call, earlier: Call, sample: Sample) -> bool:
    ids_P, n_prompt, n_sampled = call.prompt_ids_P, len(earlier.prompt_ids_P), len(sample.ids_T)
    return (
        len(ids_P) >= n_prompt + n_sampled
        and np.array_equal(ids_P[n_prompt : n_prompt + n_sampled], sample.ids_T)
        and np.array_equal(ids_P[:n_prompt], earlier.prompt_ids_P)
    )


def _continued(call: Call, earlier: Call) -> Sample | None:
    """Return the sample of `earlier` that `call` extends; the longest one where several fit."""
    fitting = [sample for sample in _samples(earlier) if _extends(call, earlier, sample)]
    return max(fitting, key=lambda sample: len(sample.ids_T), default=None)


def _chains(session: Session, calls: list[Call], summary_calls: set[str]) -> list[_Chain]:
    """Join the calls of a session into chains; unchosen samples follow the chain that they left."""
    chains: list[_Chain] = []
    choices: list[_Chain] = []
    for n_before, call in enumerate(calls):
        for chain in reversed(chains):
            sample = None if chain.tail is None else _continued(call, chain.tail)
            if sample is not None:
                _decide(chain, sample, choices)
                chain.tail = call
                break
        else:
            cause = Cause(session.kind.value)
            if n_before:
                cause = _why_broken(call, calls[:n_before], summary_calls)
            chains.append(_Chain(cause, [], call))
    for chain in chains:
        if chain.tail is not None:
            _decide(chain, _samples(chain.tail)[0], choices)
    return chains + choices


def _decide(chain: _Chain, chosen: Sample, choices: list[_Chain]) -> None:
    """Settle which sample of the tail the chain goes through; the others become sequences of their own."""
    call = chain.tail
    assert call is not None
    chain.parts.append((call, chosen))
    chain.tail = None
    choices.extend(_Chain(Cause.CHOICE, [(call, other)], None) for other in _samples(call) if other is not chosen)


def _why_broken(call: Call, earlier_calls: list[Call], summary_calls: set[str]) -> Cause:
    if call.call_id in summary_calls:
        return Cause.SUMMARY
    if any(_continued(call, earlier) is not None for earlier in earlier_calls):
        return Cause.BRANCH
    prompts = [earlier.prompt_ids_P for earlier in earlier_calls]
    if any(np.array_equal(call.prompt_ids_P, prompt_P) for prompt_P in prompts):
        return Cause.RESAMPLED
    if any(np.array_equal(call.prompt_ids_P[: len(prompt_P)], prompt_P) for prompt_P in prompts):
        return Cause.REPLY_CHANGED
    return Cause.PREFIX_BROKEN


def _truncate(chain: _Chain, max_length: int, left_out: list[LeftOut]) -> None:
    while chain.parts:
        call, sample = chain.parts[-1]
        if len(call.prompt_ids_P) + len(sample.ids_T) <= max_length:
            return
        left_out.append(LeftOut(call.call_id, sample.index, Reason.TOO_LONG))
        chain.parts.pop()


def _sequence(trajectory_id: str, session_id: str, chain: _Chain, credit: Credit) -> Sequence:
    last_call, last_sample = chain.parts[-1]
    ids_L = np.concatenate([last_call.prompt_ids_P, last_sample.ids_T]).astype(np.int32)
    mask_L = np.zeros(len(ids_L), dtype=np.bool_)
    logprobs_L = np.zeros(len(ids_L), dtype=np.float32)
    advantages_L = np.zeros(len(ids_L), dtype=np.float32)
    versions_L = np.full(len(ids_L), UNTRAINED_VERSION, dtype=np.int32)
    spans = []
    for call, sample in chain.parts:
        start = len(call.prompt_ids_P)
        end = start + len(sample.ids_T)
        mask_L[start:end] = True
        logprobs_L[start:end] = sample.logprobs_T
        advantages_L[start:end] = credit.calls.get(call.call_id, credit.sessions[session_id])
        versions_L[start:end] = call.policy_version
        versions_L[end - 1] = call.policy_version_end
        spans.append(Span(call.call_id, sample.index, start, end))
    return Sequence(
        trajectory_id=trajectory_id,
        session_id=session_id,
        cause=chain.cause,
        ids_L=ids_L,
        mask_L=mask_L,
        logprobs_L=logprobs_L,
        advantages_L=advantages_L,
        versions_L=versions_L,
        prompt_len=spans[0].start,
        spans=tuple(spans),
    )
