"""The control API against any input that nobody's schema allows: never a 5xx, errors in one shape."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mosaic.settings import Settings
from mosaic.store import Store
from proxy.app import create_app
from proxy.trace import captured
from tests.proxy.traces import conversation

Json = dict[str, Any]

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["", "\0", "\ud800", "x" * 5000, "1e999", "'; drop table rewards --", 10**400]),
)
ANY = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner))
FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder: Path = tmp_path_factory.mktemp("control")
    given_settings = Settings(
        database=f"sqlite:///{folder}/mosaic.db", spool=folder / "spool", writer_process=False, max_body_bytes=100_000
    )
    store = Store(given_settings.database)
    store.record([captured(trace) for trace in conversation(2)])
    store.close()
    with TestClient(create_app(given_settings), "http://127.0.0.1", raise_server_exceptions=False) as running:
        yield running


def schema(client: TestClient) -> Json:
    found: Json = client.get("/openapi.json").json()
    return found


def operations(client: TestClient) -> list[tuple[str, str, Json]]:
    """(method, path, description) of everything that the schema offers."""
    paths = schema(client)["paths"]
    return [(method, path, one) for path, methods in paths.items() for method, one in methods.items()]


def is_ours(response: Any) -> bool:
    """Whether an error has the one shape of all of them."""
    try:
        error = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        return False
    return set(error) == {"message", "type"} and all(isinstance(value, str) and value for value in error.values())


def test_the_schema_offers_what_is_tested_here(client: TestClient) -> None:
    assert {(method, path) for method, path, _ in operations(client)} >= {
        ("post", "/api/trajectories/{trajectory_id}/reward"),
        ("post", "/api/trajectories/{trajectory_id}/end"),
        ("get", "/api/trajectories"),
        ("get", "/api/trajectories/{trajectory_id}/links"),
        ("get", "/api/health"),
        ("get", "/metrics"),
    }


@pytest.mark.parametrize("reward", [1e300, -1_000_001, 10**400])
def test_a_reward_that_is_too_large_is_refused_in_our_words(client: TestClient, reward: float) -> None:
    body = json.dumps({"reward": reward}).encode()
    response = client.post("/api/trajectories/run-1/reward", content=body, headers={"content-type": "application/json"})
    assert 400 <= response.status_code < 500
    assert is_ours(response), response.text


@FUZZ
@given(data=st.data(), body=ANY, limit=SCALARS, raw=st.none() | st.binary(max_size=60))
@example(data=None, body={"reward": 10**400}, limit=1, raw=None)
@example(data=None, body={"reward": 1.0, "session_id": "\0"}, limit=2**70, raw=None)
@example(data=None, body={"reward": 1.0, "note": "\ud800"}, limit="\0", raw=b"[" * 60)
def test_nothing_that_anybody_sends_is_a_5xx(
    client: TestClient, data: st.DataObject | None, body: Any, limit: Any, raw: bytes | None
) -> None:
    asked = operations(client)
    some = asked if data is None else [data.draw(st.sampled_from(asked))]
    for method, path, _ in some:
        url = path.replace("{trajectory_id}", "run-1")
        content = raw if raw is not None else json.dumps(body).encode("utf-8", "replace")
        said = {"limit": str(limit).encode("utf-8", "replace")}
        response = client.request(method, url, params=said, content=content)
        assert response.status_code < 500, (method, url, content, response.text)
        assert response.status_code < 400 or is_ours(response), response.text


@pytest.mark.parametrize("depth", [500, 100_000])
def test_a_body_nested_too_deep_is_refused_in_our_words(client: TestClient, depth: int) -> None:
    body = b'{"reward": ' + b"[" * min(depth, 90_000 // 2) + b"]" * min(depth, 90_000 // 2) + b"}"
    response = client.post("/api/trajectories/run-1/reward", content=body, headers={"content-type": "application/json"})
    assert 400 <= response.status_code < 500
    assert is_ours(response), response.text


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/api/nothing"), ("PUT", "/api/trajectories"), ("POST", "/metrics"), ("GET", "/V1/models"), ("GET", "/x")],
)
def test_a_route_or_method_that_is_not_there_is_told_in_our_shape(client: TestClient, method: str, path: str) -> None:
    response = client.request(method, path)
    assert response.status_code in (404, 405)
    assert is_ours(response), response.text


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (
            "application/x-www-form-urlencoded",
            '{"reward": 1}',
            "Send it with the header content-type: application/json.",
        ),
        ("application/json", "{bad", "body: it is no JSON: Expecting property name"),
        ("application/json", '{"reward": 1, "rewrd": 1}', "body.rewrd: nothing of this name is known here."),
        ("application/json", "[1]", "body: Input should be"),
    ],
)
def test_a_body_that_cannot_be_read_is_told_with_what_is_wrong(
    client: TestClient, kind: str, body: str, said: str
) -> None:
    response = client.post("/api/trajectories/x/reward", content=body, headers={"content-type": kind})
    assert response.status_code == 422
    assert said in response.json()["error"]["message"]


def test_a_state_that_does_not_exist_is_refused_and_named(client: TestClient) -> None:
    response = client.get("/api/trajectories?state=bogus")
    assert (response.status_code, "'unscorable'" in response.json()["error"]["message"]) == (422, True)
    assert client.get("/api/trajectories?state=open").status_code == 200


def test_a_body_that_is_too_large_is_a_413(client: TestClient) -> None:
    response = client.post("/api/trajectories/run-1/reward", json={"reward": 1.0, "note": "x" * 200_000})
    assert response.status_code == 413
