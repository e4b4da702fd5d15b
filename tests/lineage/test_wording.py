"""Patterns of words fit in any case, and where they must."""

import pytest

from mosaic.lineage.wording import Words

FITS = [
    (("summari[sz]e",), "Please SUMMARISE it.", True),
    (("isNewTopic",), "Answer with isnewtopic.", True),
    ((r"^\W*Warm-?up\W*$",), "<WarmUp>", True),
    ((r"^\W*warm-?up\W*$",), "no warm-up", False),
    ((r"^quota", "title of"), "the title of it", True),
    ((r"\Sx\b",), "AX", True),
    ((r"\bcheck if", "never"), "Then CHECK if", True),
    ((r"\bcheck if",), "recheck if", False),
    ((r"\bchecks? if",), "check if", True),
    ((r"\bcheck|recap",), "recap", True),
    ((r"\b(?:check|recap)",), "recap", True),
    ((), "anything", False),
]


@pytest.mark.parametrize(("patterns", "text", "fits"), FITS)
def test_words_are_found_in_any_case_and_openings_only_at_the_begin(
    patterns: tuple[str, ...], text: str, fits: bool
) -> None:
    assert Words(patterns).found_in(text) is fits
