"""The schema of the first release."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create every table."""
    op.create_table(
        "counters",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("value", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.PrimaryKeyConstraint("name", "reason", name=op.f("pk_counters")),
    )
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("policy_from", sa.Integer(), nullable=False),
        sa.Column("policy_to", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("ended_at", sa.Float(precision=53), nullable=True),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_jobs")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_jobs_state"), ["state"], unique=False)

    op.create_table(
        "messages",
        sa.Column("message_id", sa.String(length=32), nullable=False),
        sa.Column("parent_id", sa.String(length=32), nullable=True),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(length=32), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("message_id", name=op.f("pk_messages")),
    )
    op.create_table(
        "params",
        sa.Column("params_id", sa.String(length=32), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("params_id", name=op.f("pk_params")),
    )
    op.create_table(
        "tasks",
        sa.Column("task_key", sa.String(length=200), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("task_key", name=op.f("pk_tasks")),
    )
    op.create_table(
        "job_metrics",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_job_metrics_job_id")),
        sa.PrimaryKeyConstraint("job_id", "step", "name", name=op.f("pk_job_metrics")),
    )
    op.create_table(
        "policy_versions",
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("live_at", sa.Float(precision=53), nullable=True),
        sa.Column("verification", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_policy_versions_job_id")),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_policy_versions")),
    )
    with op.batch_alter_table("policy_versions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_policy_versions_live_at"), ["live_at"], unique=False)

    op.create_table(
        "tokens",
        sa.Column("call_id", sa.String(length=64), nullable=False),
        sa.Column("choice", sa.Integer(), nullable=False),
        sa.Column("base_call_id", sa.String(length=64), nullable=True),
        sa.Column("base_choice", sa.Integer(), nullable=True),
        sa.Column("prompt_kept", sa.Integer(), nullable=False),
        sa.Column("prompt_new", sa.LargeBinary(), nullable=True),
        sa.Column("sampled", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("versions", sa.Text(), nullable=True),
        sa.Column("message_id", sa.String(length=32), nullable=True),
        sa.Column("finish_reason", sa.String(length=32), nullable=True),
        sa.ForeignKeyConstraint(["message_id"], ["messages.message_id"], name=op.f("fk_tokens_message_id")),
        sa.PrimaryKeyConstraint("call_id", "choice", name=op.f("pk_tokens")),
    )
    op.create_table(
        "trajectories",
        sa.Column("trajectory_id", sa.String(length=200), nullable=False),
        sa.Column("task_key", sa.String(length=200), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attribution", sa.String(length=16), nullable=False),
        sa.Column("reward", sa.Float(precision=53), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("updated_at", sa.Float(precision=53), nullable=False),
        sa.Column("trained_version", sa.Integer(), nullable=True),
        sa.Column("trained_job_id", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(["task_key"], ["tasks.task_key"], name=op.f("fk_trajectories_task_key")),
        sa.ForeignKeyConstraint(["trained_job_id"], ["jobs.job_id"], name=op.f("fk_trajectories_trained_job_id")),
        sa.PrimaryKeyConstraint("trajectory_id", name=op.f("pk_trajectories")),
    )
    with op.batch_alter_table("trajectories", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_trajectories_created_at"), ["created_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_trajectories_state"), ["state"], unique=False)
        batch_op.create_index(batch_op.f("ix_trajectories_task_key"), ["task_key"], unique=False)

    op.create_table(
        "sessions",
        sa.Column("session_id", sa.String(length=64), nullable=False),
        sa.Column("trajectory_id", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("parent_session_id", sa.String(length=64), nullable=True),
        sa.Column("opened_by_call_id", sa.String(length=64), nullable=True),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(
            ["parent_session_id"], ["sessions.session_id"], name=op.f("fk_sessions_parent_session_id")
        ),
        sa.ForeignKeyConstraint(
            ["trajectory_id"], ["trajectories.trajectory_id"], name=op.f("fk_sessions_trajectory_id")
        ),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_sessions")),
    )
    with op.batch_alter_table("sessions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_sessions_trajectory_id"), ["trajectory_id"], unique=False)

    op.create_table(
        "calls",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("call_id", sa.String(length=64), nullable=False),
        sa.Column("trajectory_id", sa.String(length=200), nullable=False),
        sa.Column("session_id", sa.String(length=64), nullable=False),
        sa.Column("parent_call_id", sa.String(length=64), nullable=True),
        sa.Column("auxiliary", sa.String(length=32), nullable=True),
        sa.Column("wire", sa.String(length=16), nullable=False),
        sa.Column("attribution", sa.String(length=16), nullable=False),
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column("headers", sa.Text(), nullable=False),
        sa.Column("retry_count", sa.Integer(), nullable=False),
        sa.Column("streamed", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("http_status", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("message_id", sa.String(length=32), nullable=True),
        sa.Column("params_id", sa.String(length=32), nullable=False),
        sa.Column("exact", sa.Boolean(), nullable=False),
        sa.Column("inexact_reason", sa.String(length=64), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("sampled_tokens", sa.Integer(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("policy_version_end", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Float(precision=53), nullable=False),
        sa.Column("first_byte_at", sa.Float(precision=53), nullable=True),
        sa.Column("ended_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["message_id"], ["messages.message_id"], name=op.f("fk_calls_message_id")),
        sa.ForeignKeyConstraint(["params_id"], ["params.params_id"], name=op.f("fk_calls_params_id")),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name=op.f("fk_calls_session_id")),
        sa.ForeignKeyConstraint(["trajectory_id"], ["trajectories.trajectory_id"], name=op.f("fk_calls_trajectory_id")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_calls")),
        sa.UniqueConstraint("call_id", name=op.f("uq_calls_call_id")),
    )
    with op.batch_alter_table("calls", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_calls_session_id"), ["session_id"], unique=False)
        batch_op.create_index("ix_calls_trajectory_id_seq", ["trajectory_id", "seq"], unique=False)

    op.create_table(
        "links",
        sa.Column("session_id", sa.String(length=64), nullable=False),
        sa.Column("trajectory_id", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("parent_session_id", sa.String(length=64), nullable=True),
        sa.Column("parent_call_id", sa.String(length=64), nullable=True),
        sa.Column("rung", sa.String(length=32), nullable=False),
        sa.Column("score", sa.Float(precision=53), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.Column("rivals", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name=op.f("fk_links_session_id")),
        sa.ForeignKeyConstraint(["trajectory_id"], ["trajectories.trajectory_id"], name=op.f("fk_links_trajectory_id")),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_links")),
    )
    with op.batch_alter_table("links", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_links_trajectory_id"), ["trajectory_id"], unique=False)

    op.create_table(
        "rewards",
        sa.Column(
            "reward_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("trajectory_id", sa.String(length=200), nullable=False),
        sa.Column("session_id", sa.String(length=64), nullable=True),
        sa.Column("value", sa.Float(precision=53), nullable=True),
        sa.Column("source", sa.String(length=64), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name=op.f("fk_rewards_session_id")),
        sa.ForeignKeyConstraint(
            ["trajectory_id"], ["trajectories.trajectory_id"], name=op.f("fk_rewards_trajectory_id")
        ),
        sa.PrimaryKeyConstraint("reward_id", name=op.f("pk_rewards")),
    )
    with op.batch_alter_table("rewards", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_rewards_trajectory_id"), ["trajectory_id"], unique=False)
