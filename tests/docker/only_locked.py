"""Put before all else on `PYTHONPATH` as `sitecustomize.py`: nothing can be imported but what a lock file names.

So a process sees of this environment what an image has that was made from that file alone. The file's path is in
`ONLY_LOCKED`; children inherit both.
"""

import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import packages_distributions

OURS = {"mosaic", "proxy", "adapters", "trainer"}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class OnlyLocked:
    """A finder that refuses the packages of distributions that the lock does not name."""

    def __init__(self, lock: str) -> None:
        with open(lock, encoding="utf-8") as file:
            named = {_plain(line.split("==")[0].split("[")[0]) for line in file if "==" in line}
        self.refused = {
            package
            for package, providers in packages_distributions().items()
            if package not in OURS and not named & {_plain(provider) for provider in providers}
        }

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        """Raise for what is refused; leave the rest to the finders after this one."""
        del path, target
        if name.partition(".")[0] in self.refused:
            raise ModuleNotFoundError(f"No module named {name!r} (it is not in the image's lock)", name=name)


if "ONLY_LOCKED" in os.environ:
    sys.meta_path.insert(0, OnlyLocked(os.environ["ONLY_LOCKED"]))
