"""The trainer against formulas: gradients, normalisation, TRL's own GRPO, and the files that a round leaves."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mosaic.errors import NothingToTrain, TrainError
from trainer.round import LOGPROBS_FILE, StepReport, TrainReport, TrainSettings
from trainer.sequences import Sequence
from trainer.trained_logprobs import load_logprobs

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:TRL currently supports vLLM"
)

Gradients = dict[str, Any]
Direct = Callable[[Any, list[Sequence]], Any]

SETTINGS = TrainSettings(learning_rate=1e-3, max_grad_norm=0.0, micro_batch_tokens=40)


@pytest.fixture
def round_of_four(make_sequence: Callable[..., Sequence]) -> list[Sequence]:
    """Four trajectories of one to three sequences, logprobs off by enough that many ratios are clipped."""
    return [
        make_sequence(1, "a", (5, 4), advantage=1.0, noise=0.4),
        make_sequence(2, "b", (3, 6, 4, 2), advantage=-0.5, noise=0.4),
        make_sequence(3, "b", (9, 3), session="child", advantage=0.75, noise=0.4),
        make_sequence(4, "c", (2, 20), advantage=-1.5, noise=0.4),
        make_sequence(5, "d", (12, 1), advantage=2.0, noise=0.4),
        make_sequence(6, "d", (1, 7), advantage=2.0, noise=0.4),
        make_sequence(7, "d", (4, 5, 3, 3), session="after", advantage=-0.3, noise=0.4),
    ]


def accumulated(model_dir: Path, sequences: list[Sequence], settings: TrainSettings, scratch: Path) -> Any:
    """Run one optimizer step; return (loss, gradients by parameter name)."""
    from transformers import TrainerCallback

    from trainer.policy_trainer import policy_trainer

    captured: Gradients = {}

    class Capture(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **kwargs: Any) -> None:
            captured.update({name: p.grad.clone() for name, p in kwargs["model"].named_parameters()})

    trainer = policy_trainer(model_dir, sequences, settings, scratch)
    trainer.add_callback(Capture())
    trainer.start()
    return trainer.train().training_loss, captured


def direct(model_dir: Path, sequences: list[Sequence], weight: Callable[[Sequence], float], **options: float) -> Any:
    """The loss of mosaic.md 4.5, one sequence at a time without padding; return (loss, gradients)."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(model_dir)
    cap = options.get("decoupled_cap")
    total = torch.zeros(())
    for sequence in sequences:
        ids_1L = torch.from_numpy(sequence.ids_L.astype(np.int64))[None]
        mask_T = torch.from_numpy(sequence.mask_L[1:])
        logps_LV = torch.log_softmax(model(input_ids=ids_1L).logits[0, :-1], -1)
        logps_T = logps_LV.gather(1, ids_1L[0, 1:, None])[:, 0][mask_T]
        engine_T = torch.from_numpy(sequence.logprobs_L[1:])[mask_T]
        advantages_T = torch.from_numpy(sequence.advantages_L[1:])[mask_T]
        start_T = engine_T if cap is None else logps_T.detach()
        ratio_T = (logps_T - start_T).exp()
        loss_T = -torch.min(ratio_T * advantages_T, ratio_T.clamp(0.8, 1.28) * advantages_T)
        if cap is not None:
            loss_T = loss_T * (start_T - engine_T).exp().clamp(max=cap)
        total = total + weight(sequence) * loss_T.sum()
    total.backward()
    return total.item(), {name: p.grad for name, p in model.named_parameters()}


