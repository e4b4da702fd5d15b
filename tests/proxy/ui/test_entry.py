"""Who may look at the dashboard, and what other sites cannot make a browser do."""

import time

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from mosaic.errors import RequestError
from mosaic.settings import Settings
from proxy.ui import entry
from tests.proxy.ui.conftest import KEY, Visitor

KEYED = Settings(api_keys=[SecretStr("first"), SecretStr("second")])
OPEN = Settings()


def test_a_cookie_is_good_for_the_key_that_signed_it_and_for_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cookie = entry.new_cookie(KEYED, "second")
    asked = {"cookie": f"{entry.COOKIE}={cookie}"}
    entry.check(KEYED, "GET", "/ui/trajectories", asked)
    other = Settings(api_keys=[SecretStr("third")])
    with pytest.raises(RequestError, match="needs a key"):
        entry.check(other, "GET", "/ui/trajectories", asked)
    later = time.time() + entry.LIFE_S + 1
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(RequestError, match="needs a key"):
        entry.check(KEYED, "GET", "/ui/trajectories", asked)
    assert "second" not in cookie


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters='";,\\'), max_size=80))
def test_no_made_up_cookie_opens_anything(cookie: str) -> None:
    with pytest.raises(RequestError) as refused:
        entry.check(KEYED, "GET", "/ui/trajectories", {"cookie": f"{entry.COOKIE}={cookie}"})
    assert refused.value.status == 401


@pytest.mark.parametrize("settings", [KEYED, OPEN])
def test_a_write_needs_the_token_of_the_cookie(settings: Settings) -> None:
    cookie = entry.new_cookie(settings, "first" if settings is KEYED else None)
    asked = {"cookie": f"{entry.COOKIE}={cookie}"}
    path = "/ui/t/x/reward"
    entry.check(settings, "POST", path, {**asked, "x-mosaic-csrf": entry.csrf(cookie)})
    for wrong in ({}, {"x-mosaic-csrf": ""}, {"x-mosaic-csrf": entry.csrf("other")}):
        with pytest.raises(RequestError) as refused:
            entry.check(settings, "POST", path, {**asked, **wrong})
        assert refused.value.status == 403
    with pytest.raises(RequestError):
        entry.check(
            settings, "POST", path, {**asked, "x-mosaic-csrf": entry.csrf(cookie), "sec-fetch-site": "cross-site"}
        )


@pytest.mark.parametrize(
    ("wanted", "goes"),
    [
        ("/ui/t/run-1?x=y", "/ui/t/run-1?x=y"),
        (None, "/ui/trajectories"),
        ("https://evil.example/", "/ui/trajectories"),
        ("//evil.example/ui/", "/ui/trajectories"),
        ("/ui/..//evil.example", "/ui/trajectories"),
        ("/ui/\\evil.example", "/ui/trajectories"),
        ("/ui/a\r\nset-cookie: x", "/ui/trajectories"),
        ("javascript:alert(1)", "/ui/trajectories"),
    ],
)
def test_entering_the_key_leads_to_a_page_of_ours(wanted: str | None, goes: str) -> None:
    assert entry.place_after(wanted) == goes


def test_without_a_key_a_browser_is_led_to_the_form_and_back(guarded: TestClient) -> None:
    asked = guarded.get("/ui/t/run-1-1a", follow_redirects=False)
    assert (asked.status_code, asked.headers["location"]) == (303, "/ui/login?next=%2Fui%2Ft%2Frun-1-1a")
    assert b"run-1-1a" not in asked.content
    form = guarded.get(asked.headers["location"])
    assert form.status_code == 200
    wrong = guarded.post("/ui/login", data={"key": "wrong", "next": "/ui/t/run-1-1a"})
    assert wrong.status_code == 401
    assert "set-cookie" not in wrong.headers
    entered = guarded.post("/ui/login", data={"key": KEY, "next": "/ui/t/run-1-1a"}, follow_redirects=False)
    assert (entered.status_code, entered.headers["location"]) == (303, "/ui/t/run-1-1a")
    given = entered.headers["set-cookie"]
    assert all(word in given for word in ("HttpOnly", "SameSite=Strict", "Path=/ui"))
    assert guarded.get("/ui/t/run-1-1a").status_code == 200


@pytest.mark.parametrize(
    "path",
    ["", "/", "/trajectories", "/rows?id=run-1-1a", "/events", "/t/run-1-1a", "/c/x", "/c/x/tokens.json",
     "/c/x/curl.txt", "/groups", "/group?task=x", "/training", "/training.json", "/health", "/health/findings",
     "/health/certificate", "/static/../pages.py", "/static/vendor/../../entry.py", "/loginx", "/static%2f..%2fx"],
)  # fmt: skip
def test_no_page_answers_without_its_key(guarded: TestClient, path: str) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": "mosaic_ui=x"}, {"hx-request": "true"}):
        answer = guarded.get(f"/ui{path}", headers=headers, follow_redirects=False)
        assert answer.status_code in (303, 404) or answer.headers.get("hx-redirect"), answer.text
        assert "Reward" not in answer.text


def test_the_apis_key_opens_the_pages_too_and_needs_no_token(guarded: TestClient) -> None:
    key = {"authorization": f"Bearer {KEY}"}
    assert guarded.get("/ui/trajectories", headers=key).status_code == 200
    given = guarded.post("/ui/t/run-1-1a/reward", data={"reward": "1"}, headers=key)
    assert given.status_code == 200


def test_every_answer_carries_the_policy(visitor: Visitor) -> None:
    for path in ("trajectories", "t/run-1-1a", "t/nothing", "login", "static/app.css", "c/nothing/tokens.json"):
        headers = visitor.client.get(f"/ui/{path}").headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "[2001:db8::1]", "10.0.0.1"]
)
def test_without_keys_a_name_that_is_not_this_machines_reads_nothing(visitor: Visitor, host: str) -> None:
    for path in ("/ui/trajectories", "/api/trajectories", "/api/health", "/metrics"):
        answer = visitor.client.get(path, headers={"host": host})
        assert answer.status_code == 403, path
        assert "run-" not in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:9", "localhost:8080", "[::1]:8080", "a.localhost"])
def test_this_machines_names_are_answered(visitor: Visitor, host: str) -> None:
    assert visitor.client.get("/ui/trajectories", headers={"host": host}).status_code == 200
