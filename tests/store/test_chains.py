"""A message's digest covers all before it, however often and in which company it was seen before."""

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from mosaic.store.chains import Chains
from mosaic.store.codec import digest, dump
from mosaic.store.database import Database
from mosaic.store.models import MessageRow

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


def test_every_prefix_is_stored_once_by_whoever_knows_nothing_of_it(database_url: str) -> None:
    # More texts in the first place than one statement asks for, and long histories that are there.
    texts = [[str(first), *"ab" * 20][:length] for first in range(700) for length in (2, 1)]
    texts += [list("0" + "ab" * 20)[:length] for length in (3, 17, 40, 41, 5)]
    conversations = [[{"role": "user", "content": text} for text in said] for said in texts]
    database = Database(database_url)
    heads: dict[bytes, int | None] = {}
    for some in (conversations[:600], conversations[300:], conversations[::-1]):
        chains = Chains()
        chains.begin()
        with database.writing() as connection:
            names = [chains.add(said, None, 0)[0] for said in some]
            numbers = chains.insert(connection)
        for said, name in zip(some, names, strict=True):
            assert heads.setdefault(dump(said), numbers[name]) == numbers[name]
    with database.reading() as connection:
        rows = connection.execute(select(MessageRow.message_id, MessageRow.parent_id, MessageRow.body)).all()
    database.close()
    stored = {message_id: (parent_id, orjson.loads(body)) for message_id, parent_id, body in rows}
    for body, head in heads.items():
        assert dump(chain(stored, head)) == body
    assert len(stored) == len({tuple(said[:length]) for said in texts for length in range(1, len(said) + 1)})


def chain(stored: dict[int, tuple[int | None, Any]], head: int | None) -> list[Any]:
    found: list[Any] = []
    while head is not None:
        head, message = stored[head]
        found.insert(0, message)
    return found
