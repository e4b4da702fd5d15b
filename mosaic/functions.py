"""Python functions of the user's, by name: `module:function`, found from where `mosaic` was started."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from mosaic.errors import SettingsError


def load_function(name: str) -> Callable[..., Any]:
    """The function. Raises `SettingsError` when there is none of that name."""
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
    if not callable(found):
        raise SettingsError(f"{name} is no function, but {type(found).__name__}.", "Name one that takes one argument.")
    return found
