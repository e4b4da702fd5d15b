"""Trees at the terminal: a line for each node, with its details beside it where the width allows, else below it.

No line is wider than a terminal of 20 columns or more, however deep the tree is; where no terminal reads, each node is
one line. What could steer a terminal stands as a question mark.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from mosaic.terminal import printable


@dataclass(frozen=True, slots=True)
class Node:
    """What stands at one place of a tree."""

    said: str
    """What is read first: it stands on the node's first line."""
    details: str = ""
    """What stands beside it, or below it where the terminal is too narrow."""
    children: list["Node"] = field(default_factory=list)

    def add(self, child: "Node") -> "Node":
        """Put a node below this one; gives that node."""
        self.children.append(child)
        return child


GUIDES = ("├ ", "└ ", "│ ", "  ")
"""Before a node that others follow, before the last one, and before what stands below each of them."""
NARROWEST = 20
"""Columns below which the lines are those of so many."""
DEEPEST = 3
"""A line's guides take at most one part in so many of the width; beyond, the node's depth is written as a number."""
KEPT = 6
"""Columns of the guides that stay there."""


def print_tree(top: Node) -> None:
    """Print a tree on standard output."""
    console = Console()
    for line in lines(top, console.width if console.is_terminal else None):
        console.print(line, soft_wrap=True, highlight=False)


def lines(top: Node, width: int | None) -> Iterator[Text]:
    """The lines of a tree in so many columns; None: one line for each node."""
    width = None if width is None else max(width, NARROWEST)
    waiting = [(top, "", "", 0)]
    while waiting:
        node, guide, below, depth = waiting.pop()
        yield from _lines(node, guide, below + (GUIDES[2] if node.children else GUIDES[3]), depth, width)
        for child in reversed(node.children):
            last = child is node.children[-1]
            waiting.append((child, below + GUIDES[last], below + GUIDES[2 + last], depth + 1))


def _lines(node: Node, guide: str, below: str, depth: int, width: int | None) -> Iterator[Text]:
    said, details = Text(printable(node.said)), Text(printable(node.details), "dim")
    both = Text.assemble(said, "  ", details) if node.details else said
    if width is None:
        yield Text.assemble(guide, both)
        return
    if len(below) > width // DEEPEST:
        guide = f"…{depth} {guide[-KEPT:]}"
        below = " " * (len(guide) - KEPT) + below[-KEPT - 2 :]
    room = width - len(below)
    if len(guide) + both.cell_len <= width:
        yield Text.assemble(guide, both)
        return
    parts = [line for part in (said, details) if part for line in part.wrap(_WRAPPING, room, overflow="fold")]
    for at, line in enumerate(parts):
        line.rstrip()
        yield Text.assemble(below if at else guide, line)


_WRAPPING = Console(width=80)
"""Only its measure of characters is used."""