def assert_same(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    assert ours[0] == pytest.approx(theirs[0], abs=tolerance)
    assert ours[1].keys() == theirs[1].keys()
    assert max(gradient.abs().max().item() for gradient in theirs[1].values()) > 100 * tolerance
    for name, gradient in theirs[1].items():
        assert (ours[1][name] - gradient).abs().max().item() < tolerance, name


def trajectory_weight(sequences: list[Sequence]) -> Callable[[Sequence], float]:
    n_trajectories = len({s.trajectory_id for s in sequences})
    return lambda one: 1 / n_trajectories / sum(s.n_trained for s in sequences if s.trajectory_id == one.trajectory_id)


@pytest.mark.parametrize("micro_batch_tokens", [1, 40, 10_000])
def test_gradients_equal_the_formula_per_trajectory_however_they_are_accumulated(
    model_dir: Path, round_of_four: list[Sequence], tmp_path: Path, micro_batch_tokens: int
) -> None:
    settings = replace(SETTINGS, micro_batch_tokens=micro_batch_tokens)
    ours = accumulated(model_dir, round_of_four, settings, tmp_path)
    assert_same(ours, direct(model_dir, round_of_four, trajectory_weight(round_of_four)))


def test_the_decoupled_objective_weighs_tokens_by_the_truncated_mismatch(
    model_dir: Path, round_of_four: list[Sequence], tmp_path: Path
) -> None:
    ours = accumulated(model_dir, round_of_four, replace(SETTINGS, proximal="trainer", importance_max=1.2), tmp_path)
    theirs = direct(model_dir, round_of_four, trajectory_weight(round_of_four), decoupled_cap=1.2)
    assert_same(ours, theirs)


def test_one_call_per_trajectory_equals_trls_own_grpo(
    model_dir: Path, make_sequence: Callable[..., Sequence], tmp_path: Path
) -> None:
    """The whole of TRL's path from rewards to gradients, with its generation replaced by the same stored ids."""
    rewards = [1.0, 0.0, 0.25, 1.0, 0.0, 0.5]
    sequences = [make_sequence(n, f"t{n}", (4 + n % 3, 3 + 2 * n), advantage=0.0) for n in range(len(rewards))]
    theirs = trl_grpo(model_dir, sequences, rewards, tmp_path / "trl")
    centred = np.array(rewards) - np.mean(rewards)
    advantages = centred / (np.std(rewards, ddof=1) + 1e-4)
    scored = [
        replace(s, advantages_L=np.where(s.mask_L, advantage, 0).astype(np.float32))
        for s, advantage in zip(sequences, advantages, strict=True)
    ]
    for micro_batch_tokens in (25, 10_000):
        settings = replace(SETTINGS, micro_batch_tokens=micro_batch_tokens)
        assert_same(accumulated(model_dir, scored, settings, tmp_path / "ours"), theirs)


def trl_grpo(model_dir: Path, sequences: list[Sequence], rewards: list[float], scratch: Path) -> Any:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    captured: Gradients = {}

    class Capture(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **kwargs: Any) -> None:
            captured.update({name: p.grad.clone() for name, p in kwargs["model"].named_parameters()})

    class Stored(GRPOTrainer):
        def _generate(self, _prompts: list[Any]) -> Any:
            prompt_ids = [s.ids_L[: s.prompt_len].tolist() for s in sequences]
            completion_ids = [s.ids_L[s.prompt_len :].tolist() for s in sequences]
            return prompt_ids, completion_ids, None, [""] * len(sequences), None, {}, None, []

    config = GRPOConfig(
        output_dir=str(scratch),
        loss_type="grpo",
        per_device_train_batch_size=len(sequences),
        num_generations=len(sequences),
        max_steps=1,
        max_grad_norm=0.0,
        epsilon_high=0.28,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    scores: list[float | None] = [*rewards]
    trainer = Stored(
        model=AutoModelForCausalLM.from_pretrained(model_dir),
        reward_funcs=lambda **_: scores,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["x"]}),
        processing_class=AutoTokenizer.from_pretrained(model_dir),
    )
    trainer.add_callback(Capture())
    return trainer.train().training_loss, captured


def run(
    model_dir: Path, sequences: list[Sequence], settings: TrainSettings, output_dir: Path, **options: Any
) -> TrainReport:
    from trainer.policy_trainer import train

    return train(model_dir, sequences, settings, output_dir, **options)


