"""Alembic's entry: always online, on the connection that `run` was given."""

from alembic import context

from mosaic.store.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
