"""Scoring functions for recorded trajectories."""

from typing import Any


def by_reply(trajectory: dict[str, Any]) -> object:
    """Depends on the last reply: a number, nothing, an object, an error or nonsense."""
    said = trajectory["sessions"][0]["messages"][-1]["content"]
    if said == "raise":
        raise ValueError("what a mess")
    replies: dict[str, object] = {"half": 0.5, "none": None, "note": {"reward": 1, "note": "well done"}, "odd": "x"}
    return replies[said]
