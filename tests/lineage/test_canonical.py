"""Content of any size and depth is read, and read once."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic.lineage import canonical


@pytest.mark.timeout(20)
def test_a_megabyte_of_backslashes_is_read_once() -> None:
    assert canonical.words("a " + "\\" * 1_000_000 + " b") == ["a", "b"]
    assert canonical.words(r"one\n\\ntwo\three") == ["one", "two", "hree"]


@pytest.mark.timeout(20)
def test_many_messages_of_one_speaker_are_joined_once() -> None:
    said = [{"role": "user", "content": "x" * 1000}] * 20_000
    [item] = canonical.items([*said, {"role": "system", "content": "s"}])
    assert len(item.text) == 20_000 * 1001 - 1


@pytest.mark.parametrize("depth", [200, 260, 900])
def test_a_content_part_is_read_however_deep_it_is(depth: int) -> None:
    inner: object = "end"
    for _ in range(depth):
        inner = [inner]
    [item] = canonical.items([{"role": "user", "content": [{"type": "x", "value": inner}]}])
    assert item.text


@given(st.text(st.characters(codec="ascii")) | st.text())
def test_the_words_of_any_text_are_its_runs_of_letters_digits_and_underscores(text: str) -> None:
    text = text.replace("\\", "/")  # what follows one may be an escape
    assert canonical.words(text) == re.findall(r"\w+", text)
