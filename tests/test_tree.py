"""Trees at the terminal: no line is wider than it, nothing is lost, and in a pipe each node is one line."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.text import Text

from mosaic.store import Store
from mosaic.tree import Node, lines
from tests.cli.command import mosaic
from tests.lineage.test_lineage import compaction
from tests.playbook import Recording

WORDS = st.lists(st.text("abcdefgh7,界", min_size=1, max_size=12), min_size=1, max_size=30).map(" ".join)
TREES = st.recursive(
    st.builds(Node, WORDS, st.just("") | WORDS),
    lambda below: st.builds(Node, WORDS, st.just("") | WORDS, st.lists(below, max_size=4)),
    max_leaves=20,
)
GUIDES = "├└│ "


def in_order(top: Node) -> list[Node]:
    return [top, *(node for child in top.children for node in in_order(child))]


@given(TREES, st.integers(20, 200))
def test_no_line_is_wider_than_the_terminal_and_no_letter_is_lost(top: Node, width: int) -> None:
    found = list(lines(top, width))
    assert max(line.cell_len for line in found) <= width
    kept = "".join(line.plain.lstrip(GUIDES) for line in found).replace(" ", "")
    wanted = "".join(node.said + node.details for node in in_order(top)).replace(" ", "")
    if "…" not in kept:
        assert kept == wanted


@given(TREES)
def test_in_a_pipe_each_node_is_one_line(top: Node) -> None:
    found = [line.plain.lstrip(GUIDES) for line in lines(top, None)]
    assert found == [f"{node.said}  {node.details}" if node.details else node.said for node in in_order(top)]


def test_details_stand_below_only_where_there_is_no_room_beside() -> None:
    top = Node("run-17", children=[Node("root  12 calls", "(why it stands here)", [Node("subagent")]), Node("fork")])
    assert [line.plain for line in lines(top, 40)] == [
        "run-17",
        "├ root  12 calls  (why it stands here)",
        "│ └ subagent",
        "└ fork",
    ]
    assert [line.plain for line in lines(top, 24)] == [
        "run-17",
        "├ root  12 calls",
        "│ │ (why it stands here)",
        "│ └ subagent",
        "└ fork",
    ]


@pytest.mark.parametrize("width", [80, 160, None])
def test_a_chain_of_two_thousand_sessions_still_fits(width: int | None) -> None:
    top = node = Node("run-17")
    for _ in range(2000):
        node = node.add(Node("compaction  3 calls, 1,234 sampled tokens, version 7, silent", "(summary, score 0.95)"))
    found = [line.plain for line in lines(top, width)]
    assert sum("compaction  3 calls" in line for line in found) == 2000
    if width is not None:
        assert max(map(len, found)) <= width
        assert any(line.startswith("…2000 ") for line in found)


@pytest.mark.parametrize("width", [1, 3, 9, 19])
def test_a_terminal_that_is_too_narrow_for_a_tree_gets_that_of_twenty_columns(width: int) -> None:
    top = Node("wide 界" * 20, "x" * 500, [Node("root  12 calls", "(why)", [Node("subagent")])])
    assert list(lines(top, width)) == list(lines(top, 20))


@given(st.lists(st.text(max_size=60), min_size=1, max_size=8), st.none() | st.integers(1, 60))
@example(["\x1b[31mred\x07", "a\nb\tc\r", "\u202eabc\u202c", "\u200b\u0301" * 20, "\ud800", "👩‍👩‍👧‍👦" * 10, ""], 20)
def test_nothing_that_a_node_says_steers_the_terminal(texts: list[str], width: int | None) -> None:
    top = node = Node(texts[0], texts[-1])
    for text in texts:
        node = node.add(Node(text, text))
    found = list(lines(top, width))
    assert all(line.plain.isprintable() for line in found)
    if width is not None:
        assert max(line.cell_len for line in found) <= max(width, 20)


@pytest.mark.parametrize("command", [("show", "good", "--calls"), ("credit", "good", "--also", "rloo")])
def test_show_and_credit_hold_at_each_width_and_are_whole_in_a_pipe(tmp_path: Path, command: tuple[str, ...]) -> None:
    store = Store(f"sqlite:///{tmp_path}/mosaic.db")
    for name, reward in (("good", 1.0), ("bad", 0.0)):
        store.record(compaction(Recording(name)))
        store.reward(name, reward, "test")
    store.close()
    piped, wide, narrow = (printed(tmp_path, command, width) for width in (None, 160, 80))
    assert max(map(len, narrow)) <= 80 < max(map(len, wide)) <= 160
    assert len(piped) <= len(wide) < len(narrow)
    words = " ".join(piped).split()
    assert [word for line in narrow for word in line.lstrip(GUIDES).split()] == [w for w in words if w not in GUIDES]


def printed(folder: Path, command: tuple[str, ...], width: int | None) -> list[str]:
    """What a command prints in a terminal of that width; None: in a pipe, where the variables of one say nothing."""
    terminal = {"TTY_COMPATIBLE": "1", "TERM": "xterm", "NO_COLOR": "1"} if width else {}
    where = ("--database", f"sqlite:///{folder}/mosaic.db")
    done = mosaic(folder, *command, *where, **terminal, COLUMNS=str(width or 80))
    assert done.returncode == 0, done.stderr
    return [Text.from_ansi(line).plain.rstrip() for line in done.stdout.splitlines()]
