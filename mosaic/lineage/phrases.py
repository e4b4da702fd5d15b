"""Finds, in a long text, those of very many shorter texts that it contains, in time that depends on the text alone.

A short text is found by its first words (of arguments also by their last) and then compared as a whole. Only words
count: what a framework puts around them, indentation, quotes or escapes, makes no difference.
"""

from collections.abc import Iterator, Sequence

from mosaic.lineage.state import Mention, Pool, Said

ANCHOR = 6
"""Words by which a text is found."""
LONG = 12
"""Words that are hardly another's by chance, whatever stands around them."""
SHORT = 3
"""Words by which a text is found that has less than `ANCHOR`; one with fewer still is not found."""


def measure(words: Sequence[str]) -> tuple[int, int]:
    """(Length, digest) of a text's words."""
    return len(words), hash(" ".join(words))


def keys(words: Sequence[str], *, also_by_end: bool = False) -> Iterator[tuple[int, int]]:
    """(Key, words before the anchor) under which a text is to be put; none for a text that is too short."""
    size = ANCHOR if len(words) >= ANCHOR else SHORT
    if len(words) >= size:
        yield _key(tuple(words[:size])), 0
        if also_by_end and len(words) > size:
            yield _key(tuple(words[-size:])), len(words) - size


def opening(words: Sequence[str]) -> int:
    """Digest of the words that a text begins with."""
    return hash(" ".join(words[:LONG]))


def beginning(pool: Pool, text: Sequence[str]) -> list[Said]:
    """What the policy said that begins with the same words as a text: it may have been cut, or added to."""
    if len(text) < ANCHOR:
        return []
    said = [m for m in pool.find(_key(tuple(text[:ANCHOR]))) if isinstance(m, Said)]
    whole = [m for m in said if _stands(m, text, 0)]
    return whole or [m for m in said if m.opening == opening(text)]


def found_in(pool: Pool, text: Sequence[str]) -> list[Mention]:
    """The mentions whose words stand in the text, each once, in the order in which they stand."""
    found: dict[int, Mention] = {}
    find = pool.find
    for size in (ANCHOR, SHORT):
        for at in range(len(text) - size + 1):
            for mark in find(_key(tuple(text[at : at + size]))):
                if isinstance(mark, Mention) and id(mark) not in found and _stands(mark, text, at):
                    found[id(mark)] = mark
    return list(found.values())


def _stands(mark: Mention, text: Sequence[str], at: int) -> bool:
    start = at - mark.back
    return start >= 0 and hash(" ".join(text[start : start + mark.length])) == mark.digest


def _key(anchor: tuple[str, ...]) -> int:
    return hash(("words", anchor))
