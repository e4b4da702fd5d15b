"""Tables: whole where no terminal reads them; on a narrow terminal ids give way, and no number."""

from typing import Any

import pytest

from mosaic import terminal

ID = "countries-20261130-093011-ab12.task_7.3"
REWARD = 0.3333333333333333
COLUMNS = "trajectory state reward sess. comp. sub. calls inexact tokens ver."
ROW = (ID, "unscorable", 0.25, 12, 3, 8, 10_412, 9, 1_234_567, 17)


def printed(capsys: pytest.CaptureFixture[str], columns: str, rows: list[tuple[Any, ...]]) -> list[str]:
    terminal.print_table(columns, rows)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns without colours."""
    for name, value in {"TTY_COMPATIBLE": "1", "TERM": "dumb", "COLUMNS": "80", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)


def test_one_thing_is_one_and_no_more() -> None:
    assert [terminal.counted(n, "trajectory") for n in (0, 1, 2)] == [
        "0 trajectories",
        "1 trajectory",
        "2 trajectories",
    ]
    assert [terminal.counted(n, "call") for n in (0, 1, 2)] == ["0 calls", "1 call", "2 calls"]


def test_a_pipe_gets_every_cell_whole_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    row = (ID, "group_too_few_scored", REWARD, None, "/a/long/path" * 30, "[bold] is no markup")
    header, line = printed(capsys, "trajectory reason reward nothing path text", [row])
    assert header.split() == ["trajectory", "reason", "reward", "nothing", "path", "text"]
    assert line.split(maxsplit=4) == [ID, "group_too_few_scored", str(REWARD), "/a/long/path" * 30, row[-1]]


@pytest.mark.usefixtures("narrow")
def test_on_a_narrow_terminal_the_id_loses_its_middle_and_everything_else_is_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    header, line = printed(capsys, COLUMNS, [ROW])
    assert header.split() == COLUMNS.split()
    shown, *others = line.split()
    assert others == [str(cell) for cell in ROW[1:]]
    start, end = shown.split("…")
    assert len(start) + len(end) == terminal.SHORTENED - 1
    assert (ID[: len(start)], ID[-len(end) :]) == (start, end)
    assert max(len(header), len(line)) <= 83


@pytest.mark.usefixtures("narrow")
def test_on_a_narrow_terminal_a_path_is_folded_and_nothing_of_it_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/var/lib/mosaic/policies/job-20261130-093011/step-00000012/checkpoint-of-the-policy"
    lines = printed(capsys, "version state job path", [(12, "live * pinned", "job-20261130-093011", path)])
    assert all(len(line) <= 80 for line in lines)
    start = lines[0].index("path")
    assert "".join(line[start:] for line in lines[1:]) == path
    assert lines[1].split()[:5] == ["12", "live", "*", "pinned", "job-20261130-093011"]


@pytest.mark.usefixtures("narrow")
def test_of_a_column_with_texts_and_digests_the_texts_are_folded_and_the_digests_lose_their_middle(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        ("run-1", "0123456789abcdef" * 4, "trajectory_no_trainable_tokens"),
        ("run-2", "What is it? " * 6, "trained"),
    ]
    lines = printed(capsys, "trajectory task what", rows)
    assert lines[1].split()[2] == "trajectory_no_trainable_tokens"
    assert lines[1].split()[1].startswith("0123456789")
    assert "…" in lines[1]
    assert " ".join(lines[2:]).count("What") == 6


@pytest.mark.usefixtures("narrow")
def test_where_that_is_not_enough_dates_and_states_are_folded_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/var/lib/mosaic/policies/step-00000012"
    row = (12, "was live pinned", 3, "2026-11-30 09:30:11", 0.0123, 1_234_567_890, path)
    columns = "ver. state weights_of live_since gap tokens path"
    lines = printed(capsys, columns, [row])
    starts = {name: lines[0].index(name) for name in columns.split()}
    assert max(map(len, lines)) <= 80
    assert [line[starts["live_since"] :].split()[0] for line in lines[1:3]] == ["2026-11-30", "09:30:11"]
    states = [line[starts["state"] : starts["weights_of"]] for line in lines[1:]]
    assert " ".join(states).split() == ["was", "live", "pinned"]
    assert "1234567890" in lines[1]
    assert "".join(line[starts["path"] :] for line in lines[1:]) == path


@pytest.mark.usefixtures("narrow")
def test_what_fits_is_shortened_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "trajectory reward", [(ID, REWARD)])[1].split() == [ID, str(REWARD)]
    assert printed(capsys, "trajectory reward", []) == ["trajectory  reward"]
