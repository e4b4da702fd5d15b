"""`mosaic`, which at SIGUSR1 appends the number of its asyncio tasks to a file.

`python -m benchmarks.proxy_served FILE serve ...` is as `mosaic serve ...`.
"""

import asyncio
import signal
import sys
from pathlib import Path

from mosaic.cli import main

if __name__ == "__main__":
    file = Path(sys.argv.pop(1))

    def note(*_: object) -> None:
        """One line more."""
        with file.open("a") as out:
            out.write(f"{len(asyncio.all_tasks())}\n")

    signal.signal(signal.SIGUSR1, note)
    main()
