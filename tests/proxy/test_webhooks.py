"""Rewards by webhook: what is signed is taken, and nothing else, whoever sends it."""

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from mosaic.errors import RequestError
from mosaic.settings import Settings
from proxy import webhooks
from proxy.trace import captured
from tests.conftest import Proxy, ProxyFactory
from tests.engine import Turn
from tests.proxy.traces import conversation

SECRET = "a-secret-of-some-length"
SIGNED = Settings(webhook_secret=SecretStr(SECRET))
GIVEN = {"trajectory_id": "run-1", "reward": 0.5, "source": "ci"}


def headers(body: bytes, secret: str = SECRET, at: float | None = None) -> dict[str, str]:
    stamp = str(int(time.time() if at is None else at))
    return {
        "content-type": "application/json",
        "x-mosaic-timestamp": stamp,
        "x-mosaic-signature": webhooks.signature(secret, stamp, body),
    }


async def sent(proxy: Proxy, body: bytes, given: dict[str, str]) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{proxy.url}/api/webhooks/reward", data=body, headers=given) as response,
    ):
        return response.status, await response.json()


@pytest.mark.parametrize("keys", [[], ["control-1"]])
async def test_a_signed_reward_is_taken_and_an_unsigned_one_is_not(start_proxy: ProxyFactory, keys: list[str]) -> None:
    async with start_proxy(lambda _: Turn("Hi"), webhook_secret=SECRET, api_keys=keys) as proxy:
        proxy.store.record([captured(trace) for trace in conversation(1)])
        body = json.dumps(GIVEN).encode()
        for bad in (
            {"content-type": "application/json"},
            {"content-type": "application/json", "authorization": "Bearer control-1"},
            headers(body, "another-secret-of-length"),
            headers(body, at=time.time() - 2 * webhooks.GOOD_S),
            headers(b"other"),
        ):
            status, said = await sent(proxy, body, bad)
            assert (status, set(said["error"])) == (401, {"message", "type"})
        assert proxy.store.trajectory("run-1").reward is None
        assert (await sent(proxy, body, headers(body)))[0] == 200
        assert proxy.store.trajectory("run-1").reward == 0.5
        unknown = json.dumps({**GIVEN, "trajectory_id": "nothing"}).encode()
        assert (await sent(proxy, unknown, headers(unknown)))[0] == 404
        wrong = json.dumps({**GIVEN, "more": 1}).encode()
        assert (await sent(proxy, wrong, headers(wrong)))[0] == 422


async def test_without_a_secret_no_signature_is_good_and_no_key_helps(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        body = json.dumps(GIVEN).encode()
        for secret in ("", "None", SECRET):
            assert (await sent(proxy, body, headers(body, secret)))[0] == 401


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_a_signature_is_good_for_its_body_alone(body: bytes, other: bytes) -> None:
    webhooks.check(SIGNED, headers(body), body)
    if body != other:
        with pytest.raises(RequestError, match="missing or wrong"):
            webhooks.check(SIGNED, headers(body), other)


@pytest.mark.parametrize("stamp", ["", "x", "-1", "1e9", "9" * 30, "١"])
def test_an_odd_time_is_refused_though_it_is_signed(stamp: str) -> None:
    signed = {"x-mosaic-timestamp": stamp, "x-mosaic-signature": webhooks.signature(SECRET, stamp, b"")}
    with pytest.raises(RequestError, match="too old"):
        webhooks.check(SIGNED, signed, b"")


def test_the_docs_sign_as_the_proxy_wants_it() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "dashboard.md").read_text()
    script = re.search(r"```bash\n(body=.*?)curl", docs, re.DOTALL)
    assert script
    shown = subprocess.run(
        ["bash", "-c", script[1] + 'printf "%s\\n%s\\n%s" "$body" "$now" "$mac"'],
        env={**os.environ, "MOSAIC_WEBHOOK_SECRET": SECRET},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    body, stamp, mac = shown.split("\n")
    webhooks.check(SIGNED, {"x-mosaic-timestamp": stamp, "x-mosaic-signature": f"sha256={mac}"}, body.encode())
