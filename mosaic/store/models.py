"""The tables of DESIGN.md §6. Their names and columns are part of the public interface: users query them.

Times are Unix seconds (UTC). JSON columns hold text, so that both databases return exactly what was written. Whatever
comes from outside is `Text`: a length limit would turn an odd client into a lost call. A change here needs a migration
(`migrations/`), and the views (`views.py`) show these tables with plain columns.
"""

from sqlalchemy import (
    BigInteger,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}

Id = String(64)
Digest = String(32)
RowId = BigInteger().with_variant(Integer, "sqlite")
_FIRST = text("parent_id is null")
"""Where a message is the first of its chain; what follows one has its number, and is unique with it."""


class Base(DeclarativeBase):
    """Declarative base with a naming convention, so that migrations can name every constraint."""

    metadata = MetaData(naming_convention=NAMING)


class TaskRow(Base):
    """What was attempted."""

    __tablename__ = "tasks"
    task_key: Mapped[str] = mapped_column(Text, primary_key=True)
    text: Mapped[str] = mapped_column(Text)
    created_at: Mapped[float] = mapped_column(Float(53))


class TrajectoryRow(Base):
    """One attempt at one task."""

    __tablename__ = "trajectories"
    trajectory_id: Mapped[str] = mapped_column(String(200), primary_key=True)
    task_key: Mapped[str | None] = mapped_column(ForeignKey("tasks.task_key"), index=True)
    state: Mapped[str] = mapped_column(String(16))
    state_at: Mapped[float] = mapped_column(Float(53))
    """When the state last changed: the window for late rewards counts from here."""
    attribution: Mapped[str] = mapped_column(String(16))
    reward: Mapped[float | None] = mapped_column(Float(53))
    created_at: Mapped[float] = mapped_column(Float(53), index=True)
    updated_at: Mapped[float] = mapped_column(Float(53))
    """When its newest call ended."""
    policy_version: Mapped[int] = mapped_column(Integer)
    """The oldest version that sampled in it: tells whether it is too stale to train."""
    trained_version: Mapped[int | None] = mapped_column(Integer)
    trained_job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.job_id"))

    __table_args__ = (Index("ix_trajectories_state_policy_version", "state", "policy_version"),)


class SessionRow(Base):
    """One continuous context inside a trajectory."""

    __tablename__ = "sessions"
    session_id: Mapped[str] = mapped_column(Id, primary_key=True)
    trajectory_id: Mapped[str] = mapped_column(ForeignKey("trajectories.trajectory_id"))
    kind: Mapped[str] = mapped_column(String(16))
    parent_session_id: Mapped[str | None] = mapped_column(ForeignKey("sessions.session_id"), index=True)
    opened_by_call_id: Mapped[str | None] = mapped_column(Id)
    position: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[float] = mapped_column(Float(53))
    ended: Mapped[str | None] = mapped_column(Text)
    """answered, succeeded or returned, as far as is known; NULL while it is open, or silent."""
    ended_at: Mapped[float | None] = mapped_column(Float(53))

    __table_args__ = (UniqueConstraint("trajectory_id", "position"),)


class MessageRow(Base):
    """A message after a given prefix; its digest names the whole prefix, so every prefix is stored once.

    What refers to it does so by a number that rises with time, and its digest is looked for behind what stands before
    it: neighbours in time are neighbours in every index, and a call changes few pages however many there are.
    """

    __tablename__ = "messages"
    message_id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=False)
    parent_id: Mapped[int | None] = mapped_column(RowId)
    digest: Mapped[str] = mapped_column(Digest)
    depth: Mapped[int] = mapped_column(Integer)
    role: Mapped[str] = mapped_column(Text)
    body: Mapped[str] = mapped_column(Text)

    __table_args__ = (
        Index("ix_messages_parent_id_digest", "parent_id", "digest", unique=True),
        Index("ix_messages_first", "digest", unique=True, sqlite_where=_FIRST, postgresql_where=_FIRST),
    )


class ParamsRow(Base):
    """The large parts of requests besides messages (tools, response format), stored once however often they repeat."""

    __tablename__ = "params"
    params_id: Mapped[str] = mapped_column(Digest, primary_key=True)
    body: Mapped[str] = mapped_column(Text)


