"""mem0, and memories that ask as it does: facts are extracted from each exchange, and then merged with those known."""

from mosaic.lineage import Harness

HARNESS = Harness(
    name="mem0",
    auxiliary={
        "memory": (
            r"^\W*you are a personal information organizer",
            r"^\W*you are a smart memory manager",
            r"^\W*you are a precise fact extraction system.{0,60}\bconversations?\b",
        )
    },
)
