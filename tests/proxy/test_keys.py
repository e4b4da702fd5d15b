"""Who may."""

import asyncio
import json
from pathlib import Path

import pytest
from pydantic import SecretStr

from mosaic.keys import trajectory_key
from tests.conftest import ProxyFactory, until
from tests.engine import Turn
from tests.engine.raw import End, whole
from tests.proxy.faults import Json, before, contents, in_turn, post, replying, request_bytes, rows, talk, wire_whole

CONTROL = ["/api/trajectories", "/api/trajectories/x/links", "/api/health", "/metrics"]
TRICKS = [
    "/api/trajectories", "/api/trajectories/", "/api//trajectories", "//api/trajectories", "/./api/trajectories",
    "/api/../api/trajectories", "/v1/../api/trajectories", "/t/x/../../api/trajectories", "/api%2ftrajectories",
    "/%61pi/trajectories", "/API/trajectories", "/api/trajectories?key=control", "/api/trajectories%00",
    "/api/trajectories;a", "/api/trajectories%20", "/api/health/..;/health", "/metrics/", "/metrics/.", "//metrics",
    "/ui/static/../trajectories", "/ui/static/%2e%2e/trajectories",
    "/openapi.json", "/docs", "/redoc", "/docs/oauth2-redirect", "/v1/%2e%2e/metrics", "/v1/..%2fmetrics",
    "http://127.0.0.1/api/trajectories", "http://localhost/metrics",
]  # fmt: skip
HOSTS = ["127.0.0.1", "localhost", "localhost:8080", "evil.example", "", "[::1]", "a@b"]


async def test_no_control_route_answers_without_its_key_whatever_the_path_the_method_or_the_host(
    start_proxy: ProxyFactory,
) -> None:
    async with before(start_proxy, replying(whole(b"{}")), api_keys=["control-1"], agent_keys=["agent-1"]) as (
        proxy,
        _,
    ):
        for path in TRICKS:
            for method in ("GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH", "TRACE"):
                raw = await talk(proxy, request_bytes(path, b"", "authorization: Bearer agent-1", method=method))
                status = int(raw.split(b" ", 2)[1])
                assert status in (307, 400, 401, 404, 405), (method, path, raw)
        for host in HOSTS:
            raw = await talk(proxy, request_bytes("/api/trajectories", b"", f"host: {host}", method="GET"))
            assert raw.split(b" ", 2)[1] in (b"401", b"400"), raw


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/trajectories?limit=x", b""),
        ("POST", "/api/trajectories/x/reward", b"{}"),
        ("POST", "/api/trajectories/x/reward", b"{not json"),
        ("POST", "/api/trajectories/x/end", b'{"state": "odd"}'),
        ("GET", "/api/nothing", b""),
        ("HEAD", "/api/health", b""),
        ("GET", "/api/trajectories/", b""),
    ],
)
async def test_a_request_without_a_key_learns_nothing_but_that(
    start_proxy: ProxyFactory, method: str, path: str, body: bytes
) -> None:
    async with before(start_proxy, replying(whole(b"{}")), api_keys=["control-1"]) as (proxy, _):
        raw = await talk(proxy, request_bytes(path, body, "host: evil.example", method=method))
        assert raw.startswith(b"HTTP/1.1 401"), raw
        assert b"evil.example" not in raw


@pytest.mark.parametrize("path", CONTROL)
async def test_an_agents_key_opens_no_control_route_when_it_is_the_only_kind_that_is_set(
    start_proxy: ProxyFactory, path: str
) -> None:
    async with before(start_proxy, replying(whole(b"{}")), agent_keys=["agent-1"]) as (proxy, _):
        raw = await talk(proxy, request_bytes(path, b"", "authorization: Bearer agent-1", method="GET"))
        assert raw.startswith(b"HTTP/1.1 401"), raw


async def test_a_trajectorys_key_makes_no_call_of_another_trajectory(start_proxy: ProxyFactory) -> None:
    reply = replying(whole(wire_whole("chat", Turn("Hi"))))
    async with before(start_proxy, reply, trajectory_secret="x" * 32) as (proxy, _):
        named = trajectory_key(proxy.settings, "run-7")
        await post(proxy, "chat/completions", headers={"authorization": f"Bearer {named}"})
        assert "run-1" not in [t.trajectory_id for t in proxy.store.trajectories()]


