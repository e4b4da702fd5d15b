"""Python functions of the user's, by name: `module:function`, found from where `mosaic` was started."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from mosaic.errors import SettingsError


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
