"""Terminus-2: a compaction of three calls (summary, questions about it, answers), none of them with tools."""

from mosaic.lineage import Harness

HARNESS = Harness(
    name="terminus-2",
    summary=(r"about to hand off your work to another", r"the next agent has a few questions"),
    helper=(r"picking up work from a previous",),
)
