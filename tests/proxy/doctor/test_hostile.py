"""Engines that mean no good, or are none: each is a finding about the engine, in bounded time, and nothing leaks."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pydantic import SecretStr

from mosaic.errors import EngineError
from proxy.doctor import Finding, Level, asking, subject
from proxy.doctor.asking import Server
from tests.proxy.doctor.looking import Administered, all_of, settings_of
from tests.sending import answer, sending

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n"


@dataclass
class Odd(Administered):
    """Answers calls with a body of one's choice."""

    body: bytes = b"{}"

    async def _chat(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(body=self.body, content_type="application/json")


def wrongs(seen: list[Finding]) -> set[str]:
    """The checks that say that the engine is wrong; none may say that it is broken itself."""
    assert not [one for one in seen if "the check broke" in one.what]
    return {one.check for one in seen if one.level is Level.WRONG}


LISTS = {
    "short error": (b"HTTP/1.1 500 No\r\ncontent-length: 100\r\nconnection: close\r\n\r\nx", "engine"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", "engine"),
    "deep": (answer(b"[" * 200_000), "model"),
    "deep error": (answer(b"[" * 200_000, "500 No"), "engine"),
    "a number": (answer(b'{"data": 5}'), "model"),
    "no names": (answer(b'{"data": [{"id": null, "root": 7}, {"id": [1]}]}'), "model"),
    "a page": (answer(b"<html>\xff</html>"), "model"),
}


@pytest.mark.parametrize("name", LISTS)
async def test_an_engine_that_answers_anything_to_all_questions(tmp_path: Path, name: str) -> None:
    sent, check = LISTS[name]
    async with sending(sent) as (url, _):
        assert check in wrongs(await all_of(settings_of(tmp_path, f"{url}/v1")))


REPLIES = [
    b"{}",
    b"[" * 200_000,
    b'{"choices": [null], "usage": 7}',
    b'{"choices": "abc", "prompt_token_ids": "xx"}',
    b'{"choices": [{"index": 0, "message": null}]}',
    b'{"choices": [{"index": 0, "message": {"tool_calls": 7}}]}',
    b'{"choices": [{"index": 0, "message": {"tool_calls": ["a"]}, "token_ids": [1]}], "prompt_token_ids": [1]}',
    b'{"choices": [{"index": 0, "message": {"content": ""}, "token_ids": [-1, 1e99]}], "prompt_token_ids": [1.5, "a"]}',
    b'{"choices": [{"index": 0, "message": {"content": ""}, "token_ids": [1]}], "prompt_token_ids": [99999999999]}',
]


@pytest.mark.parametrize("body", REPLIES, ids=range(len(REPLIES)))
async def test_replies_that_are_none(tmp_path: Path, body: bytes) -> None:
    async with Odd(body=body).serve() as url:
        assert "capture" in wrongs(await all_of(settings_of(tmp_path, url)))


@pytest.mark.parametrize("version", ["9" * 6000, "none", ["0", 40], {"a": 1}])
async def test_versions_that_are_none(tmp_path: Path, version: Any) -> None:
    async with Administered(version=version).serve() as url:
        seen = await all_of(settings_of(tmp_path, url))
    assert wrongs(seen) == set()
    assert all(len(one.what) < 300 for one in seen)


async def test_an_address_that_is_none_is_not_repeated() -> None:
    with pytest.raises(EngineError, match="does not answer: that is no address") as refused:
        await asyncio.to_thread(Server("http://me:secret@[::1").ask, "/")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("begins", [b"", HEAD, HEAD.replace(b"200 OK", b"500 No")], ids=["head", "body", "error"])
async def test_an_answer_that_never_ends_is_waited_for_no_longer_than_for_none(begins: bytes) -> None:
    async with sending(begins or b"HTTP/1.1 200 OK\r\n", drips=True) as (url, _):
        with pytest.raises(EngineError, match="does not answer: timed out"):
            await asyncio.to_thread(Server(url).ask, "/v1/models", None, 0.3)


async def test_the_last_question_ends_with_the_time_for_all_checks() -> None:
    async with sending(HEAD, drips=True) as (url, _):
        with pytest.raises(EngineError, match="timed out"):
            await asyncio.to_thread(Server(url, until=time.monotonic() + 0.3).ask, "/v1/models", None, 1000.0)


async def test_an_answer_that_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MAX_BYTES", 2**20)
    async with sending(answer(b" " * 2**20)) as (url, _):
        assert len((await asyncio.to_thread(Server(url).ask, "/")).body) == 2**20
    async with sending(answer(b" " * (2**20 + 1))) as (url, _):
        with pytest.raises(EngineError, match="larger than 1 MiB"):
            await asyncio.to_thread(Server(url).ask, "/")


async def test_after_the_time_for_all_checks_nothing_is_asked_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "MOST_SAMPLING_S", 0.0)
    async with sending() as (url, questions):
        seen = await all_of(settings_of(tmp_path, f"{url}/v1"))
    assert questions == []
    assert any("the time for all checks is over" in one.what for one in seen if one.check == "engine")


async def test_a_redirect_takes_the_key_nowhere(tmp_path: Path) -> None:
    async with sending(answer(b"{}")) as (other, taken):
        there = other.replace("http://", "location: http://me:secret@").encode()
        async with sending(answer(b"", "302 Found", there + b"/v1/models\r\n")) as (url, asked):
            seen = await all_of(settings_of(tmp_path, f"{url}/v1", upstream_api_key=SecretStr("the key")))
    assert b"the key" in asked[0]
    assert taken == []
    (said,) = [one.what for one in seen if one.check == "engine"]
    assert f"answers 302: it redirects to {other}/v1/models" in said


@pytest.mark.parametrize("sound", [True, False])
async def test_a_password_in_an_address_is_used_and_not_shown(tmp_path: Path, sound: bool) -> None:
    body = answer(b'{"data": [{"id": "policy"}], "is_paused": true}') if sound else answer(b"no", "500 No")
    async with sending(body) as (url, asked):
        secret = url.replace("//", "//user:pass-word@")
        seen = await all_of(settings_of(tmp_path, f"{secret}/v1", replicas=[f"{secret}/v1"]))
    assert b"authorization: basic " in asked[0].lower()
    assert all("pass-word" not in one.what + one.why + one.next_step for one in seen)
    assert (next(one.level for one in seen if one.check == "engine") is Level.OK) == sound


async def test_what_an_engine_says_cannot_steer_the_terminal(tmp_path: Path) -> None:
    steering = "\x1b[2J\x9b31m\u202e\n ok  engine"
    engine = Administered(models=[{"id": f"policy{steering}"}], version=steering, tools_error=steering)
    async with engine.serve() as url:
        seen = await all_of(settings_of(tmp_path, url, policy_model="policy"))
    texts = [text for one in seen for text in (one.what, one.why, one.next_step)]
    assert any("?[2J?31m? ok engine" in text for text in texts)
    assert all(text.isprintable() for text in texts)
