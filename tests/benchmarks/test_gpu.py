"""The script for GPUs works: all of it, on a CPU with a tiny model."""

import json
from pathlib import Path

import pytest

from benchmarks import gpu

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:TRL currently supports vLLM"
)


def test_both_ways_are_measured_on_the_same_sequences_and_written_down(tmp_path: Path) -> None:
    gpu.main(["--tiny", "--folder", str(tmp_path)])
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert set(result["bars"]) == {"tiny_tokens_per_second", "tiny_step_speedup"}
    ours, theirs = (result["details"]["tiny"][way] for way in gpu.WAYS)
    shape = gpu.SHAPES["tiny"]
    assert len(ours["seconds"]) == len(theirs["seconds"]) == shape.steps - gpu.WARM_UP
    assert ours["tokens"] == theirs["tokens"] == sum(len(row.ids_L) for row in gpu.made_rows(shape))
    assert result["bars"]["tiny_step_speedup"]["runs"][0] == theirs["seconds"][0] / ours["seconds"][0]
