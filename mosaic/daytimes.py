"""Times of day as settings write them: lines of cron, and the hours from one time to another."""

import re
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

if TYPE_CHECKING:
    from apscheduler.triggers.cron import CronTrigger

_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


def cron_trigger(line: str) -> "CronTrigger":
    """The times that five fields of cron name. Raises `ValueError`."""
    from apscheduler.triggers.cron import CronTrigger  # 50 ms, for those alone who set one

    try:
        return CronTrigger.from_crontab(line)
    except ValueError as error:
        raise ValueError(f'{line!r}: {error}; write five fields, as "0 3 * * *" for three in the night') from error


def minutes(hours: str) -> tuple[int, int]:
    """Minutes of the day at which the hours begin and end. Raises `ValueError`."""
    parts = _HOURS.fullmatch(hours.strip())
    if parts is None:
        raise ValueError(f"{hours!r} names no hours; write them as 22:00-06:00, local time")
    begin_h, begin_m, end_h, end_m = map(int, parts.groups())
    return begin_h * 60 + begin_m, end_h * 60 + end_m


def _cron(line: str) -> str:
    cron_trigger(line)
    return line


def _hours(hours: str) -> str:
    minutes(hours)
    return hours


Cron = Annotated[str, AfterValidator(_cron)]
Hours = Annotated[str, AfterValidator(_hours)]
