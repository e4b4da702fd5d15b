"""`mosaic init`: a `mosaic.toml` with every setting, its meaning and its default, written from the settings' own tree.

Every setting stands there as a comment, so that the file changes nothing until a line is uncommented, and defaults
that a later release changes hold for whoever did not choose otherwise.
"""

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import orjson
import typer
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from mosaic.errors import SettingsError
from mosaic.settings import CONFIG_FILE, Settings

HEAD = f"""\
# {CONFIG_FILE}: the settings of Mosaic, read from the folder in which `mosaic` runs.
#
# Remove the # before a line to change what it says. Stronger than this file are variables (MOSAIC_PORT, in a section
# MOSAIC_TRAIN__EPOCHS) and, over these, the flags of a command. `mosaic config` prints what is in force and where it
# came from. Keys and secrets are better kept in variables than here.
"""


def init(
    *,
    force: bool = typer.Option(False, "--force", help="Replace the file that is there."),
    file: Path = typer.Option(Path(CONFIG_FILE), help="File to write; only this name is read, in the current folder."),
) -> None:
    """Write a mosaic.toml with every setting, its meaning and its default, all commented out.

    Nothing changes until a line is uncommented.

        mosaic init
        mosaic init --force
        mosaic config
    """
    try:
        with file.open("w" if force else "x", encoding="utf-8") as out:
            out.write(text())
    except FileExistsError:
        raise SettingsError(f"{file} is there already.", "Pass --force to replace it.") from None
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {error}.", "Pass another --file.") from error
    typer.echo(f"{file} is written; every setting in it is commented out. `mosaic config` prints what is in force.")


def text() -> str:
    """The file's text."""
    return HEAD + "".join(_top()) + "".join(_sections())


def _top() -> Iterator[str]:
    """Settings that belong to no section; TOML wants them first."""
    for name, field in Settings.model_fields.items():
        if _model_of(field.annotation) is None:
            yield _setting(name, field)


def _sections() -> Iterator[str]:
    for name, field in Settings.model_fields.items():
        model = _model_of(field.annotation)
        if model is None:
            continue
        several = get_origin(field.annotation) is dict
        yield f"\n\n# {field.description}\n" + (f'#[{name}."NAME"]\n' if several else f"[{name}]\n")
        yield from (_setting(inner, of) for inner, of in model.model_fields.items())


def _setting(name: str, field: FieldInfo) -> str:
    unset = field.default is None or field.is_required()
    told = " ".join([str(field.description), *_bounds(field)])
    value = "" if unset else f" {written(_default(field))}"
    need = "" if not unset or "nset" in told else " Unset." if field.default is None else " Needed."
    return f"\n# {told}{need}\n#{name} ={value}\n"


def _default(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True)


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model of a section: a field that is one, or a table of several."""
    found = get_args(annotation)[1] if get_origin(annotation) is dict else annotation
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _bounds(field: FieldInfo) -> Iterator[str]:
    """What values it takes, where its description need not say so."""
    if choices := _choices(field.annotation):
        yield f"One of {', '.join(choices)}."
    for bound in field.metadata:
        for mark, words in (("ge", "At least"), ("gt", "More than"), ("le", "At most")):
            if (value := getattr(bound, mark, None)) is not None:
                yield f"{words} {value}."


def _choices(annotation: Any) -> tuple[str, ...]:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return tuple(map(str, inner))
    if origin in (list, Annotated, Union, types.UnionType):
        return _choices(inner[0])
    return ()


def written(value: Any) -> str:
    """A value as TOML; of these kinds TOML and JSON differ only in tables."""
    if isinstance(value, SecretStr):
        raise TypeError("a secret has no default")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {written(one)}" for name, one in value.items()) + "}"
    return orjson.dumps(str(value) if isinstance(value, Path) else value).decode()
