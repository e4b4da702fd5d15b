"""Leases: work that only one process at a time may do."""

from sqlalchemy import Connection, delete, insert, select

from mosaic.store.models import LeaseRow


def holder(connection: Connection, name: str, now: float) -> str | None:
    """Who has the lease; None when nobody has."""
    query = select(LeaseRow.owner).where(LeaseRow.name == name, LeaseRow.expires_at > now)
    return connection.scalar(query)


def take(connection: Connection, name: str, owner: str, seconds: float, now: float) -> bool:
    """Take a lease, or keep it for `seconds` more; False while another owner has it."""
    if holder(connection, name, now) not in (None, owner):
        return False
    connection.execute(delete(LeaseRow).where(LeaseRow.name == name))
    connection.execute(insert(LeaseRow), {"name": name, "owner": owner, "expires_at": now + seconds})
    return True


def give(connection: Connection, name: str, owner: str) -> None:
    """Give a lease back before it expires; nothing happens when another owner has it."""
    connection.execute(delete(LeaseRow).where(LeaseRow.name == name, LeaseRow.owner == owner))
