"""`docs/faults.md` names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/faults.md").read_text()))
    found = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(named) > 30
    assert named <= found, named - found
