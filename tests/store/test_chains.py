"""A message's digest covers all before it, however often and in which company it was seen before."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mosaic.store.chains import Chains
from mosaic.store.codec import digest, dump

TEXTS = st.sampled_from(["", "a", "b", "1", "\ud800 alone"])
ODD = st.sampled_from([None, 1, 1.0, True, ["a"], {"a": "b"}])
MESSAGES = st.dictionaries(st.sampled_from(["role", "content", "name"]), TEXTS | ODD, max_size=3)


@given(st.lists(st.lists(MESSAGES, max_size=5), max_size=6))
def test_every_chain_is_named_by_what_it_says(conversations: list[list[dict[str, Any]]]) -> None:
    chains = Chains()
    for messages in conversations:
        expected = None
        for message in messages:
            expected = digest(dump(message), expected)
        assert chains.add(messages, None, 0) == (expected, len(messages))
