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

from mosaic.errors import SettingsError
from mosaic.job_settings import HeldOutConfig, ScheduleConfig, ScoreConfig, TrainConfig
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
