"""Leases, advantages, late rewards; room for texts of any length; indexes for pruning; calls keep small parameters.

A call of the first release had all its parameters in `params`; they stay there, beside an empty object in the call.
"""

import sqlalchemy as sa
from alembic import op

from mosaic.store.views import drop_views

revision = "0002"
down_revision = "0001"

RENUMBER = """
update sessions set position = (
  select count(*) from sessions o where o.trajectory_id = sessions.trajectory_id
    and (o.position < sessions.position or (o.position = sessions.position and o.session_id < sessions.session_id))
)"""
"""The first release could give two sessions of a trajectory one position."""

OLDEST = """
update trajectories set state_at = updated_at, policy_version = coalesce(
  (select min(c.policy_version) from calls c where c.trajectory_id = trajectories.trajectory_id), 0)"""


def upgrade() -> None:
    """Apply."""
    connection = op.get_bind()
    drop_views(connection)
    op.execute(RENUMBER)
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "advantages",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("session_id", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_advantages_job_id")),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name=op.f("fk_advantages_session_id")),
        sa.PrimaryKeyConstraint("job_id", "session_id", name=op.f("pk_advantages")),
    )
    with op.batch_alter_table("advantages", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_advantages_session_id"), ["session_id"], unique=False)

    with op.batch_alter_table("calls", schema=None, table_kwargs={"sqlite_autoincrement": True}) as batch_op:
        batch_op.add_column(sa.Column("params", sa.Text(), nullable=True))
        batch_op.add_column(sa.Column("fidelity", sa.Text(), nullable=True))
        batch_op.add_column(sa.Column("fidelity_reason", sa.Text(), nullable=True))
        batch_op.alter_column("auxiliary", existing_type=sa.VARCHAR(length=32), type_=sa.Text(), existing_nullable=True)
        batch_op.alter_column("params_id", existing_type=sa.VARCHAR(length=32), nullable=True)
        batch_op.alter_column(
            "inexact_reason", existing_type=sa.VARCHAR(length=64), type_=sa.Text(), existing_nullable=True
        )
        batch_op.create_index("ix_calls_client_attribution_seq", ["client", "attribution", "seq"], unique=False)
        batch_op.create_index(batch_op.f("ix_calls_message_id"), ["message_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_calls_params_id"), ["params_id"], unique=False)

    with op.batch_alter_table("counters", schema=None) as batch_op:
        batch_op.alter_column("name", existing_type=sa.VARCHAR(length=64), type_=sa.Text(), existing_nullable=False)
        batch_op.alter_column("reason", existing_type=sa.VARCHAR(length=64), type_=sa.Text(), existing_nullable=False)

    with op.batch_alter_table("job_metrics", schema=None) as batch_op:
        batch_op.alter_column("name", existing_type=sa.VARCHAR(length=64), type_=sa.Text(), existing_nullable=False)

    with op.batch_alter_table("messages", schema=None) as batch_op:
        batch_op.alter_column("role", existing_type=sa.VARCHAR(length=32), type_=sa.Text(), existing_nullable=False)
        batch_op.create_index(batch_op.f("ix_messages_parent_id"), ["parent_id"], unique=False)

    with op.batch_alter_table("rewards", schema=None) as batch_op:
        batch_op.add_column(sa.Column("in_force", sa.Boolean(), nullable=True))
        batch_op.alter_column("source", existing_type=sa.VARCHAR(length=64), type_=sa.Text(), existing_nullable=False)
        batch_op.create_index(batch_op.f("ix_rewards_session_id"), ["session_id"], unique=False)

    with op.batch_alter_table("sessions", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_sessions_trajectory_id"))
        batch_op.create_index(batch_op.f("ix_sessions_parent_session_id"), ["parent_session_id"], unique=False)
        batch_op.create_unique_constraint(
            batch_op.f("uq_sessions_trajectory_id_position"), ["trajectory_id", "position"]
        )

    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.alter_column(
            "task_key", existing_type=sa.VARCHAR(length=200), type_=sa.Text(), existing_nullable=False
        )

    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.alter_column(
            "finish_reason", existing_type=sa.VARCHAR(length=32), type_=sa.Text(), existing_nullable=True
        )
        batch_op.create_index(batch_op.f("ix_tokens_message_id"), ["message_id"], unique=False)

    with op.batch_alter_table("trajectories", schema=None) as batch_op:
        batch_op.add_column(sa.Column("state_at", sa.Float(precision=53), nullable=True))
        batch_op.add_column(sa.Column("policy_version", sa.Integer(), nullable=True))
        batch_op.alter_column("task_key", existing_type=sa.VARCHAR(length=200), type_=sa.Text(), existing_nullable=True)
        batch_op.drop_index(batch_op.f("ix_trajectories_state"))
        batch_op.create_index("ix_trajectories_state_policy_version", ["state", "policy_version"], unique=False)

    _fill()  # the newest migration makes the views anew: they show what later ones add


def _fill() -> None:
    """Give the new columns their values; then they must have one."""
    op.execute("update calls set params = '{}'")
    op.execute(sa.text("update rewards set in_force = :yes").bindparams(yes=True))
    op.execute(OLDEST)
    filled = (("calls", "params"), ("rewards", "in_force"), ("trajectories", "state_at", "policy_version"))
    for table, *columns in filled:
        # A rebuilt table is made from what can be read of the old one, which this is not.
        kept = {"sqlite_autoincrement": True} if table == "calls" else {}
        with op.batch_alter_table(table, table_kwargs=kept) as batch_op:
            for column in columns:
                batch_op.alter_column(column, nullable=False)
