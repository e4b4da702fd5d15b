"""What processes count on a folder: sums that never fall, gauges of those that live."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import figures
from proxy.figures import BUCKETS_S, Figures, bucket_name, sum_name, total

COUNTS_AND_WAITS = """
import sys
from pathlib import Path
from proxy.figures import Figures
counts = Figures(Path(sys.argv[1]))
counts.add("recorded", 5)
counts.set("open", 3)
print("counted", flush=True)
sys.stdin.read()
"""


def test_several_count_beside_each_other_and_the_sum_is_of_all(tmp_path: Path) -> None:
    first, second = Figures(tmp_path), Figures(tmp_path)
    first.add("recorded", 2)
    second.add("recorded", 3)
    second.set("open", 4)
    assert (total(tmp_path)["recorded"], total(tmp_path)["open"]) == (5, 4)
    second.close()
    assert (total(tmp_path)["recorded"], total(tmp_path)["open"]) == (5, 0)
    first.close()


def test_who_comes_later_goes_on_where_one_has_ended(tmp_path: Path) -> None:
    for _ in range(3):
        counts = Figures(tmp_path)
        counts.add("recorded")
        counts.set("held", 1)
        counts.close()
        counts.add("recorded")  # a straggler
    assert total(tmp_path)["recorded"] == 3
    assert len(list(tmp_path.iterdir())) == 1


def test_a_process_that_is_killed_leaves_what_it_counted_and_no_gauge(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COUNTS_AND_WAITS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert (total(tmp_path)["recorded"], total(tmp_path)["open"]) == (5, 3)
        other.kill()
    assert (total(tmp_path)["recorded"], total(tmp_path)["open"]) == (5, 0)


def test_a_folder_that_takes_no_file_costs_the_figures_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    counts = Figures(tmp_path / "file")
    counts.add("recorded")
    counts.close()
    assert total(tmp_path / "file")["recorded"] == 0


@given(st.lists(st.floats(0, 1000), max_size=20))
def test_every_duration_is_in_one_bucket_and_in_the_sum(
    tmp_path_factory: pytest.TempPathFactory, durations: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("figures")
    counts = Figures(folder)
    for seconds in durations:
        counts.observe("call_seconds", seconds)
    found = total(folder)
    counts.close()
    at_most = 0
    for at, bound in enumerate(BUCKETS_S):
        at_most += found[bucket_name("call_seconds", at)]
        assert at_most == sum(seconds <= bound for seconds in durations)
    assert at_most + found[bucket_name("call_seconds", len(BUCKETS_S))] == len(durations)
    assert found[sum_name("call_seconds")] == pytest.approx(sum(durations) * 1e6, abs=len(durations))


def test_files_of_a_release_that_counts_other_things_are_not_read(tmp_path: Path) -> None:
    counts = Figures(tmp_path)
    counts.add("recorded")
    (path,) = tmp_path.iterdir()
    os.link(path, tmp_path / ".figures-00000000-000")
    assert total(tmp_path)["recorded"] == 1
    assert len(set(figures.NAMES)) == len(figures.NAMES)
    counts.close()
