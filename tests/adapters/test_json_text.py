"""What is read and written anew is what it was."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.wires.json_text import dumps, loads

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("0123e+-é"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
)


@given(VALUES | st.integers(-(2**300), 2**300))
def test_any_value_is_read_as_python_reads_it_and_written_so(value: Any) -> None:
    text = json.dumps(value).encode()
    read = loads(text)
    assert json.dumps(read) == json.dumps(json.loads(text))
    assert json.loads(dumps(read)) == json.loads(text)


@pytest.mark.parametrize("text", [b"1e400", b"[NaN]", b"9" * 400, b"1234567890123456789012345,", b""])
def test_what_is_no_number_of_json_is_refused(text: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        loads(text)


def test_what_is_nested_more_deeply_than_python_reads_is_read_all_the_same() -> None:
    assert loads(b"[" * 1000 + b"12345678901234567890123" + b"]" * 1000)[0][0][0]
