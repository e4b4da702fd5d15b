"""Which calls form a session, and how sessions descend from each other: inferred from the traffic alone.

Calls in, placements out. No sockets, no SQL, no clock: the same calls in the same order give the same answer, which is
what makes `mosaic relink` possible. Doubt is shown, not hidden: a link under 0.6 is not made.
"""

from mosaic.lineage.harness import Harness
from mosaic.lineage.lineage import Lineage
from mosaic.lineage.model import Ending, Link, Placement, Rung, Why

__all__ = ["Ending", "Harness", "Lineage", "Link", "Placement", "Rung", "Why"]
