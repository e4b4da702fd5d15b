"""What a job trains of the groups that it was given, and why it leaves out the rest. Nothing is changed here."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from mosaic.credit import (
    CreditSettings,
    DropReason,
    GroupCredit,
    GroupStatistics,
    TrajectoryCredit,
    assign,
    group_input,
    rule_settings,
)
from mosaic.errors import NothingToTrain
from mosaic.job_settings import TrainConfig
from mosaic.records import Group
from trainer.contributions import Contributions
from trainer.sequences import Credit, Sequence, build_sequences
from trainer.staleness import Staleness, settle

KINDS = {"group": "groups", "trajectory": "trajectories", "call": "calls", "token": "tokens"}
"""How a reason begins -> what it counts; `held_out` counts trajectories."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What a job trains, and what it leaves out."""

    sequences: list[Sequence]
    trained: Mapping[str, float | None]
    """Trajectories with at least one sequence, each with its reward."""
    credits: list[GroupCredit]
    left_out: Mapping[str, int]
    """Reason -> trajectories, groups or calls that are not trained for it."""

    @property
    def groups_trained(self) -> int:
        """Groups with at least one trajectory that is trained."""
        return sum(any(t.trajectory_id in self.trained for t in credit.trajectories) for credit in self.credits)


def told(left_out: Mapping[str, int]) -> str:
    """What is left out, in words: of each kind (groups, trajectories, calls, tokens) how many, and why."""
    kinds: dict[str, list[str]] = {}
    for reason, number in left_out.items():
        kind, _, why = reason.partition("_")
        if kind not in KINDS:
            kind, why = "trajectory", reason
        kinds.setdefault(KINDS[kind], []).append(f"{number} {why}")
    return "; ".join(f"{kind}: {', '.join(reasons)}" for kind, reasons in kinds.items())


def nothing(left_out: Mapping[str, int], inexact: Mapping[str, int]) -> NothingToTrain:
    """The error of a job without anything to learn from. `inexact`: why calls that it looked at cannot be trained."""
    calls = {f"call_{reason}": number for reason, number in inexact.items()}
    step = "Score attempts of one task with different outcomes; see `mosaic train --dry-run`."
    without = f"trajectory_{DropReason.NO_TOKENS}" in left_out
    if without and "other_weights" in inexact:
        step = "`mosaic doctor` says which engine serves other weights than the live ones."
    elif without and inexact:
        step = "`mosaic doctor` says why calls cannot be trained, `mosaic train --dry-run` what else is missing."
    elif not left_out:
        step = "Score attempts with `mosaic reward` or [score]; see `mosaic train --dry-run`, and --only and --task."
    why = told({**left_out, **calls}) or "no trajectory is scored, untrained and chosen"
    return NothingToTrain(f"there is nothing to learn from ({why}).", step)


def choose(
    groups: list[Group], config: TrainConfig, rule: CreditSettings, version: int, known: Contributions | None = None
) -> Selection:
    """`select`, and what becomes of tokens that versions before the live one sampled."""
    selection = select(groups, config, rule, known)
    sequences, counted = settle(
        selection.sequences, version, Staleness(config.stale_tokens, config.fresh_versions, config.stale_decay)
    )
    left = {sequence.trajectory_id for sequence in sequences}
    return Selection(
        sequences,
        {name: reward for name, reward in selection.trained.items() if name in left},
        selection.credits,
        {**selection.left_out, **counted},
    )


def select(
    groups: list[Group], config: TrainConfig, rule: CreditSettings, known: Contributions | None = None
) -> Selection:
    """Credit the groups and turn what carries a signal into sequences. Every drop is counted by its reason."""
    left_out: Counter[str] = Counter()
    known = known or Contributions(GroupStatistics())
    credits = assign([group_input(g, known.estimator, known.call_gains) for g in groups], rule)
    sequences: list[Sequence] = []
    trained: dict[str, float | None] = {}
    for group, credit in zip(groups, credits, strict=True):
        left_out.update(f"trajectory_{reason}" for reason in credit.dropped.values())
        if credit.drop_reason is not None:
            left_out[f"group_{credit.drop_reason}"] += 1
            continue
        members = {t.trajectory_id: t for t in group.trajectories}
        for given in credit.trajectories:
            built = build_sequences(members[given.trajectory_id], _credit(given), config.max_tokens)
            left_out.update({f"call_{reason}": n for reason, n in built.reasons.items()})
            sequences += built.sequences
            if built.sequences:
                trained[given.trajectory_id] = members[given.trajectory_id].reward
    return Selection(sequences, trained, credits, dict(left_out))


def rule(config: TrainConfig) -> CreditSettings:
    """The credit rule that is asked for, with its options."""
    return rule_settings(config.credit, config.credit_options)


def _credit(given: TrajectoryCredit) -> Credit:
    return Credit(
        sessions={s.session_id: s.advantage for s in given.sessions},
        calls={span.call_id: span.advantage for span in given.spans},
    )
