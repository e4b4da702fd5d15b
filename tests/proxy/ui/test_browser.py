"""The dashboard as it is used, in headless Chromium: open, filter, click to a token, give a reward, watch a trajectory
grow. A page that writes an error to its console fails.

With `SCREENSHOTS=docs/images` (`make screenshots`) the pictures of the docs are made on the way. Skipped where there is
no Chromium (Debian's package, or the path in `CHROMIUM`).
"""

import asyncio
import os
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mosaic.store import Store, schedules
from tests.conftest import Proxy, ProxyFactory
from tests.engine import Turn
from tests.proxy.ui.story import ReadingEngine, Vocabulary, long, told

playwright = pytest.importorskip("playwright.async_api")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium (apt-get install chromium)")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip
PICTURES = ("trajectories", "trajectory", "call", "group-dark", "training-dark", "health-dark", "trajectory-narrow")
"""Those of the docs."""
WIDE, NARROW = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
KEY = "control-key-1"


@dataclass
class Told:
    """The story in a file, and the words of its tokens."""

    database: Path
    words: Vocabulary


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Told once; every test gets a copy."""
    found = Told(tmp_path_factory.mktemp("story") / "story.db", Vocabulary())
    store = Store(f"sqlite:///{found.database}")
    told(store, found.words, time.time() - 6000, rounds=4)
    store.record(long(found.words, "run-long", 300, time.time() - 500))
    store.close()
    return found


@dataclass
class Browser:
    """A page in a browser before a proxy whose store holds the story."""

    page: Any
    proxy: Proxy
    faults: list[str] = field(default_factory=list)
    """What the page wrote to its console as an error, or threw."""

    async def open(self, path: str) -> None:
        await self.page.goto(f"{self.proxy.url}/ui/{path}")

    async def picture(self, name: str) -> None:
        """For the docs, where they are made; a page that is wider than its window is a fault everywhere."""
        assert await self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        if (folder := os.environ.get("SCREENSHOTS")) and name in PICTURES:
            await self.page.screenshot(path=Path(folder) / f"{name}.png")

    async def see(self, selector: str) -> Any:
        return await self.page.wait_for_selector(selector, timeout=10_000)


@asynccontextmanager
async def browsing(
    story: Told, start_proxy: ProxyFactory, size: dict[str, int] = WIDE, scheme: str = "light", **settings: Any
) -> AsyncIterator[Browser]:
    """A browser before the story; every page that was seen must have been without a fault."""
    engine = ReadingEngine(lambda body: Turn(f"It is answer {len(body['messages'])}."), words=story.words)
    database = story.database.with_name(f"{secrets.token_hex(4)}.db")
    shutil.copy(story.database, database)
    async with (
        start_proxy(engine, database=f"sqlite:///{database}", **settings) as proxy,
        playwright.async_playwright() as driver,
    ):
        chromium = await driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        context = await chromium.new_context(viewport=size, color_scheme=scheme)
        await context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = await context.new_page()
        seen = Browser(page, proxy)
        page.on(
            "console",
            lambda said: (
                seen.faults.append(f"{said.text} {said.location}") if said.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: seen.faults.append(str(error)))
        try:
            yield seen
            assert seen.faults == []
        finally:
            await chromium.close()


async def called(proxy: Proxy, trajectory_id: str, *said: str) -> None:
    """One call of an agent; what it said before, and now."""
    body = {"model": "policy", "messages": [{"role": "user", "content": one} for one in said]}
    address = f"{proxy.url}/t/{trajectory_id}/v1/chat/completions"
    async with aiohttp.ClientSession() as client, client.post(address, json=body) as response:
        assert response.status == 200


def test_the_docs_show_the_pictures_that_are_made_here_and_no_others() -> None:
    docs = Path(__file__).parents[3] / "docs"
    shown = re.findall(r"\(images/([\w-]+)\.png\)", (docs / "dashboard.md").read_text())
    assert sorted(shown) == sorted(PICTURES) == sorted(file.stem for file in (docs / "images").iterdir())


async def test_from_the_list_by_search_and_keys_to_a_token(story: Told, start_proxy: ProxyFactory) -> None:
    async with browsing(story, start_proxy) as browser:
        page = browser.page
        await browser.open("trajectories")
        await browser.see('[data-id="run-4-5c"]')
        await browser.picture("trajectories")
        await page.keyboard.press("/")
        await page.keyboard.type("lighthouses")
        await page.locator('[data-id="run-4-4a"]').wait_for(state="detached")
        await page.keyboard.press("Escape")
        await page.get_by_text("success", exact=True).click()
        await page.wait_for_url("**outcome=success*")
        await page.go_back()
        await page.go_forward()
        await browser.see('input[name="outcome"][value="success"]:checked')
        await browser.open("trajectories?q=run-3-2b")
        await browser.see('[data-id="run-3-2b"]')
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await page.keyboard.press("k")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/ui/t/run-3-2b")
        await browser.see(".timeline rect")
        await page.locator("details.evidence summary").nth(1).click()
        await browser.picture("trajectory")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/ui/c/*")
        await browser.see(".strip[data-tokens]")
        await page.locator(".strip-view canvas").first.scroll_into_view_if_needed()
        await page.keyboard.press("s")
        await page.keyboard.press("End")
        said = await page.locator(".strip-token").inner_text()
        for figure in (
            "token",
            "log π at sampling",
            "log π at training",
            "ratio 0.99",
            "position",
            "trained",
            "advantage",
        ):
            assert figure in said
        box = await page.locator(".strip-view canvas").bounding_box()
        await page.mouse.click(box["x"] + 20, box["y"] + box["height"] - 16)
        assert "token 1 of" in " ".join((await page.locator(".strip-token").inner_text()).split())
        await page.mouse.move(box["x"] + 60, box["y"] + box["height"] - 16)
        assert "ratio 0.990" in await (await browser.see(".tip:not([hidden])")).inner_text()
        for mode in ("version", "mask", "training", "ratio", "advantage", "logprob"):
            await page.locator(f'.modes button[data-mode="{mode}"]').click()
        await browser.picture("call")
        await page.get_by_text("Copy as curl").click()
        await page.get_by_text("Copied.").wait_for()
        assert (await page.evaluate("navigator.clipboard.readText()")).startswith("curl ")
        await page.keyboard.press("]")
        await page.keyboard.press("u")
        await page.wait_for_url("**/ui/t/run-3-2b")


async def test_a_reward_is_given_and_a_session_is_judged(story: Told, start_proxy: ProxyFactory) -> None:
    async with browsing(story, start_proxy) as browser:
        page = browser.page
        await browser.open("t/run-4-5d")
        await page.keyboard.press("w")
        await page.keyboard.type("0.75")
        await page.get_by_label("Note").fill("nearly")
        await page.keyboard.press("Enter")
        await page.get_by_text("Given.").wait_for()
        assert await page.locator(".title .reward").inner_text() == "0.75"
        assert browser.proxy.store.trajectory("run-4-5d").reward == 0.75
        await page.locator("button[data-judge]").last.click()
        assert "session #" in await page.locator("#judged").inner_text()
        await page.locator('button[data-reward="1"]').click()
        await page.get_by_text("Give it").click()
        await page.locator(".history li").nth(1).wait_for()
        assert browser.proxy.store.trajectory("run-4-5d").reward == 0.75
        await page.locator("#reward").fill("much")
        await page.get_by_text("Give it").click()
        await page.get_by_text("is no number").wait_for()


async def test_a_training_job_is_asked_for(story: Told, start_proxy: ProxyFactory) -> None:
    async with browsing(story, start_proxy) as browser:
        store = browser.proxy.store
        store.take_lease(schedules.LEASE, "a process", 600.0)
        await browser.open("training")
        await browser.page.get_by_text("Run now").click()
        await browser.page.get_by_text("A run is asked for").wait_for()
        with store.database.reading() as connection:
            assert schedules.read(connection).asked_at is not None


async def test_a_live_trajectory_is_watched_as_it_grows(story: Told, start_proxy: ProxyFactory) -> None:
    async with browsing(story, start_proxy) as browser:
        page, proxy = browser.page, browser.proxy
        await browser.open("trajectories")
        await browser.see("#live:not([hidden])")
        await called(proxy, "run-now", "Begin")
        await browser.see('#rows li:first-child[data-id="run-now"].fresh')
        await browser.open("t/run-now")
        assert await page.locator(".calls [data-row]").count() == 1
        await browser.see("#live:not([hidden])")
        await page.locator("details.evidence summary").first.click()
        await called(proxy, "run-now", "Begin", "Go on")
        await page.locator(".calls [data-row]").nth(1).wait_for()
        assert await page.locator("details.evidence[open]").count() == 1
        await asyncio.to_thread(proxy.store.reward, "run-now", 1.0, "test")
        await browser.see(".title .reward.good")


EVERY_PAGE = {
    "trajectories": ("trajectories", '[data-id="run-4-5c"]'),
    "trajectory": ("t/run-3-2b", ".timeline rect"),
    "hostile": ("t/run-hostile", ".timeline rect"),
    "call": ("c/c3-run-3-2b", ".strip[data-tokens]"),
    "hostile-call": ("c/c1-run-hostile", ".strip[data-tokens]"),
    "groups": ("groups", ".beads"),
    "training": ("training", "#plots[data-drawn]"),
    "health": ("health", ".findings"),
}
"""Name -> (path, what is there once the page is)."""


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "dark"), (NARROW, "light")])
async def test_every_page_fits_its_window_and_is_without_a_fault(
    story: Told, start_proxy: ProxyFactory, size: dict[str, int], scheme: str
) -> None:
    async with browsing(story, start_proxy, size, scheme) as browser:
        page = browser.page
        suffix = "-narrow" if size is NARROW else "-dark"
        for name, (path, there) in EVERY_PAGE.items():
            await browser.open(path)
            await browser.see(there)
            await browser.picture(name + suffix)
        await page.keyboard.press("g")
        await page.keyboard.press("g")
        await page.wait_for_url("**/ui/groups")
        await page.locator(".rows a").nth(1).click()
        await page.get_by_text("v1", exact=True).click()
        await browser.see(".compare")
        await page.locator(".compare details summary").first.click()
        await browser.picture(f"group{suffix}")
        await page.keyboard.press("d")
        assert await page.evaluate("document.documentElement.dataset.theme") == (
            "light" if scheme == "dark" else "dark"
        )
        await page.keyboard.press("?")
        await browser.see("#keys[open]")
        await browser.picture(f"keys{suffix}")


async def test_a_long_trajectory_is_read_to_its_end(story: Told, start_proxy: ProxyFactory) -> None:
    async with browsing(story, start_proxy) as browser:
        await browser.open("t/run-long")
        await browser.see(".calls [data-row]")
        for lines in (200, 300):
            await browser.page.mouse.wheel(0, 100_000)
            await browser.page.locator(".calls [data-row]").nth(lines - 1).wait_for()
        await browser.open("c/c300-run-long")
        await browser.see(".strip[data-tokens]")
        assert await browser.page.locator(".message").count() == 3
        await browser.page.get_by_text("earlier messages").click()
        await browser.page.locator(".message").nth(20).wait_for()


async def test_the_key_opens_the_dashboard(story: Told, start_proxy: ProxyFactory) -> None:
    async with browsing(story, start_proxy, api_keys=[KEY]) as browser:
        page = browser.page
        await browser.open("t/run-3-2b")
        await page.wait_for_url("**/ui/login?next=*")
        await browser.picture("login")
        await page.get_by_label("Key").fill(KEY)
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/ui/t/run-3-2b")
        await browser.see("#live:not([hidden])")
        await page.keyboard.press("w")
        await page.keyboard.type("1")
        await page.keyboard.press("Enter")
        await page.get_by_text("Given.").wait_for()
