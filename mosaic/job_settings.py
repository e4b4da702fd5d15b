"""Settings of what happens to trajectories once they are recorded: scoring, training jobs, their schedule and gate."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator

from mosaic.credit import rule_settings
from mosaic.daytimes import Cron, Hours
from mosaic.urls import BaseUrl


class TrainConfig(BaseModel):
    """What a training job does with the trajectories that it finds."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: Path | None = Field(None, description="Checkpoint that the engine started with; needed until a job has run.")
    output: Path = Field(Path("var/checkpoints"), description="Folder that receives one checkpoint per policy version.")
    credit: str = Field("mosaic", description="Credit rule: mosaic, mosaic:trajectory, mosaic:session, broadcast, ...")
    credit_options: dict[str, float | bool | str] = Field({}, description="Changes to the rule, e.g. {alpha = 0.2}.")
    contribution: Literal["group", "information_gain", "blend"] = Field(
        "group", description="Estimator of session contribution; the last two need answers."
    )
    answers: Path | None = Field(None, description="JSON object: task (its first user message, or key) -> answers.")
    learning_rate: float = Field(1e-5, gt=0, description="AdamW's step size.")
    epochs: int = Field(1, ge=1, description="Passes over the trajectories of one job.")
    minibatches: int = Field(1, ge=1, description="Optimizer steps per epoch; a trajectory is never split over two.")
    only: str | None = Field(None, description="Train only trajectories whose id is LIKE this SQL pattern.")
    task: str | None = Field(None, description="Train only tasks whose key is LIKE this SQL pattern.")
    max_age_s: float | None = Field(None, gt=0, description="Train only what had a call in the last so many seconds.")
    max_trajectories: int = Field(1024, ge=1, description="Most trajectories that one job takes, whole groups, newest.")
    max_staleness: int = Field(1, ge=0, description="Policy versions that a trajectory may be behind the live one.")
    stale_tokens: Literal["keep", "mask", "weight", "drop"] = Field(
        "keep", description="Tokens that older versions sampled: mask them, weight them down, or drop their sequence."
    )
    fresh_versions: int = Field(0, ge=0, description="Versions behind up to which a token is not stale.")
    stale_decay: float = Field(0.5, gt=0, le=1, description="Factor of `weight` for each version beyond these.")
    loss: Literal["dapo", "cispo", "vespo"] = Field("dapo", description="TRL's loss; dapo is the clipped one.")
    normalisation: Literal["trajectory-mean", "agent-mean", "sequence-mean", "token-mean"] = Field(
        "trajectory-mean", description="What a token weighs; by default every trajectory weighs the same."
    )
    proximal: Literal["engine", "trainer"] = Field("engine", description="Whose logprobs the ratio starts from.")
    importance: Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = Field(
        "token_truncate", description="How engine-trainer weights are bounded (proximal = trainer); sequence: session."
    )
    kl: float = Field(0.0, ge=0, description="Weight of the KL term to the reference; 0 has none.")
    reference: Path | None = Field(None, description="Checkpoint of the reference; unset: where the job starts.")
    micro_batch_tokens: int = Field(8192, ge=1, description="Most tokens of one forward pass, padding included.")
    bf16: bool = Field(False, description="Mixed precision, for GPUs; weights and optimizer stay float32.")
    gradient_checkpointing: bool = Field(False, description="Less memory, about 30 % more time.")
    trl: dict[str, Any] = Field({}, description="Further options of TRL's GRPOConfig.")
    launch: list[str] = Field(
        [], description='Command that starts the trainer, as ["accelerate", "launch", "--num_processes", "2"].'
    )
    max_tokens: int = Field(4096, ge=1, description="Longest sequence in tokens; longer ones lose whole calls.")
    nice: int = Field(10, ge=0, le=19, description="How far `mosaic train` steps back behind serving (Unix niceness).")
    threads: int | None = Field(None, ge=1, description="CPU threads of `mosaic train`; unset: OMP_NUM_THREADS.")
    seed: int = Field(0, description="Order of trajectories over the steps of a job.")
    pause: Literal["keep", "wait", "abort"] = Field(
        "keep", description="What a swap does to calls in flight: freeze them, let them end, or cut them short."
    )
    transport: Literal["disk", "nccl"] = Field("disk", description="How weights reach the engine; nccl needs GPUs.")
    nccl_workers: int = Field(1, ge=1, description="GPUs of each engine, for transport = nccl.")
    gate: str | None = Field(None, description="Shell command that prints a score of the live policy, last; see docs.")
    gate_tolerance: float = Field(0.0, ge=0, description="How much lower the score may be with the new version.")
    gate_timeout_s: float = Field(3600.0, gt=0, description="Seconds after which the gate's command is given up.")
    trackers: list[Literal["tensorboard", "trackio", "wandb"]] = Field(
        [], description="Where curves go besides the JSON lines beside each checkpoint."
    )
    track_project: str = Field("mosaic", description="Project under which trackio and wandb keep them.")
    track_run: str | None = Field(None, description="Name of the run there; unset: that of the folder `output`.")
    keep_logprobs: bool = Field(True, description="Keep what the trainer said of each token that it trained, 4 B each.")
    keep_checkpoints: int = Field(3, ge=2, description="Checkpoints kept on disk: the live one and those before it.")

    @field_validator("credit")
    @classmethod
    def _is_a_rule(cls, name: str) -> str:
        rule_settings(name)
        return name

    @field_validator("credit_options")
    @classmethod
    def _fit_the_rule(cls, options: dict[str, float | bool | str], info: ValidationInfo) -> dict[str, Any]:
        if "credit" in info.data:  # else that is what is wrong
            rule_settings(info.data["credit"], options)
        return options


