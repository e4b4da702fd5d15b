"""Messages go by numbers that rise with time; their digests, by which they are found, become a column of their own."""

from contextlib import AbstractContextManager

import sqlalchemy as sa
from alembic import op
from alembic.operations import BatchOperations

from mosaic.store.views import create_views, drop_views

revision = "0006"
down_revision = "0005"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REFERRING = ("calls", "tokens")

KEEP = """
create table kept_messages as
select row_number() over (order by depth, message_id) as number, message_id as digest, parent_id as parent,
  depth, role, body
from messages"""

FILL = """
insert into messages (message_id, parent_id, digest, depth, role, body)
select k.number, (select p.number from kept_messages p where p.digest = k.parent), k.digest, k.depth, k.role, k.body
from kept_messages k order by k.number"""


def upgrade() -> None:
    """Apply."""
    connection = op.get_bind()
    newest = _newest_row(connection)
    drop_views(connection)
    op.execute(KEEP)
    op.create_index("ix_kept_messages_digest", "kept_messages", ["digest"])
    for table in REFERRING:
        _refer_to_numbers(table)
    op.drop_table("messages")
    _create_messages()
    op.execute(FILL)
    op.drop_table("kept_messages")
    for table in REFERRING:
        with _altered(table) as batch_op:
            batch_op.create_foreign_key(op.f(f"fk_{table}_message_id"), "messages", ["message_id"], ["message_id"])
            batch_op.create_index(op.f(f"ix_{table}_message_id"), ["message_id"])
    if newest is not None:  # a rebuilt table would go on behind the rows that it has, not behind those that it had
        op.execute("delete from sqlite_sequence where name = 'calls'")
        connection.execute(sa.text("insert into sqlite_sequence (name, seq) values ('calls', :seq)"), {"seq": newest})
    create_views(connection)


def _refer_to_numbers(table: str) -> None:
    """Numbers in the place of digests, for now without a reference to a table."""
    op.add_column(table, sa.Column("message_number", NUMBER, nullable=True))
    found = f"select number from kept_messages where digest = {table}.message_id"
    op.execute(f"update {table} set message_number = ({found}) where message_id is not null")
    with _altered(table) as batch_op:
        batch_op.drop_index(op.f(f"ix_{table}_message_id"))
        batch_op.drop_constraint(op.f(f"fk_{table}_message_id"), type_="foreignkey")
        batch_op.drop_column("message_id")
    op.alter_column(table, "message_number", new_column_name="message_id")


def _create_messages() -> None:
    op.create_table(
        "messages",
        sa.Column("message_id", NUMBER, autoincrement=False, nullable=False),
        sa.Column("parent_id", NUMBER, nullable=True),
        sa.Column("digest", sa.String(length=32), nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("message_id", name=op.f("pk_messages")),
        sa.UniqueConstraint("digest", name=op.f("uq_messages_digest")),
    )
    op.create_index(op.f("ix_messages_parent_id"), "messages", ["parent_id"])


def _altered(table: str) -> AbstractContextManager[BatchOperations]:
    kept = {"sqlite_autoincrement": True} if table == "calls" else {}
    return op.batch_alter_table(table, table_kwargs=kept)


def _newest_row(connection: sa.Connection) -> int | None:
    """The highest row number of `calls` that was ever given, where the database keeps it with the table."""
    if connection.dialect.name != "sqlite":
        return None
    found: int | None = connection.scalar(sa.text("select seq from sqlite_sequence where name = 'calls'"))
    return found