@pytest.mark.parametrize("secret", [None, "x" * 32])
@pytest.mark.parametrize("others", [{}, {"agent_keys": ["agent-1"]}])
async def test_a_trajectorys_key_that_cannot_be_checked_is_refused_and_nothing_is_recorded(
    start_proxy: ProxyFactory, secret: str | None, others: Json
) -> None:
    reply = replying(whole(wire_whole("chat", Turn("Hi"))))
    async with before(start_proxy, reply, trajectory_secret=secret, **others) as (proxy, _):
        elsewhere = trajectory_key(
            proxy.settings.model_copy(update={"trajectory_secret": SecretStr("y" * 32)}), "run-7"
        )
        status, got = await post(proxy, "chat/completions", headers={"authorization": f"Bearer {elsewhere}"})
        assert (status, b"trajectory_secret" in got) == (401, True)
        assert proxy.store.trajectories() == []


async def test_a_key_that_is_not_ascii_is_a_401(start_proxy: ProxyFactory) -> None:
    async with before(start_proxy, replying(whole(b"{}")), trajectory_secret="x" * 32) as (proxy, _):
        raw = request_bytes("/v1/chat/completions", b"{}", "authorization: Bearer mosaic-t-run-7.\u00e9")
        assert (await talk(proxy, raw)).startswith(b"HTTP/1.1 401")


async def test_credentials_in_the_engines_address_are_shown_to_nobody(start_proxy: ProxyFactory) -> None:
    address = "http://user:secret-secret@127.0.0.1:9/v1"
    async with start_proxy(lambda _: Turn(), upstream=address, engine_wait_s=0.0) as proxy:
        status, got = await post(proxy, "chat/completions")
        assert status == 503
        assert b"secret-secret" not in got
        assert "secret-secret" not in json.dumps(rows(proxy), default=str)


async def test_no_key_is_found_in_a_log_the_database_the_spool_or_the_journal(
    start_proxy: ProxyFactory, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    caplog.set_level("DEBUG")
    keys: Json = {
        "api_keys": ["control-secret-1"],
        "agent_keys": ["agent-secret-2"],
        "upstream_api_key": "engine-secret-3",
    }
    good = [whole(wire_whole("chat", Turn("Hi")))]
    reply = in_turn(good, [End.RESET], [whole(b'{"error":"no"}', status="500 X")], [End.HANG])
    keys["trajectory_secret"] = "sign-secret-4" * 2
    seen: list[bytes] = []
    async with before(start_proxy, reply, **keys) as (proxy, engine):
        named = trajectory_key(proxy.settings, "run-1")
        carried = ["agent-secret-2", "control-secret-1", named, "agent-secret-2"]
        for key in carried:
            headers = {"authorization": f"Bearer {key}", "x-api-key": key, "x-session-token": key, "cookie": key}
            asking = asyncio.ensure_future(post(proxy, "chat/completions", headers=headers))
            if len(engine.requests) == 3:
                await until(lambda: len(engine.requests) == 4)
                seen += contents(tmp_path)
                asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await post(proxy, "chat/completions", headers={"authorization": "Bearer wrong-secret-5"})
        await until(lambda: len(rows(proxy)) == 4)
        seen += contents(tmp_path)
    said = "".join(capfd.readouterr()) + caplog.text
    for secret in ("control-secret-1", "agent-secret-2", "engine-secret-3", "sign-secret-4", "wrong-secret-5", named):
        assert not any(secret.encode() in part for part in seen), secret
        assert secret not in said, secret


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/trajectories/x/end", "/api/schedule/run"])
async def test_where_no_key_is_needed_a_page_of_another_site_makes_a_browser_write_nothing(
    start_proxy: ProxyFactory, path: str
) -> None:
    named = "host: localhost"
    foreign = named, "sec-fetch-site: cross-site", "origin: http://evil.example", "content-type: text/plain"
    async with before(start_proxy, replying(whole(b"{}"))) as (proxy, _):
        raw = await talk(proxy, request_bytes(path, b"{}", *foreign))
        assert raw.startswith(b"HTTP/1.1 403"), raw
        assert b"another site" in raw
        for here in (["sec-fetch-site: same-origin"], ["sec-fetch-site: cross-site", "origin: vscode-webview://x"]):
            raw = await talk(proxy, request_bytes(path, b"{}", named, *here))
            assert not raw.startswith(b"HTTP/1.1 403"), raw
