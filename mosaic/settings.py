"""All settings in one tree: defaults < `mosaic.toml` < secret files < `MOSAIC_*` < flags. Unknown keys are refused.

`mosaic config` prints what is in force and where each value came from. Nested keys are written `[train]` in the file
and `MOSAIC_TRAIN__LEARNING_RATE` in the environment. A secret may be a file `mosaic_<setting>` in `/run/secrets`, where
Docker puts it, or in the folder that `MOSAIC_SECRETS` names.
"""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings import (
    SettingsError as SettingsSourceError,
)

from mosaic.credit import rule_settings
from mosaic.daytimes import Cron, Hours
from mosaic.errors import SettingsError
from mosaic.urls import BaseUrl, EngineUrl, WebUrl, shown_url

CONFIG_FILE = "mosaic.toml"
ALL_SETTINGS = "`mosaic init --file all.toml` writes all settings, with what each may be."
SECRETS_VARIABLE = "MOSAIC_SECRETS"
"""Names the folder of secret files."""
SECRETS = Path("/run/secrets")
"""That folder when nothing names another."""
ATTEMPT_VARIABLES = frozenset(
    {"MOSAIC_TRAJECTORY", "MOSAIC_TASK", "MOSAIC_TASK_FILE", "MOSAIC_SCRATCH", "MOSAIC_REWARD_FILE", "MOSAIC_STATUS"}
)
"""What `mosaic rollout` tells an agent and its scorer: no settings, and both may call `mosaic` themselves."""


T = TypeVar("T", str, SecretStr)


def _not_blank(value: T) -> T:
    """Raises `ValueError`."""
    if not (value.get_secret_value() if isinstance(value, SecretStr) else value).strip():
        raise ValueError("it is empty; give a value, or leave the setting away")
    return value


Text = Annotated[str, AfterValidator(_not_blank)]
Secret = Annotated[SecretStr, AfterValidator(_not_blank)]


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


