"""What the training page says of the schedule, and whether a run can be asked for. Pure."""

from dataclasses import dataclass

from mosaic.store.schedules import ScheduleState

_HELD_UP = {"calls": "until no call has ended for a while", "hours": "for the hours that are set"}


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """The schedule."""

    owned: bool
    """Whether a process runs it now; nobody else takes a run that is asked for."""
    next_at: float | None
    """When the clock asks for the next run."""
    said: str
    """One sentence on what it does now; empty when it only waits for its time."""


def schedule_view(state: ScheduleState, owner: str | None) -> ScheduleView:
    """From what the schedule told, and who has its lease."""
    if owner is None:
        return ScheduleView(False, None, "No schedule runs: start mosaic schedule, or set [schedule] for mosaic serve.")
    return ScheduleView(True, state.next_at, _said(state))


def _said(state: ScheduleState) -> str:
    if state.asked_at is not None:
        return "A run is asked for, and begins at the next look, once no other job runs."
    if state.due is None:
        return ""
    waits = "" if state.held_up is None else f" and waits {_HELD_UP.get(state.held_up, state.held_up)}"
    return f"A run is due ({state.due}){waits}."
