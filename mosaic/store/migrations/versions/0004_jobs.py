"""Jobs that are taken up again after a crash; versions that put older weights back, and pinned ones.

A job of an earlier release that had not ended cannot be taken up: what it had chosen was not written down.
"""

import sqlalchemy as sa
from alembic import op

from mosaic.store.views import create_views, drop_views

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Apply."""
    drop_views(op.get_bind())
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("selection", sa.Text(), nullable=True))
        batch_op.add_column(sa.Column("checkpoint", sa.Text(), nullable=True))
        batch_op.add_column(sa.Column("attempts", sa.Integer(), nullable=True))
    with op.batch_alter_table("policy_versions", schema=None) as batch_op:
        batch_op.add_column(sa.Column("restores", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("pinned", sa.Boolean(), nullable=True))
    op.execute("update jobs set attempts = 1")
    op.execute("update jobs set state = 'published' where state = 'done'")
    op.execute("update jobs set state = 'failed', error = 'died before an upgrade' where state = 'running'")
    op.execute(sa.text("update policy_versions set pinned = :no").bindparams(no=False))
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.alter_column("attempts", existing_type=sa.Integer(), nullable=False)
    with op.batch_alter_table("policy_versions", schema=None) as batch_op:
        batch_op.alter_column("pinned", existing_type=sa.Boolean(), nullable=False)
    create_views(op.get_bind())