class OtherModel(BaseModel):
    """An engine that does not serve the policy, for an agent's side calls."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    upstream: BaseUrl = Field(description="Base URL, up to and with /v1.")
    api_key: SecretStr | None = Field(None, description="Key that the engine wants.")
    model: str | None = Field(None, description="Name to ask it for; unset asks for what the client named.")


class Settings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(
        env_prefix="MOSAIC_", env_nested_delimiter="__", extra="forbid", allow_inf_nan=False, toml_file=CONFIG_FILE
    )

    upstream: EngineUrl = Field("http://localhost:8000/v1", description="Base URL of the vLLM that serves the policy.")
    upstream_api_key: SecretStr | None = Field(None, description="Key that the engine wants; clients never see it.")
    database: Text = Field("sqlite:///var/mosaic.db", description="SQLAlchemy URL of the store.")
    spool: Path = Field(Path("var/spool"), description="Folder of the journal: calls until the database has them.")
    host: Text = Field("127.0.0.1", description="Address to listen on; any but loopback needs api_keys.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    api_keys: list[Annotated[Secret, Field(min_length=1)]] = Field(
        [], description="Keys that clients must send; empty leaves a loopback proxy open."
    )
    agent_keys: list[Annotated[Secret, Field(min_length=1)]] = Field(
        [], description="Keys that may make model calls, and nothing else."
    )
    trajectory_secret: Secret | None = Field(
        None, min_length=16, description="Signs keys that name a trajectory (`mosaic key`); unset knows none."
    )
    policy_model: Text | None = Field(
        None, description="Name under which the engine serves the policy; a LoRA adapter's. Unset: the first it lists."
    )
    webhook_secret: Secret | None = Field(
        None,
        min_length=16,
        description="Signs webhooks: rewards without a key, and what webhook_url is told.",
    )
    webhook_url: WebUrl | None = Field(None, description="Is told how jobs ended, by POST; unset: nobody is.")
    replicas: list[EngineUrl] = Field([], description="Base URLs of further vLLMs that serve the same policy.")
    models: dict[str, OtherModel] = Field(
        {}, description="Pattern of model names -> another engine, whose calls are never trained."
    )
    fidelity: Literal["capture", "exact"] = Field(
        "capture", description="exact keeps sampled ids in prompts, token in, token out (vLLM's --enable-scale-out)."
    )
    exact_reasoning: Literal["keep", "drop"] = Field(
        "keep", description="Reasoning that history lacks: keep what was sampled, or drop it as the template does."
    )
    exact_memory_bytes: int = Field(
        256 * 2**20, ge=0, description="Memory of one worker for what was sampled lately, in exact mode."
    )
    max_calls: int = Field(4096, ge=1, description="Calls that one worker has open at most; more get 503.")
    engine_wait_s: float = Field(30.0, ge=0, description="Seconds that calls wait for an engine that does not listen.")
    ping_s: float = Field(5.0, ge=0, description="Seconds of silence after which a stream gets a keep-alive; 0: never.")
    max_body_bytes: int = Field(64 * 2**20, ge=1, description="Largest request body in bytes.")
    otel: bool = Field(
        False, description="Send an OpenTelemetry span of each stored call (extra otel); OTEL_* variables say where to."
    )
    record: bool = Field(True, description="False forwards calls and records nothing.")
    writer_process: bool = Field(True, description="False writes in a thread of the server: smaller, and slower.")
    store_wait_s: float = Field(2.0, gt=0, description="Seconds that an answer waits for the database, where it does.")
    commit_first: bool = Field(
        False, description="Answers wait for the database, not for the journal alone: for proxies on several hosts."
    )
    connect_timeout_s: float = Field(5.0, gt=0, description="Seconds to reach the engine.")
    reward_window_s: float = Field(
        7 * 24 * 3600.0,
        ge=0,
        description="Seconds after training (or failure) in which a reward re-opens a trajectory.",
    )
    close_after_s: float = Field(24 * 3600.0, gt=0, description="Seconds without a call after which one is closed.")
    answered_after_s: float = Field(
        900.0, gt=0, description="The same for a trajectory that lineage found, once all its agents have answered."
    )
    retention_days: float | None = Field(None, gt=0, description="Days after which trajectories go; unset keeps all.")
    keep_trained_since: int | None = Field(0, description="Retention spares what these versions were trained on.")
    workers: int = Field(1, ge=1, le=64, description="Proxy processes that serve the port together.")
    drain_s: float = Field(10.0, ge=0, description="Seconds that open calls get to end when the proxy is stopped.")
    schedule: ScheduleConfig = Field(
        default_factory=lambda: ScheduleConfig.model_validate({}), description="When jobs start by themselves."
    )
    score: ScoreConfig = Field(
        default_factory=lambda: ScoreConfig.model_validate({}), description="Who says how trajectories went."
    )
    held_out: HeldOutConfig = Field(
        default_factory=lambda: HeldOutConfig.model_validate({}),
        description="Tasks at which new weights may not be worse.",
    )
    train: TrainConfig = Field(default_factory=lambda: TrainConfig.model_validate({}), description="Training jobs.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic-settings passes them by name.
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment, then secret files, then the file."""
        return init_settings, env_settings, *_secrets(settings_cls), TomlConfigSettingsSource(settings_cls)


def _secrets(settings_cls: type[BaseSettings]) -> tuple[PydanticBaseSettingsSource, ...]:
    """The folder of secret files, if there is one. Raises `SettingsError` when the one that is named is not there."""
    named = os.environ.get(SECRETS_VARIABLE)
    folder = Path(named) if named else SECRETS
    if folder.is_dir():
        return (SecretsSettingsSource(settings_cls, folder),)
    if named:
        raise SettingsError(f"{SECRETS_VARIABLE} names {named}, which is no folder.", "Make it, or unset the variable.")
    return ()


def load(**flags: object) -> Settings:
    """The settings in force; flags that are None count as not given, those of a section stand in a dict under its name.

    Raises `SettingsError`.
    """
    given = _given(flags)
    _check_variables()
    try:
        return Settings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        raise _refused(error, given) from error
    except SettingsSourceError as error:
        raise SettingsError(f"{error}.", 'List values are written as JSON, for example ["a", "b"].') from error
    except (ValueError, OSError) as error:
        raise SettingsError(f"{CONFIG_FILE} cannot be read: {error}.", "Correct or remove it.") from error


def _given(flags: Mapping[str, object]) -> dict[str, object]:
    parts = {name: _given(value) if isinstance(value, dict) else value for name, value in flags.items()}
    return {name: value for name, value in parts.items() if value not in (None, {})}


