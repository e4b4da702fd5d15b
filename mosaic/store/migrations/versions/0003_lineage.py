"""Why each call stands where it stands, and how sessions ended. Filled for older calls by `mosaic relink`."""

import sqlalchemy as sa
from alembic import op

from mosaic.store.views import create_views, drop_views

revision = "0003"
down_revision = "0002"

CALLS = (
    sa.Column("rung", sa.Text(), nullable=True),
    sa.Column("score", sa.Float(precision=53), nullable=True),
    sa.Column("evidence", sa.Text(), nullable=True),
    sa.Column("rivals", sa.Text(), nullable=True),
)
SESSIONS = (sa.Column("ended", sa.Text(), nullable=True), sa.Column("ended_at", sa.Float(precision=53), nullable=True))


def upgrade() -> None:
    """Apply."""
    connection = op.get_bind()
    drop_views(connection)
    for table, columns in (("calls", CALLS), ("sessions", SESSIONS)):
        for column in columns:
            op.add_column(table, column.copy())
    create_views(connection)
