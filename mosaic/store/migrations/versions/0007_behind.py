"""A message is found behind the one before it: by that one's number and its own digest, not by its digest alone."""

import sqlalchemy as sa
from alembic import op

from mosaic.store.views import create_views, drop_views

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Apply."""
    connection = op.get_bind()
    drop_views(connection)
    with op.batch_alter_table("messages") as batch_op:
        batch_op.drop_constraint(op.f("uq_messages_digest"), type_="unique")
        batch_op.drop_index(op.f("ix_messages_parent_id"))
    op.create_index(op.f("ix_messages_parent_id_digest"), "messages", ["parent_id", "digest"], unique=True)
    first = sa.text("parent_id is null")
    op.create_index(
        op.f("ix_messages_first"), "messages", ["digest"], unique=True, sqlite_where=first, postgresql_where=first
    )
    create_views(connection)
