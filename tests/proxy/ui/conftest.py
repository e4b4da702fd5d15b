"""A proxy whose store holds the story, for tests that look at pages."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from mosaic.settings import Settings
from mosaic.store import Store
from proxy.app import create_app
from tests.proxy.ui.story import Vocabulary, told

KEY = "control-key-1"


class Page(HTMLParser):
    """A page as a parser sees it: its elements with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        """What a reader reads."""
        return " ".join(" ".join(self.words).split())

    def links(self, beginning: str) -> list[str]:
        """Where links lead that begin so."""
        found = [str(attrs.get("href")) for tag, attrs in self.elements if tag == "a"]
        return [link for link in found if link.startswith(beginning)]


@dataclass
class Visitor:
    """Somebody with a browser before an open proxy."""

    client: TestClient
    store: Store

    def see(self, path: str, **headers: str) -> Page:
        """A page that is there."""
        answer = self.client.get(f"/ui/{path}", headers={"accept": "text/html", **headers})
        assert answer.status_code == 200, answer.text
        return Page(answer.text)

    def token(self) -> dict[str, str]:
        """What a page of ours sends with a write."""
        found = re.search(r'name="csrf" content="(\w+)"', self.client.get("/ui/trajectories").text)
        assert found
        return {"x-mosaic-csrf": found[1]}


@pytest.fixture(scope="module")
def told_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Store]]:
    """A folder with the story in its database; shared by a module's tests."""
    folder = tmp_path_factory.mktemp("story")
    store = Store(f"sqlite:///{folder}/mosaic.db")
    told(store, Vocabulary(), time.time() - 4000, rounds=2)
    yield folder, store
    store.close()


def _client(folder: Path, *keys: str) -> TestClient:
    settings = Settings(
        database=f"sqlite:///{folder}/mosaic.db",
        spool=folder / "spool",
        upstream="http://127.0.0.1:9/v1",
        writer_process=False,
        api_keys=[SecretStr(key) for key in keys],
    )
    return TestClient(create_app(settings), "http://127.0.0.1")


@pytest.fixture
def visitor(told_store: tuple[Path, Store]) -> Iterator[Visitor]:
    """Before a proxy without keys."""
    folder, store = told_store
    with _client(folder) as client:
        yield Visitor(client, store)


@pytest.fixture
def guarded(told_store: tuple[Path, Store]) -> Iterator[TestClient]:
    """Before a proxy that wants `KEY`."""
    with _client(told_store[0], KEY) as client:
        yield client
