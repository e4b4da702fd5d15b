"""Attempts at tasks, driven by Mosaic: any command line or Python function, each attempt its own trajectory.

    tasks file -> plan (task x attempt) -> executor (local processes, or Ray) -> score -> proxy's control API

The agent is told where the policy is by its environment alone, so it need not know of Mosaic. Nothing here imports the
proxy, a training library or a web framework.
"""

from mosaic.rollout.attempt import Agent, Ended, Outcome, Result, Work
from mosaic.rollout.rollout import Plan, Report, Rollout
from mosaic.rollout.tasks import Task, read_tasks

__all__ = ["Agent", "Ended", "Outcome", "Plan", "Report", "Result", "Rollout", "Task", "Work", "read_tasks"]
