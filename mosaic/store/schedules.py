"""The schedule as the database knows it: what it said when it last looked, and whether somebody asked for a run.

One process looks, by lease; whoever wants a run asks here, and that process takes it.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, update

from mosaic.store.models import ScheduleRow

NAME = "training"
LEASE = "schedule"
"""Held by the process that looks."""


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """What is known; times are Unix seconds."""

    next_at: float | None = None
    """When the clock asks for the next run; None when the clock starts none."""
    due: str | None = None
    """Why a run is due now: cron, every, when_scored or asked."""
    held_up: str | None = None
    """What keeps it from beginning: `calls` (one ended lately) or `hours`."""
    looked_at: float | None = None
    """When a schedule last looked; it does not while a job runs."""
    asked_at: float | None = None
    """Since when a run is asked for; None when none is."""


def read(connection: Connection) -> ScheduleState:
    """What is known; nothing, before a schedule ever looked."""
    columns = [getattr(ScheduleRow, name) for name in ScheduleState.__dataclass_fields__]
    row = connection.execute(select(*columns).where(ScheduleRow.name == NAME)).mappings().first()
    return ScheduleState(**row) if row else ScheduleState()


def change(connection: Connection, **values: Any) -> None:
    """Set what is named, and leave the rest."""
    done = connection.execute(update(ScheduleRow).where(ScheduleRow.name == NAME).values(**values))
    if not done.rowcount:
        connection.execute(insert(ScheduleRow), {"name": NAME, **values})


def answered(connection: Connection, asked_at: float) -> None:
    """The run that was asked for then has begun."""
    same = (ScheduleRow.name == NAME, ScheduleRow.asked_at <= asked_at)
    connection.execute(update(ScheduleRow).where(*same).values(asked_at=None))
