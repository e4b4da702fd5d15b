"""The control API against its own schema, by schemathesis: what is allowed, what is not, and every answer as described.

Its pytest plugin does not run under this pytest (`pyproject.toml` leaves it out); the operations are drawn here.
"""

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation

from mosaic.settings import Settings
from mosaic.store import Store
from proxy.app import create_app
from proxy.trace import captured
from tests.proxy.traces import conversation

Operation = APIOperation[Any, Any, Any, Any]
KEY = {"authorization": "Bearer control-1"}
"""Given: without any key set, only who names this machine as host is answered, and schemathesis does not."""
FUZZ = settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> list[Operation]:
    """Everything that the schema offers, on a store with one trajectory."""
    folder: Path = tmp_path_factory.mktemp("control")
    given_settings = Settings(
        database=f"sqlite:///{folder}/mosaic.db",
        spool=folder / "spool",
        writer_process=False,
        api_keys=[SecretStr("control-1")],
    )
    store = Store(given_settings.database)
    store.record([captured(trace) for trace in conversation(2)])
    store.close()
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(given_settings), headers=KEY)
    return [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]


@FUZZ
@given(data=st.data())
def test_what_the_schema_allows_is_answered_as_it_says(operations: list[Operation], data: st.DataObject) -> None:
    operation = data.draw(st.sampled_from(operations))
    case = data.draw(operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE))
    case.validate_response(case.call(headers=KEY))


@FUZZ
@given(data=st.data())
def test_what_the_schema_forbids_is_refused_as_it_says(operations: list[Operation], data: st.DataObject) -> None:
    refusable = [one for one in operations if len(one.body) or len(one.query)]
    assert len(refusable) == 9
    operation = data.draw(st.sampled_from(refusable))
    case = data.draw(operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))
    case.validate_response(case.call(headers=KEY))
