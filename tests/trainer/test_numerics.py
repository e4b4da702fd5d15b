"""The same loss and gradients however a trajectory is cut, rows are divided, and processes share them; adapters too."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mosaic.errors import TrainError
from tests.trainer.test_policy_trainer import SETTINGS, accumulated, assert_same, run, weights
from trainer.probe import checkpoint_logprobs
from trainer.round import LOGPROBS_FILE, StepReport, TrainReport
from trainer.round_process import RoundRequest, run_round
from trainer.sequences import Sequence
from trainer.trained_logprobs import load_logprobs

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:TRL currently supports vLLM"
)

N_CALLS = 16


def cut(whole: Sequence, parts: int) -> list[Sequence]:
    """The sequence as `parts` sequences: each ends with its share of the calls, after the very prefix that they had."""
    pieces = []
    for spans in np.array_split(np.asarray(whole.spans, dtype=object), parts):
        start, end = spans[0].start, spans[-1].end
        mask_L = whole.mask_L[:end] & (np.arange(end) >= start)
        pieces.append(
            replace(
                whole,
                ids_L=whole.ids_L[:end],
                mask_L=mask_L,
                logprobs_L=np.where(mask_L, whole.logprobs_L[:end], 0).astype(np.float32),
                advantages_L=np.where(mask_L, whole.advantages_L[:end], 0).astype(np.float32),
                versions_L=np.where(mask_L, whole.versions_L[:end], -1).astype(np.int32),
                prompt_len=start,
                spans=tuple(spans),
            )
        )
    return pieces


@pytest.mark.parametrize("parts", [4, 16])
def test_a_trajectory_cut_into_more_sequences_gives_the_same_loss_and_gradient(
    model_dir: Path, make_sequence: Callable[..., Sequence], tmp_path: Path, parts: int
) -> None:
    """Its weight is the trajectory's: the other one does not weigh less because this one became more rows."""
    lengths = tuple(3 + k % 4 for k in range(2 * N_CALLS))
    whole = make_sequence(1, "long", lengths, advantage=1.0, noise=0.3)
    other = make_sequence(2, "short", (5, 9), advantage=-1.0, noise=0.3)
    one = accumulated(model_dir, [whole, other], SETTINGS, tmp_path / "one")
    cut_up = cut(whole, parts)
    assert sum(s.n_trained for s in cut_up) == whole.n_trained
    assert_same(accumulated(model_dir, [*cut_up, other], SETTINGS, tmp_path / "many"), one)


def test_gradient_checkpointing_changes_nothing(
    model_dir: Path, make_sequence: Callable[..., Sequence], tmp_path: Path
) -> None:
    sequences = [make_sequence(n, f"t{n}", (4, 6 + n), advantage=1.0 - n, noise=0.3) for n in range(3)]
    plain = accumulated(model_dir, sequences, SETTINGS, tmp_path)
    assert_same(accumulated(model_dir, sequences, replace(SETTINGS, gradient_checkpointing=True), tmp_path), plain)


def test_the_importance_of_a_session_is_the_same_however_many_rows_it_became(
    model_dir: Path, make_sequence: Callable[..., Sequence], tmp_path: Path
) -> None:
    whole = make_sequence(1, "long", (4, 3, 2, 5, 3, 4, 2, 6), advantage=1.0, noise=0.2)
    other = make_sequence(2, "short", (5, 9), advantage=-1.0, noise=0.2)
    settings = replace(SETTINGS, proximal="trainer", importance_mode="sequence_truncate", importance_max=1.05)
    one = accumulated(model_dir, [whole, other], settings, tmp_path)
    assert_same(accumulated(model_dir, [*cut(whole, 4), other], settings, tmp_path), one)
    per_token = accumulated(model_dir, [whole, other], replace(settings, importance_mode="token_truncate"), tmp_path)
    assert per_token[0] != pytest.approx(one[0], abs=1e-5)


def test_an_adapter_learns_and_its_base_stays(
    model_dir: Path, make_sequence: Callable[..., Sequence], save_adapter: Callable[[Path], Path], tmp_path: Path
) -> None:
    first = save_adapter(tmp_path / "first")
    good, bad = make_sequence(1, "a", (6, 10), advantage=1.0), make_sequence(2, "b", (6, 10), advantage=-1.0)
    base_before = (model_dir / "model.safetensors").read_bytes()
    settings = replace(SETTINGS, learning_rate=5e-3, epochs=2, beta=0.01)
    report = run(first, [good, bad], settings, tmp_path / "second")
    assert sorted(path.name for path in report.checkpoint.glob("*.safetensors")) == ["adapter_model.safetensors"]
    assert not (report.checkpoint / "ref").exists()
    assert (model_dir / "model.safetensors").read_bytes() == base_before
    for sequence, sign in ((good, 1), (bad, -1)):
        before_L, after_L = (checkpoint_logprobs(path, sequence.ids_L) for path in (model_dir, report.checkpoint))
        assert sign * (after_L - before_L)[sequence.mask_L[1:]].mean() > 0
    again = run(report.checkpoint, [good, bad], settings, tmp_path / "third", optimizer_state=report.optimizer_state)
    assert again.steps == 2