class CallRow(Base):
    """One request through the proxy and its answer."""

    __tablename__ = "calls"
    seq: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    call_id: Mapped[str] = mapped_column(Id, unique=True)
    trajectory_id: Mapped[str] = mapped_column(ForeignKey("trajectories.trajectory_id"))
    session_id: Mapped[str] = mapped_column(ForeignKey("sessions.session_id"), index=True)
    parent_call_id: Mapped[str | None] = mapped_column(Id)
    auxiliary: Mapped[str | None] = mapped_column(Text)
    rung: Mapped[str | None] = mapped_column(Text)
    """Which evidence put the call here; NULL in calls of older releases, until `mosaic relink`."""
    score: Mapped[float | None] = mapped_column(Float(53))
    evidence: Mapped[str | None] = mapped_column(Text)
    """What was found, as JSON."""
    rivals: Mapped[str | None] = mapped_column(Text)
    """Other places that the evidence allowed, as JSON; NULL for none."""
    wire: Mapped[str] = mapped_column(String(16))
    attribution: Mapped[str] = mapped_column(String(16))
    client: Mapped[str] = mapped_column(Text)
    headers: Mapped[str] = mapped_column(Text)
    retry_count: Mapped[int] = mapped_column(Integer)
    streamed: Mapped[bool]
    status: Mapped[str] = mapped_column(String(16))
    http_status: Mapped[int] = mapped_column(Integer)
    error: Mapped[str | None] = mapped_column(Text)
    message_id: Mapped[int | None] = mapped_column(ForeignKey("messages.message_id"), index=True)
    """Head of the request's message chain."""
    params: Mapped[str] = mapped_column(Text)
    """The request's small parameters, as a JSON object; those that are large lie in `params`."""
    params_id: Mapped[str | None] = mapped_column(ForeignKey("params.params_id"), index=True)
    exact: Mapped[bool]
    inexact_reason: Mapped[str | None] = mapped_column(Text)
    fidelity: Mapped[str | None] = mapped_column(Text)
    """exact, spliced or fell_back (exact prefix mode); NULL in capture mode."""
    fidelity_reason: Mapped[str | None] = mapped_column(Text)
    """Why it fell back."""
    prompt_tokens: Mapped[int] = mapped_column(Integer)
    sampled_tokens: Mapped[int] = mapped_column(Integer)
    policy_version: Mapped[int] = mapped_column(Integer)
    policy_version_end: Mapped[int] = mapped_column(Integer)
    started_at: Mapped[float] = mapped_column(Float(53))
    first_byte_at: Mapped[float | None] = mapped_column(Float(53))
    ended_at: Mapped[float] = mapped_column(Float(53))

    __table_args__ = (
        Index("ix_calls_trajectory_id_seq", "trajectory_id", "seq"),
        Index("ix_calls_client_attribution_seq", "client", "attribution", "seq"),
        # A row number is never given twice, also after pruning: processes remember how far they have read.
        {"sqlite_autoincrement": True},
    )


class TokensRow(Base):
    """One choice of a call: sampled ids with logprobs, and, for choice 0, the prompt as a delta.

    The prompt is the first `prompt_kept` ids of the base (prompt + sampled ids of `base_call_id`, `base_choice`)
    followed by `prompt_new`. Without a base, `prompt_new` is the whole prompt.
    """

    __tablename__ = "tokens"
    call_id: Mapped[str] = mapped_column(Id, primary_key=True)
    choice: Mapped[int] = mapped_column(Integer, primary_key=True)
    base_call_id: Mapped[str | None] = mapped_column(Id)
    base_choice: Mapped[int | None] = mapped_column(Integer)
    prompt_kept: Mapped[int] = mapped_column(Integer)
    prompt_new: Mapped[bytes | None] = mapped_column(LargeBinary)
    sampled: Mapped[bytes] = mapped_column(LargeBinary)
    logprobs: Mapped[bytes] = mapped_column(LargeBinary)
    versions: Mapped[str | None] = mapped_column(Text)
    """JSON [[version, first token, end), ...] when a swap fell inside the call; else NULL."""
    message_id: Mapped[int | None] = mapped_column(ForeignKey("messages.message_id"), index=True)
    """The reply, in the chain after the request's head."""
    finish_reason: Mapped[str | None] = mapped_column(Text)


class TrainedTokensRow(Base):
    """What the trainer said of a choice's sampled tokens when it trained them: the newest job's word."""

    __tablename__ = "trained_tokens"
    call_id: Mapped[str] = mapped_column(Id, primary_key=True)
    choice: Mapped[int] = mapped_column(Integer, primary_key=True)
    job_id: Mapped[str] = mapped_column(Id)
    logprobs: Mapped[bytes] = mapped_column(LargeBinary)
    """Before the step that first trained them; NaN for tokens that were not trained."""


