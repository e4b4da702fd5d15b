"""Contribution by information gain: how much likelier a session made the right answer in the policy's own eyes (E1).

The pure part. `contexts` names the prompts to be scored, all of them prompts that were really sent (some with reports
blanked out); whoever can reach the engine scores the task's answer after each; `contributions` and `call_gains` turn
the scores into numbers. Nothing that is scored is ever sampled from, so the answer cannot leak into a rollout.

Scoring the answer by the policy is IGPO's (arXiv 2510.14967), per turn; moving it to sessions, leaving out one report
at a time, and the log scale are this project's own (mosaic.md, section 4.2; docs/decisions.md on leave-one-out).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mosaic.credit.session_tree import SessionTree
from mosaic.records import Call, Trajectory


class Scale(StrEnum):
    """In what the policy's belief in the answer is measured."""

    PROBABILITY = "probability"
    """Geometric mean of the tokens' probabilities."""
    LOG = "log"
    """1 + (mean log-probability) / floor, so that a weak policy's small probabilities still differ."""


@dataclass(frozen=True, slots=True)
class Context:
    """The prompt of a recorded call, with some tool results replaced by a placeholder."""

    call_id: str
    hidden: frozenset[str] = frozenset()
    """Tool-call ids whose results are blanked out."""


@dataclass(frozen=True, slots=True)
class Survival:
    """What of the answer's information a compaction or handoff kept."""

    session_id: str
    """The session that opened with the summary."""
    start: float
    """Score of the bare question."""
    before: float
    """Score in the last prompt before the summary."""
    after: float
    """Score in the first prompt after it."""

    @property
    def share(self) -> float | None:
        """Part of the gain that survived, at least 0; None when there was nothing to lose."""
        gain = self.before - self.start
        return max(0.0, (self.after - self.start) / gain) if gain > 0.01 else None


Scores = Mapping[Context, float]


def confidence(mean_logprobs: Iterable[float], scale: Scale = Scale.PROBABILITY, floor: float = 10.0) -> float:
    """Return a score in [0, 1] from the mean log-probability per token of each accepted answer; the best one counts.

    `floor` is in nats per token, > 0: on the log scale, nothing less likely than exp(-floor) is told apart.
    """
    best = min(max((x for x in mean_logprobs if not math.isnan(x)), default=-math.inf), 0.0)
    return math.exp(best) if scale is Scale.PROBABILITY else 1 + max(best, -floor) / floor


def contexts(trajectory: Trajectory, chunks: bool = False) -> tuple[Context, ...]:
    """Return every context that `contributions` and `survivals` need, and with `chunks` those of `call_gains`."""
    tree = SessionTree(trajectory)
    needed: list[Context] = []
    for session in trajectory.sessions:
        calls = tree.calls(session.session_id)
        needed += [Context(call.call_id) for call in (calls if chunks else [*calls[:1], *calls[-1:]])]
        for call, reports in tree.joins(session.session_id):
            needed += _partial(call, reports)
        for _, following, results in tree.turns(session.session_id) if chunks else ():
            needed += _partial(following, results) if len(results) > 1 else []
    for successor, before in tree.handoffs():
        needed += [Context(before.call_id), Context(successor.call_id)]
    return tuple(dict.fromkeys(needed))


def contributions(trajectory: Trajectory, scores: Scores, high_water: bool = False) -> dict[str, float]:
    """Return the contribution of each session by its id; a session with an unscored context is left out.

    A chain's session: the score after it minus the score before it, less what its subagents contributed; these sum to
    the gain over the bare question. With `high_water`, only what exceeds the best score so far counts (against
    policies that raise a score by lowering it first). A subagent: the score with all reports minus that without its
    own, at the call in which they arrive; nothing to either of two that found the same. A session that only delegated:
    the mean of its subagents.
    """
    tree = SessionTree(trajectory)
    found: dict[str, float] = {}
    if trajectory.sessions:
        _chain(tree, trajectory.sessions[0].session_id, scores, found, high_water)
    return found


def _chain(tree: SessionTree, first: str, scores: Scores, found: dict[str, float], high_water: bool = False) -> None:
    """Contributions of a session and its successors, and of all that they sent out."""
    best = -math.inf
    for session_id in tree.chain(first):
        children = _children(tree, session_id, scores, found)
        before, after = (_score(scores, call) for call in tree.ends(session_id))
        best = max(best, before)
        gain = max(0.0, after - best) if high_water else after - before
        best = max(best, after)
        if children and tree.only_delegated(session_id):
            found[session_id] = math.fsum(children) / len(children)
        elif not math.isnan(gain):
            found[session_id] = max(gain - math.fsum(children), -1.0)


def _children(tree: SessionTree, session_id: str, scores: Scores, found: dict[str, float]) -> list[float]:
    """Contributions of the subagents whose reports arrive in this session; also entered into `found`."""
    totals = []
    for call, results in tree.joins(session_id):
        for child, total in zip(results.values(), _shares(call, tuple(results), scores), strict=True):
            if child is None or math.isnan(total):
                continue
            totals.append(total)
            below: dict[str, float] = {}
            _chain(tree, child, scores, below)
            chain = tree.chain(child)
            # A subagent that was compacted: its sessions share its contribution by what each of them gained.
            gains = [max(below.get(sid, 0.0), 0.0) for sid in chain]
            parts = [g / sum(gains) for g in gains] if sum(gains) else [1 / len(chain)] * len(chain)
            found.update(below)
            found.update({sid: total * part for sid, part in zip(chain, parts, strict=True)})
    return totals


def call_gains(trajectory: Trajectory, scores: Scores, chunks: bool = False) -> dict[str, tuple[float, ...]]:
    """Return, per call that a later prompt of its context follows, what it gained (IGPO's turn-level gain).

    With `chunks`, one number per tool result that it brought back, by leaving it out; else one.
    """
    tree = SessionTree(trajectory)
    found = {}
    for session in trajectory.sessions:
        for call, following, results in tree.turns(session.session_id):
            several = chunks and len(results) > 1
            gain = _score(scores, following) - _score(scores, call)
            gains = _shares(following, results, scores) if several else (gain,)
            if not any(map(math.isnan, gains)):
                found[call.call_id] = gains
    return found


def survivals(trajectory: Trajectory, scores: Scores) -> tuple[Survival, ...]:
    """Return, per compaction or handoff, the scores around it: how well the policy carries state across sessions."""
    tree = SessionTree(trajectory)
    start = _score(scores, tree.question())
    rows = []
    for successor, before in tree.handoffs():
        row = Survival(tree.session_of(successor), start, _score(scores, before), _score(scores, successor))
        if not any(map(math.isnan, (row.start, row.before, row.after))):
            rows.append(row)
    return tuple(rows)


def _partial(call: Call, results: Iterable[str]) -> list[Context]:
    """The call's prompt with all and without each of the results."""
    one_hidden = (frozenset({one}) for one in sorted(set(results)))
    return [Context(call.call_id, hidden) for hidden in (frozenset[str](), *one_hidden)]


def _shares(call: Call, results: Sequence[str], scores: Scores) -> tuple[float, ...]:
    """The score of all results minus that without each."""
    whole = _score(scores, call)
    return tuple(whole - scores.get(Context(call.call_id, frozenset({one})), math.nan) for one in results)


def _score(scores: Scores, call: Call | None) -> float:
    return math.nan if call is None else scores.get(Context(call.call_id), math.nan)
