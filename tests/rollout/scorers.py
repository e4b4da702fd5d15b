"""Scoring functions for rollouts."""

from mosaic.rollout.scoring import Finished


def said_it(finished: Finished) -> float | None:
    """1 when the agent printed the answer; None when the task has none."""
    if "answer" not in finished.task:
        return None
    return float(finished.output.strip() == finished.task["answer"])


def broken(finished: Finished) -> float:
    """Fails."""
    raise RuntimeError(f"no idea of {finished.trajectory_id}")


def first_line_is_42(finished: Finished) -> float:
    """1 when it is."""
    return float(finished.output.splitlines()[0] == "42")
