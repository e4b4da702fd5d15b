"""Replays: two arms that differ in one session, and a server that answers as recorded as long as it can."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from benchmarks.credit.replaying import ReplayServer, Script, digest, script
from mosaic.credit.replay import removals
from mosaic.records import Message
from tests.credit.test_information_gain import chain, delegation


def test_the_arms_differ_only_in_what_the_session_put_out() -> None:
    given = delegation()
    removal = next(r for r in removals(given) if r.session_id == "x")
    arms = [script(given, removal, with_session) for with_session in (True, False)]
    calls = {c.call_id: c for s in given.sessions for c in s.calls}
    replies = [[m["content"] for some in arm.answers.values() for m in some] for arm in arms]
    assert sorted(replies[0]) == sorted(
        str(calls[c].samples[0].message["content"]) for c in ("lead1", "x1", "x2", "y1")
    )
    assert sorted(replies[1]) == sorted(["ok", "it  is blue", "no result"])


def test_a_summary_is_replaced_and_what_came_after_it_is_not_in_the_script() -> None:
    given = chain()
    [removal] = removals(given)
    kept, left_out = (sum(map(len, script(given, removal, arm).answers.values())) for arm in (True, False))
    assert kept == left_out == 3
    silent = replace(
        given, sessions=tuple(replace(s, calls=tuple(replace(c, samples=()) for c in s.calls)) for s in given.sessions)
    )
    assert script(silent, removal, True).answers == {}


def test_requests_are_told_apart_by_what_they_say_and_not_by_their_ids() -> None:
    asked = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
    }
    again = {**asked, "tool_calls": [{"id": "2", "function": {"name": "f", "arguments": {}}}]}
    assert digest([asked]) == digest([again])
    named, renamed = ({"role": "user", "content": f"see /session_{c * 32}.md"} for c in "ab")
    assert digest([named]) == digest([renamed]) != digest([{"role": "user", "content": "see"}])
    parts = {"role": "user", "content": [{"type": "text", "text": "see"}]}
    assert digest([parts]) == digest([{"role": "user", "content": "see"}])


@pytest.fixture
def engine() -> Iterator[str]:
    """Answers every request with 418 and what it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200 if b"fine" in body else 418)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def ask(url: str, text: str) -> Any:
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/chat/completions", body), timeout=10) as reply:
        return json.load(reply)


def test_the_server_answers_from_the_script_once_and_then_asks_the_engine(engine: str) -> None:
    calls = [{"id": "i", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    reply: Message = {"role": "assistant", "content": None, "tool_calls": calls}
    told: dict[str, list[Message]] = {digest([{"role": "user", "content": "fine"}]): [reply], "never asked": [reply]}
    with ReplayServer(engine) as server:
        server.scripts["r"] = made = Script(told)
        choice = ask(server.url("r"), "fine")["choices"][0]
        assert (choice["message"]["tool_calls"], choice["finish_reason"]) == (calls, "tool_calls")
        assert ask(server.url("r"), "fine")["messages"] == [{"role": "user", "content": "fine"}]
        with pytest.raises(urllib.error.HTTPError, match="418"):
            ask(server.url("r"), "bad")
    assert (made.given, made.generated, made.unused) == (1, 2, 1)
