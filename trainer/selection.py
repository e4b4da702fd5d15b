"""What a job trains of the groups that it was given, and why it leaves out the rest. Nothing is changed here."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mosaic.credit import (
    CreditSettings,
    GroupCredit,
    GroupStatistics,
    TrajectoryCredit,
    assign,
    group_input,
    rule_settings,
)
from mosaic.errors import SettingsError
from mosaic.records import Group
from mosaic.settings import TrainConfig
from trainer.contributions import Contributions
from trainer.sequences import Credit, Sequence, build_sequences
from trainer.staleness import Staleness, settle


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
    """The credit rule that is asked for, with its options. Raises `SettingsError`."""
    try:
        return replace(rule_settings(config.credit), **config.credit_options)  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise SettingsError(
            f"train.credit: {error}.", "See mosaic.credit.CreditSettings for names and ranges."
        ) from error


def _credit(given: TrajectoryCredit) -> Credit:
    return Credit(
        sessions={s.session_id: s.advantage for s in given.sessions},
        calls={span.call_id: span.advantage for span in given.spans},
    )
