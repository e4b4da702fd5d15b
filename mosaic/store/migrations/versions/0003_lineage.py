"""Why each call stands where it stands, and how sessions ended. Filled for older calls by `mosaic relink`."""

import sqlalchemy as sa
from alembic import op

from mosaic.store.views import create_views, drop_views

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Apply."""
    connection = op.get_bind()
    drop_views(connection)
    for name in ("rung", "evidence", "rivals"):
        op.add_column("calls", sa.Column(name, sa.Text(), nullable=True))
    op.add_column("calls", sa.Column("score", sa.Float(precision=53), nullable=True))
    op.add_column("sessions", sa.Column("ended", sa.Text(), nullable=True))
    op.add_column("sessions", sa.Column("ended_at", sa.Float(precision=53), nullable=True))
    create_views(connection)
