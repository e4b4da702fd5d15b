"""Scorers: how it went, said by a Python function, a command or a judge model; None means that nobody can say."""

from mosaic.scoring.commands import Command
from mosaic.scoring.outcome import Score, as_score

__all__ = ["Command", "Score", "as_score"]
