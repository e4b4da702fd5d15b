"""Calls say how their prompt relates to what was sampled before (exact prefix mode)."""

import sqlalchemy as sa
from alembic import op

from mosaic.store.views import create_views, drop_views

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Apply."""
    connection = op.get_bind()
    drop_views(connection)
    op.add_column("calls", sa.Column("fidelity", sa.Text(), nullable=True))
    op.add_column("calls", sa.Column("fidelity_reason", sa.Text(), nullable=True))
    create_views(connection)