class LinkRow(Base):
    """Why a session stands where it stands."""

    __tablename__ = "links"
    session_id: Mapped[str] = mapped_column(ForeignKey("sessions.session_id"), primary_key=True)
    trajectory_id: Mapped[str] = mapped_column(ForeignKey("trajectories.trajectory_id"), index=True)
    kind: Mapped[str] = mapped_column(String(16))
    parent_session_id: Mapped[str | None] = mapped_column(Id)
    parent_call_id: Mapped[str | None] = mapped_column(Id)
    rung: Mapped[str] = mapped_column(String(32))
    score: Mapped[float] = mapped_column(Float(53))
    evidence: Mapped[str] = mapped_column(Text)
    rivals: Mapped[str] = mapped_column(Text)


class RewardRow(Base):
    """One statement about how a trajectory (or one of its sessions) went. Append-only; the last one in force counts."""

    __tablename__ = "rewards"
    reward_id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    trajectory_id: Mapped[str] = mapped_column(ForeignKey("trajectories.trajectory_id"), index=True)
    session_id: Mapped[str | None] = mapped_column(ForeignKey("sessions.session_id"), index=True)
    """The session that was judged; NULL for the trajectory as a whole."""
    value: Mapped[float | None] = mapped_column(Float(53))
    """NULL when it cannot be scored."""
    in_force: Mapped[bool]
    """False when it came after the window: kept, not used."""
    source: Mapped[str] = mapped_column(Text)
    note: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[float] = mapped_column(Float(53))


class PolicyVersionRow(Base):
    """One set of weights. `live_at` lies between load and resume of generation: it parts old tokens from new."""

    __tablename__ = "policy_versions"
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    path: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(16))
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.job_id"))
    created_at: Mapped[float] = mapped_column(Float(53))
    live_at: Mapped[float | None] = mapped_column(Float(53), index=True)
    restores: Mapped[int | None] = mapped_column(Integer)
    """The version whose weights were put back under this number; NULL for new weights."""
    pinned: Mapped[bool]
    """While the live version is pinned no other is put live."""
    verification: Mapped[str | None] = mapped_column(Text)


class JobRow(Base):
    """One training job and where it stands."""

    __tablename__ = "jobs"
    job_id: Mapped[str] = mapped_column(Id, primary_key=True)
    state: Mapped[str] = mapped_column(String(16), index=True)
    settings: Mapped[str] = mapped_column(Text)
    selection: Mapped[str | None] = mapped_column(Text)
    """JSON: what is needed to take the job up again; NULL once it is published."""
    checkpoint: Mapped[str | None] = mapped_column(Text)
    """Folder of what it trained."""
    attempts: Mapped[int] = mapped_column(Integer)
    """How often it was begun or taken up again."""
    policy_from: Mapped[int] = mapped_column(Integer)
    policy_to: Mapped[int | None] = mapped_column(Integer)
    """Number of its checkpoint, from the moment when it is to be put live."""
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[float] = mapped_column(Float(53))
    ended_at: Mapped[float | None] = mapped_column(Float(53))
    announce: Mapped[str | None] = mapped_column(String(16), index=True)
    """What the webhook is still to be told of it: job.finished, job.failed or gate.failed; NULL for nothing."""


class JobMetricRow(Base):
    """One number that a job reported."""

    __tablename__ = "job_metrics"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.job_id"), primary_key=True)
    step: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(Text, primary_key=True)
    value: Mapped[float] = mapped_column(Float(53))


class AdvantageRow(Base):
    """The advantage with which a job trained a session."""

    __tablename__ = "advantages"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.job_id"), primary_key=True)
    session_id: Mapped[str] = mapped_column(ForeignKey("sessions.session_id"), primary_key=True, index=True)
    value: Mapped[float] = mapped_column(Float(53))


class CounterRow(Base):
    """How often something was dropped, forked, skipped or done another way. Silence is the enemy."""

    __tablename__ = "counters"
    name: Mapped[str] = mapped_column(Text, primary_key=True)
    reason: Mapped[str] = mapped_column(Text, primary_key=True)
    value: Mapped[int] = mapped_column(RowId)


class LeaseRow(Base):
    """Who may do work that only one process at a time may do, and until when."""

    __tablename__ = "leases"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    owner: Mapped[str] = mapped_column(Text)
    expires_at: Mapped[float] = mapped_column(Float(53))


class ScheduleRow(Base):
    """What a schedule said when it last looked, and what it was asked for."""

    __tablename__ = "schedule"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    next_at: Mapped[float | None] = mapped_column(Float(53))
    """When the clock asks for the next run; NULL when the clock starts none."""
    due: Mapped[str | None] = mapped_column(Text)
    """Why a run is due now: cron, every, when_scored or asked."""
    held_up: Mapped[str | None] = mapped_column(Text)
    """What keeps it from beginning: calls or hours."""
    looked_at: Mapped[float | None] = mapped_column(Float(53))
    asked_at: Mapped[float | None] = mapped_column(Float(53))
    """Since when a run is asked for; NULL when none is."""
