"""Python functions of the user's, by name: `module:function`, found from where `mosaic` was started."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from mosaic.errors import SettingsError

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
"""Without which clients cannot be made."""
STAND_IN = "stand-in"
"""A key that opens nothing."""


def check_agent(name: str) -> None:
    """See that a function is there which runs elsewhere, with a key of its own.

    Its module may make a client when it is imported. Where it cannot be, and keys are missing, it is imported with
    stand-ins: only then, since a module may find its keys by itself. Raises `SettingsError`.
    """
    missing = [key for key in KEYS if key not in os.environ]
    try:
        load_function(name)
    except SettingsError:
        if not missing:
            raise
        os.environ.update(dict.fromkeys(missing, STAND_IN))
        try:
            load_function(name)
        finally:
            for key in missing:
                if os.environ.get(key) == STAND_IN:
                    del os.environ[key]


def load_function(name: str) -> Callable[..., Any]:
    """The function. Raises `SettingsError` when there is none of that name, or its module ends in an error."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise SettingsError(f"{name!r} names no function.", "Write it as module:function.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"{name} cannot be loaded: {error}.", f"Looked in {os.getcwd()} and sys.path.") from error
    except Exception as error:  # whatever a module of the user's raises
        raise SettingsError(
            f"{name} cannot be loaded: its module raised {type(error).__name__}: {str(error).rstrip('.')}.",
            "An attempt has its address and key in its own process alone: export stand-ins (OPENAI_API_KEY=any), "
            "or read them inside the function.",
        ) from error
    if not callable(found):
        raise SettingsError(f"{name} is no function, but {type(found).__name__}.", "Name one that takes one argument.")
    return found
