"""Members of a JSON object, set in its bytes."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.wires.members import with_members

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
NAMES = TEXT | st.sampled_from(["model", "logprobs", "mo\\del", '"model"', "stream_options"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
SPACED = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])


@given(body=st.dictionaries(NAMES, VALUES), members=st.dictionaries(NAMES, VALUES), spaced=SPACED, ascii=st.booleans())
def test_the_members_are_set_and_all_others_keep_their_bytes(
    body: dict[str, Any], members: dict[str, Any], spaced: tuple[str, str], ascii: bool
) -> None:
    members = orjson.loads(json.dumps(members))
    raw = f" {json.dumps(body, separators=spaced, ensure_ascii=ascii)}\r\n".encode()
    sent = json.loads(with_members(raw, body, members))
    assert sent == {**body, **members}
    assert list(sent) == list({**body, **members})
    for name, value in body.items():
        if name not in members:
            kept = json.dumps(value, separators=spaced, ensure_ascii=ascii).encode()
            assert kept in with_members(raw, body, members)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"model":"a","x":1e400}', b'{"model":"b","x":1e400}'),
        (b'{"x":1.10,"x":2 , "model" : "a" }', b'{"x":1.10,"x":2 , "model" : "b" }'),
        (b'{"model":"a","model":{"model":[1]},"m":1e999}', b'{"model":"b","model":"b","m":1e999}'),
        (b'{"seed":18446744073709551617,"model":"a"}', b'{"seed":18446744073709551617,"model":"b"}'),
        (b'{"mod\\u0065l":"a","tools":[{"model":1}]}', b'{"mod\\u0065l":"b","tools":[{"model":1}]}'),
        (b'{"tools":[{"model":"\\"}"}],"model":"a"}\n', b'{"tools":[{"model":"\\"}"}],"model":"b"}\n'),
    ],
)
def test_what_a_parser_would_change_stays(raw: bytes, expected: bytes) -> None:
    assert with_members(raw, {"model": "a"}, {"model": "b"}) == expected


def test_an_empty_object_gets_its_first_member() -> None:
    assert with_members(b"{ }", {}, {"model": "b"}) == b'{ "model":"b"}'