class ScheduleConfig(BaseModel):
    """When training jobs start by themselves (`mosaic schedule`, and inside `mosaic serve`)."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    cron: Cron | None = Field(None, description='Times of day, five fields of cron, local time: "0 3 * * *".')
    every_s: float | None = Field(None, gt=0, description="Seconds from the start of one job to that of the next.")
    when_scored: int | None = Field(None, ge=1, description="As soon as so many were scored since the last job began.")
    idle_s: float | None = Field(None, gt=0, description="Begin only when no call has ended for so many seconds.")
    hours: Hours | None = Field(None, description="Begin only within these hours of the day, local time: 22:00-06:00.")
    look_every_s: float = Field(15.0, gt=0, description="Seconds between two looks at what is due.")

    @property
    def starts(self) -> bool:
        """Whether anything starts a job."""
        return self.cron is not None or self.every_s is not None or self.when_scored is not None


class ScoreConfig(BaseModel):
    """Who says how passively recorded trajectories went (`mosaic score`, and each job before it selects)."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    function: str | None = Field(None, description="Python function, module:function: trajectory (a dict) -> reward.")
    command: str | None = Field(None, description="Shell command: trajectory as JSON on stdin, reward as last line.")
    judge: BaseUrl | None = Field(None, description="Base URL, up to /v1, of an OpenAI-compatible server that judges.")
    judge_model: str | None = Field(None, description="Model that judges there.")
    judge_key: SecretStr | None = Field(None, description="Key that it wants.")
    judge_tokens: int = Field(8000, ge=64, description="Tokens of a trajectory that the judge sees, as estimated.")
    rubric: str | None = Field(None, description="What the judge is to look at, in its own words.")
    timeout_s: float = Field(120.0, gt=0, description="Seconds that a command or a judge may take for one trajectory.")
    concurrency: int = Field(4, ge=1, description="Trajectories that are scored at once.")
    only: str | None = Field(None, description="Score only trajectories whose id is LIKE this SQL pattern.")
    task: str | None = Field(None, description="Score only tasks whose key is LIKE this SQL pattern.")
    limit: int | None = Field(None, ge=1, description="At most so many at a time, the oldest first; unset: all.")
    in_jobs: bool = Field(True, description="Whether a training job scores what is closed before it selects.")


class HeldOutConfig(BaseModel):
    """Tasks that are attempted before and after new weights go live; a version that does worse does not stay."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    tasks: Path | None = Field(
        None, description="File of tasks, as for `mosaic rollout`; unset: there is no such gate."
    )
    agent: list[str] = Field([], description='Command line of the agent: ["my-agent", "--task", "{prompt}"].')
    score: str | None = Field(None, description="Shell command that scores an attempt: its last line is the reward.")
    score_function: str | None = Field(None, description="Python function that scores an attempt, module:function.")
    attempts: int = Field(1, ge=1, description="Attempts at each task, each time.")
    concurrency: int = Field(4, ge=1, description="Attempts at once.")
    timeout_s: float = Field(1800.0, gt=0, description="Seconds after which an attempt, and its scorer, is given up.")
    margin: float = Field(0.0, ge=0, description="How much lower the mean reward may be with the new version.")
    failed_reward: float = Field(0.0, description="What an attempt counts that failed or ran out of time.")
    folder: Path = Field(Path("var/rollouts"), description="Receives a folder for each run, and in it each attempt.")
    proxy: BaseUrl | None = Field(None, description="Address of `mosaic serve`; unset: that of `host` and `port`.")