def weights(directory: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(directory / "model.safetensors")


def test_a_round_reports_every_step_and_leaves_a_whole_checkpoint(
    model_dir: Path, round_of_four: list[Sequence], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    steps: list[StepReport] = []
    output_dir = tmp_path / "rounds" / "v2"
    settings = replace(SETTINGS, epochs=2, minibatches=3)
    report = run(model_dir, round_of_four, settings, output_dir, on_step=steps.append)
    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6]
    assert report.steps == 6
    assert report.tokens_trained == 2 * sum(s.n_trained for s in round_of_four) == sum(step.tokens for step in steps)
    assert (report.sequences_trained, report.trajectories_trained) == (7, 4)
    assert 0 < report.clip_fraction < 1
    assert report.entropy > 0
    AutoModelForCausalLM.from_pretrained(output_dir)
    assert AutoTokenizer.from_pretrained(output_dir).chat_template
    assert json.loads((output_dir / "config.json").read_text()) == json.loads((model_dir / "config.json").read_text())
    assert any((weights(output_dir)[name] != tensor).any() for name, tensor in weights(model_dir).items())
    assert [path.name for path in output_dir.parent.iterdir()] == ["v2"]


@pytest.mark.parametrize("micro_batch_tokens", [1, 40, 10_000])
def test_what_the_trainer_said_of_each_trained_token_is_kept_from_before_its_first_step(
    model_dir: Path,
    round_of_four: list[Sequence],
    logprobs_of: Callable[..., Any],
    tmp_path: Path,
    micro_batch_tokens: int,
) -> None:
    """Also where rows are shuffled, padded and seen again in a second epoch."""
    settings = replace(SETTINGS, epochs=2, micro_batch_tokens=micro_batch_tokens)
    report = run(model_dir, round_of_four, settings, tmp_path / "out")
    said = {one.call_id: one.logprobs_T for one in load_logprobs(report.checkpoint / LOGPROBS_FILE)}
    spans = {span.call_id: (sequence, span) for sequence in round_of_four for span in sequence.spans}
    assert said.keys() == spans.keys()
    for call_id, (sequence, span) in spans.items():
        own_T = logprobs_of(sequence.ids_L)[span.start : span.end]
        np.testing.assert_allclose(said[call_id], own_T, atol=1e-5)


def test_a_token_that_is_masked_has_no_logprob_of_training(
    model_dir: Path, make_sequence: Callable[..., Sequence], tmp_path: Path
) -> None:
    whole = make_sequence(1, "a", (5, 4))
    stale = replace(whole, mask_L=whole.mask_L & (np.arange(9) != 6))
    report = run(model_dir, [stale], SETTINGS, tmp_path / "out")
    (one,) = load_logprobs(report.checkpoint / LOGPROBS_FILE)
    assert np.isnan(one.logprobs_T).tolist() == [False, True, False, False]


def test_figures_of_a_step_equal_the_formula(
    model_dir: Path, round_of_four: list[Sequence], logprobs_of: Callable[..., Any], tmp_path: Path
) -> None:
    report = run(model_dir, round_of_four, SETTINGS, tmp_path / "out")
    gaps = np.concatenate([(logprobs_of(s.ids_L) - s.logprobs_L)[s.mask_L] for s in round_of_four])
    advantages = np.concatenate([s.advantages_L[s.mask_L] for s in round_of_four])
    ratios = np.exp(gaps)
    clipped = ((ratios < 0.8) & (advantages < 0)) | ((ratios > 1.28) & (advantages > 0))
    assert report.mean_ratio == pytest.approx(ratios.mean(), abs=1e-4)
    assert report.clip_fraction == pytest.approx(clipped.mean(), abs=1e-6)
    assert report.logprob_gap_mean == pytest.approx(np.abs(gaps).mean(), abs=1e-4)
    assert report.logprob_gap_max == pytest.approx(np.abs(gaps).max(), abs=1e-4)


def test_the_gap_looks_at_the_newest_policy_version_only(
    model_dir: Path, make_sequence: Callable[..., Sequence], tmp_path: Path
) -> None:
    stale = make_sequence(1, "a", (5, 8), advantage=1.0, noise=1.0)
    fresh = make_sequence(2, "b", (5, 8), advantage=-1.0, noise=0.0)
    fresh = replace(fresh, versions_L=np.where(fresh.mask_L, 2, -1).astype(np.int32))
    report = run(model_dir, [stale, fresh], SETTINGS, tmp_path / "out")
    assert report.logprob_gap_max < 1e-4
    assert abs(report.mean_ratio - 1) > 1e-3


def test_two_rounds_with_the_optimizer_carried_over_equal_one_of_two_epochs(
    model_dir: Path, round_of_four: list[Sequence], tmp_path: Path
) -> None:
    once = run(model_dir, round_of_four, replace(SETTINGS, epochs=2), tmp_path / "once")
    first = run(model_dir, round_of_four, SETTINGS, tmp_path / "first")
    second = run(first.checkpoint, round_of_four, SETTINGS, tmp_path / "second", optimizer_state=first.optimizer_state)
    afresh = run(first.checkpoint, round_of_four, SETTINGS, tmp_path / "afresh")

    def distance(report: TrainReport) -> float:
        pairs = ((tensor, weights(report.checkpoint)[name]) for name, tensor in weights(once.checkpoint).items())
        return max(float((ours - theirs).abs().max()) for ours, theirs in pairs)

    assert distance(second) < 1e-6
    assert distance(afresh) > 1e-5


def test_the_settings_rate_replaces_the_one_in_the_optimizer_state(
    model_dir: Path, round_of_four: list[Sequence], tmp_path: Path
) -> None:
    first = run(model_dir, round_of_four, SETTINGS, tmp_path / "first")
    still = replace(SETTINGS, learning_rate=0.0)
    second = run(first.checkpoint, round_of_four, still, tmp_path / "second", optimizer_state=first.optimizer_state)
    for name, tensor in weights(first.checkpoint).items():
        assert (weights(second.checkpoint)[name] == tensor).all()


def test_training_raises_the_probability_of_what_was_good(
    model_dir: Path, make_sequence: Callable[..., Sequence], tmp_path: Path
) -> None:
    from trainer.probe import checkpoint_logprobs

    good, bad = make_sequence(1, "a", (6, 10), advantage=1.0), make_sequence(2, "b", (6, 10), advantage=-1.0)
    report = run(model_dir, [good, bad], replace(SETTINGS, learning_rate=1e-2), tmp_path / "out")
    for sequence, sign in ((good, 1), (bad, -1)):
        after_T = checkpoint_logprobs(report.checkpoint, sequence.ids_L)[sequence.mask_L[1:]]
        assert sign * (after_T.mean() - sequence.logprobs_L[sequence.mask_L].mean()) > 0


def test_a_reference_adds_a_kl_term(model_dir: Path, round_of_four: list[Sequence], tmp_path: Path) -> None:
    plain = run(model_dir, round_of_four, SETTINGS, tmp_path / "plain")
    near = run(model_dir, round_of_four, replace(SETTINGS, beta=0.5), tmp_path / "near")
    far = run(plain.checkpoint, round_of_four, replace(SETTINGS, beta=0.5, reference_dir=model_dir), tmp_path / "far")
    assert near.loss == pytest.approx(plain.loss, abs=1e-5)
    assert plain.kl is None
    assert near.kl == pytest.approx(0, abs=1e-6)
    assert far.kl is not None
    assert far.kl > 1e-6
    unanchored = run(plain.checkpoint, round_of_four, SETTINGS, tmp_path / "unanchored")
    assert far.loss > unanchored.loss + 1e-5


@pytest.mark.parametrize("n_sequences", [1, 17])
def test_any_number_of_sequences_trains(
    model_dir: Path, make_sequence: Callable[..., Sequence], tmp_path: Path, n_sequences: int
) -> None:
    sequences = [make_sequence(n, f"t{n}", (3, 2 + n % 5), advantage=1.0 - n) for n in range(n_sequences)]
    report = run(model_dir, sequences, replace(SETTINGS, minibatches=4), tmp_path / "out")
    assert report.steps == min(4, n_sequences)
    assert report.tokens_trained == sum(s.n_trained for s in sequences)


def test_what_cannot_be_trained_is_refused_and_leaves_nothing(
    model_dir: Path, make_sequence: Callable[..., Sequence], tmp_path: Path
) -> None:
    one = make_sequence(1, "a")
    infinite = replace(one, advantages_L=np.where(one.mask_L, np.inf, 0).astype(np.float32))
    output_dir = tmp_path / "out"
    with pytest.raises(NothingToTrain):
        run(model_dir, [], SETTINGS, output_dir)
    with pytest.raises(TrainError, match="not finite"):
        run(model_dir, [infinite], SETTINGS, output_dir)
    with pytest.raises(TrainError, match="no checkpoint"):
        run(tmp_path, [one], SETTINGS, output_dir)
    with pytest.raises(TrainError, match="does not fit"):
        run(model_dir, [one], replace(SETTINGS, loss_type="grpo"), output_dir)
    with pytest.raises(TrainError, match="TRL refuses"):
        run(model_dir, [one], replace(SETTINGS, trl={"no_such_option": 1}), output_dir)
    with pytest.raises(TrainError, match="optimizer state"):
        run(model_dir, [one], SETTINGS, output_dir, optimizer_state=model_dir / "config.json")
    assert list(tmp_path.iterdir()) == []
    output_dir.mkdir()
    with pytest.raises(TrainError, match="exists already"):
        run(model_dir, [one], SETTINGS, output_dir)


def test_an_optimizer_state_of_another_model_is_refused(
    model_dir: Path, save_model: Callable[..., Path], make_sequence: Callable[..., Sequence], tmp_path: Path
) -> None:
    first = run(model_dir, [make_sequence(1, "a")], SETTINGS, tmp_path / "first")
    other = save_model(tmp_path / "other", hidden=64)
    with pytest.raises(TrainError, match="shape"):
        run(other, [make_sequence(1, "a")], SETTINGS, tmp_path / "out", optimizer_state=first.optimizer_state)


def test_a_loss_that_is_not_finite_saves_nothing(
    model_dir: Path, make_sequence: Callable[..., Sequence], tmp_path: Path
) -> None:
    one = make_sequence(1, "a")
    hopeless = replace(one, logprobs_L=np.where(one.mask_L, -1e4, 0).astype(np.float32), advantages_L=-one.advantages_L)
    with pytest.raises(TrainError, match="nothing was saved"):
        run(model_dir, [hopeless], SETTINGS, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
