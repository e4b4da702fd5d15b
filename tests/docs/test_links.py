"""Links between pages of the docs lead somewhere: the file is there, and so is the heading."""

import re
from pathlib import Path

import pytest

from tests.docs.test_commands import PAGES, ROOT

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    lines = [line for line in _CODE.sub("", page.read_text()).splitlines() if line.startswith("#")]
    texts = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line.lstrip("# ")) for line in lines)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in _LINK.findall(_CODE.sub("", page.read_text())):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert not anchor or anchor in headings(there), target


def test_headings_become_anchors() -> None:
    assert "a-reverse-proxy" in headings(ROOT / "docs" / "operations.md")


def test_every_page_is_linked_from_another() -> None:
    linked = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in PAGES
        for target in _LINK.findall(page.read_text())
        if not target.startswith("http")
    }
    lonely = [str(page.relative_to(ROOT)) for page in PAGES[1:] if page not in linked]
    assert lonely == []
