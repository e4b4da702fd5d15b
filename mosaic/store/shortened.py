"""Ids as a narrow terminal shows them, without their middle: beginning…end. They are looked up, never guessed."""

from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.orm import InstrumentedAttribute

from mosaic.errors import RequestError

LEFT_OUT = "…"
"""Stands for what a table left out of an id."""
LISTED = 10
"""Most ids that an error names."""


def whole(connection: Connection, column: InstrumentedAttribute[Any], given: str) -> str:
    """The id of this column that is meant: `given` itself, unless something was left out of it.

    Raises `RequestError`: 404 where nothing begins and ends like that, 400 where several do.
    """
    if LEFT_OUT not in given:
        return given
    begins, _, ends = given.partition(LEFT_OUT)
    like = column.startswith(begins, autoescape=True) & column.endswith(ends, autoescape=True)
    found = [one for one in connection.scalars(select(column).where(like).order_by(column)) if _fits(one, begins, ends)]
    if given in found:
        return given
    if not found:
        step = "`mosaic trajectories --json` and `mosaic show ID --calls` print ids whole."
        raise RequestError(f"no id begins and ends like {given!r}.", step, status=404)
    if len(found) > 1:
        more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
        raise RequestError(f"{given!r} may be {', '.join(found[:LISTED])}{more}.", "Give one of them.")
    return str(found[0])


def _fits(one: str, begins: str, ends: str) -> bool:
    """As written, which SQLite's LIKE does not look at, and without one character in both ends."""
    return one.startswith(begins) and one.endswith(ends) and len(one) >= len(begins) + len(ends)
