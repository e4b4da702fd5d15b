"""A Python function as an agent: `python -m mosaic.function_agent module:function`, in the attempt's own process.

The function gets the task as a dict, and finds the policy in the environment as any agent does. A number that it
returns is the reward; a dict may hold `reward` and `note`; text is printed. Coroutines are run to their end.
"""

import asyncio
import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any

from mosaic.errors import SettingsError
from mosaic.functions import load_function


def main() -> None:
    """Run the function named by the only argument on the task of this attempt."""
    try:
        function = load_function(sys.argv[1])
    except SettingsError as error:
        sys.exit(f"mosaic: {error}")
    task = json.loads(Path(os.environ["MOSAIC_TASK_FILE"]).read_text(encoding="utf-8"))
    said = function(task)
    if inspect.iscoroutine(said):
        said = asyncio.run(said)
    _tell(said)


def _tell(said: Any) -> None:
    """Print text; write a reward where the rollout looks for it."""
    if isinstance(said, str):
        sys.stdout.write(said + "\n")
    elif said is not None:
        reward = said if isinstance(said, dict) else {"reward": float(said)}
        Path(os.environ["MOSAIC_REWARD_FILE"]).write_text(json.dumps(reward), encoding="utf-8")


if __name__ == "__main__":
    main()
