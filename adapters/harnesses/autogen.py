"""AutoGen and AG2: a call for each turn of a group chat chooses who speaks next."""

from mosaic.lineage import Harness

HARNESS = Harness(
    name="autogen",
    auxiliary={"speaker": (r"\bselect the next role from\b.{0,600}\bonly return the role\b",)},
)