def _refused(error: ValidationError, given: Mapping[str, object]) -> SettingsError:
    """Which setting is wrong, where it was set, and what is wrong with it."""
    first = error.errors()[0]
    names = [str(part) for part in first["loc"]]
    variable = f"MOSAIC_{'__'.join(names).upper()}"
    file = CONFIG_FILE if names[0] in TomlConfigSettingsSource(Settings)() else "a secret file"
    origin = "a flag" if _is_flag(names, given) else variable if variable in os.environ else file
    if first["type"] == "extra_forbidden":
        return SettingsError(f"{origin}: there is no setting {'.'.join(names)!r}{_meant(names)}.", ALL_SETTINGS)
    return SettingsError(f"setting {'.'.join(names)!r} (from {origin}): {_wrong(error)}.", ALL_SETTINGS)


def _is_flag(names: list[str], given: object) -> bool:
    """Whether a setting, or what it is a part of, was given as a flag."""
    if not names or not isinstance(given, dict):
        return True
    return names[0] in given and _is_flag(names[1:], given[names[0]])


def _meant(names: list[str]) -> str:
    """A question after the setting that looks most like one that is not there."""
    known: Mapping[str, Any] = Settings.model_fields
    for name in names[:-1]:
        known = _fields(known.get(name))
    close = difflib.get_close_matches(names[-1], known, 1)
    return f"; did you mean {'.'.join([*names[:-1], *close])!r}" if close else ""


def _wrong(error: ValidationError) -> str:
    """What is wrong with the first value; pydantic counts the characters of a secret as items."""
    first = error.errors()[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"]).rstrip(".?")
    if first["type"] == "too_short" and isinstance(first["input"], str):
        return f"it needs at least {first['ctx']['min_length']} characters, not {first['ctx']['actual_length']}"
    return first["msg"].rstrip(".?")


def _check_variables() -> None:
    """Raises `SettingsError` for a `MOSAIC_*` variable that names no setting: a typing error must not pass unseen."""
    for variable in os.environ:
        if not variable.startswith("MOSAIC_") or variable in ATTEMPT_VARIABLES | {SECRETS_VARIABLE}:
            continue
        names = variable.removeprefix("MOSAIC_").lower().split("__")
        part = Settings.model_fields.get(names[0]) if len(names) > 1 else None
        known = Settings.model_fields if len(names) == 1 else _fields(part)
        if names[-1] not in known:
            raise SettingsError(f"{variable} names no setting{_meant(names)}.", ALL_SETTINGS)


def _fields(part: FieldInfo | None) -> Mapping[str, Any]:
    """The settings of a part of the tree."""
    kind = None if part is None else part.annotation
    return kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}


def origins(settings: Settings) -> dict[str, tuple[Any, str]]:
    """Every setting by dotted name: its value (secrets masked) and `default`, `mosaic.toml`, `secret file` or the
    variable's name."""
    file = TomlConfigSettingsSource(Settings)()
    secrets = {name for source in _secrets(Settings) for name in source()}
    return {
        name: (value, "secret file" if name in secrets and not origin.startswith("MOSAIC_") else origin)
        for name, (value, origin) in _origins(settings, file, "")
    }


def _origins(model: BaseModel, file: Mapping[str, Any], prefix: str) -> list[tuple[str, tuple[Any, str]]]:
    found: list[tuple[str, tuple[Any, str]]] = []
    for name in type(model).model_fields:
        value, dotted = getattr(model, name), f"{prefix}{name}"
        if isinstance(value, BaseModel):
            found += _origins(value, file.get(name, {}), f"{dotted}.")
            continue
        variable = "MOSAIC_" + dotted.replace(".", "__").upper()
        origin = variable if variable in os.environ else CONFIG_FILE if name in file else "default"
        found.append((dotted, (_shown(value), origin)))
    return found


def _shown(value: object) -> object:
    """A value as anybody may see it, at any depth."""
    if isinstance(value, BaseModel):
        return {name: _shown(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {name: _shown(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_shown(inner) for inner in value]
    if isinstance(value, str) and "://" in value:
        return shown_url(value)
    return str(value) if isinstance(value, SecretStr | Path) else value