def test_an_adapter_and_a_reference_of_its_own_are_refused(
    model_dir: Path, make_sequence: Callable[..., Sequence], save_adapter: Callable[[Path], Path], tmp_path: Path
) -> None:
    settings = replace(SETTINGS, beta=0.1, reference_dir=model_dir)
    with pytest.raises(TrainError, match="reference"):
        run(save_adapter(tmp_path / "first"), [make_sequence(1, "a")], settings, tmp_path / "out")


GOLDEN = [1.61059, -1.09286, 1.32019, -1.23503, 1.23139, -1.27058]


def test_the_losses_of_a_round_are_the_recorded_ones(
    model_dir: Path, make_sequence: Callable[..., Sequence], tmp_path: Path
) -> None:
    """A change here is a change in what is learnt: explain it before recording it anew."""
    steps: list[StepReport] = []
    sequences = [make_sequence(n, f"t{n}", (4, 5 + 2 * n, 3, 4), advantage=1.5 - n, noise=0.3) for n in range(5)]
    run(model_dir, sequences, replace(SETTINGS, minibatches=2, epochs=3), tmp_path / "out", on_step=steps.append)
    assert [step.loss for step in steps] == pytest.approx(GOLDEN, abs=2e-4)


SHARDED = """
import os, pathlib, sys
os.environ |= {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
}
from accelerate import PartialState
from accelerate.utils import DistributedType
begin = PartialState.__init__
def as_accelerators(self, *given, **named):
    # Accelerate 1.15 shards beside accelerators only. From here on all is its own and torch's, over gloo.
    begin(self, *given, **named)
    if self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.MULTI_GPU
PartialState.__init__ = as_accelerators
from torch.distributed.fsdp import FSDPModule
import trainer.policy_trainer as policy_trainer
on_step_end = policy_trainer.StepObserver.on_step_end
def checked(self, *given, **named):
    assert isinstance(self.trainer.model_wrapped, FSDPModule), "nothing is sharded"
    return on_step_end(self, *given, **named)
policy_trainer.StepObserver.on_step_end = checked
from trainer.round_process import main
main(pathlib.Path(sys.argv[-1]))
"""


def two_processes(kind: str, folder: Path) -> list[str]:
    """What `accelerate launch` runs: two processes on this machine, replicated or sharded."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    if kind == "replicated":
        return launch
    script = folder / "sharded.py"
    script.write_text(SHARDED)
    return [*launch, str(script)]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["replicated", "sharded"])
def test_two_processes_give_the_losses_and_weights_of_one(
    model_dir: Path, make_sequence: Callable[..., Sequence], tmp_path: Path, kind: str
) -> None:
    """Over two rounds, the second with the optimizer's state of the first."""
    sequences = [make_sequence(n, f"t{n}", (4, 5 + 2 * n), advantage=1.5 - n, noise=0.3) for n in range(5)]
    settings = replace(SETTINGS, minibatches=2, epochs=2)

    def rounds(folder: Path, launch: list[str]) -> tuple[TrainReport, list[StepReport]]:
        steps: list[StepReport] = []
        first = run_round(RoundRequest(model_dir, sequences, settings, folder / "first"), launch, steps.append)
        more = RoundRequest(first.checkpoint, sequences, settings, folder / "second", first.optimizer_state)
        return run_round(more, launch, steps.append), steps

    one, alone = rounds(tmp_path / "one", [])
    two, together = rounds(tmp_path / "two", two_processes(kind, tmp_path))
    assert [s.loss for s in together] == pytest.approx([s.loss for s in alone], abs=1e-5)
    assert [s.grad_norm for s in together] == pytest.approx([s.grad_norm for s in alone], abs=1e-4)
    assert [s.tokens for s in together] == [s.tokens for s in alone]
    for name, tensor in weights(one.checkpoint).items():
        assert float((weights(two.checkpoint)[name] - tensor).abs().max()) < 1e-5, name
    said = [list(load_logprobs(report.checkpoint / LOGPROBS_FILE)) for report in (one, two)]
    assert [token.call_id for token in said[0]] == [token.call_id for token in said[1]]
    for alone_T, together_T in zip(*said, strict=True):
        np.testing.assert_allclose(together_T.logprobs_T, alone_T.logprobs_T, atol=1e-4)


def test_a_launched_round_reports_its_steps_and_its_failure(
    model_dir: Path, make_sequence: Callable[..., Sequence], tmp_path: Path
) -> None:
    steps: list[StepReport] = []
    request = RoundRequest(model_dir, [make_sequence(1, "a")], SETTINGS, tmp_path / "out")
    report = run_round(request, [sys.executable], steps.append)
    assert [step.step for step in steps] == [1]
    assert report.checkpoint == tmp_path / "out"
    with pytest.raises(TrainError, match="exists already"):
        run_round(request, [sys.executable])
    with pytest.raises(TrainError, match="ended with status 1"):
        run_round(request, [sys.executable, "-c", "raise SystemExit('no such option')"])
    with pytest.raises(TrainError, match="cannot be started"):
        run_round(request, ["/no/such/launcher"])
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
