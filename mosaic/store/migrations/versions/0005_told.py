"""What the trainer said of tokens, what a schedule says of itself, and which ends of jobs are still to be announced."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "trained_tokens",
        sa.Column("call_id", sa.String(length=64), nullable=False),
        sa.Column("choice", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("call_id", "choice", name=op.f("pk_trained_tokens")),
    )
    op.create_table(
        "schedule",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("next_at", sa.Float(precision=53), nullable=True),
        sa.Column("due", sa.Text(), nullable=True),
        sa.Column("held_up", sa.Text(), nullable=True),
        sa.Column("looked_at", sa.Float(precision=53), nullable=True),
        sa.Column("asked_at", sa.Float(precision=53), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_schedule")),
    )
    op.add_column("jobs", sa.Column("announce", sa.String(length=16), nullable=True))
    op.create_index(op.f("ix_jobs_announce"), "jobs", ["announce"])
