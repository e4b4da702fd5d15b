"""The corpus holds real facts and finds them again."""

import pytest

from examples.demo.corpus import NO_RESULT, Corpus, facts


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus()


def test_there_are_at_least_five_hundred_documents(corpus: Corpus) -> None:
    assert len(corpus) == len(facts()) >= 500


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("country of Kaunas", "The country of Kaunas is Lithuania."),
        ("capital of Poland", "The capital of Poland is Warsaw."),
        ("code of Poland", "The code of Poland is POL."),
        ("domain of Algeria", "The domain of Algeria is .dz."),
        ("largest neighbour of Portugal", "The largest neighbour of Portugal is Spain."),
        ("capital of Guinea", "The capital of Guinea is Conakry."),
        ("currency of Guinea-Bissau", "The currency of Guinea-Bissau is XOF."),
    ],
)
def test_known_facts_are_true_and_found(corpus: Corpus, query: str, text: str) -> None:
    assert corpus.search(query) == text


def test_every_document_is_found_by_its_own_relation_and_entity(corpus: Corpus) -> None:
    missed = [f.text for f in facts() if corpus.search(f"{f.relation} of {f.entity}") != f.text]
    assert missed == []


def test_documents_are_one_plain_ascii_line() -> None:
    assert all(f.text.isascii() and "\n" not in f.text and '"' not in f.text for f in facts())


@pytest.mark.parametrize("query", ["history of Kaunas", "", '"', "capital of Atlantis", "* OR NEAR("])
def test_a_miss_says_so(corpus: Corpus, query: str) -> None:
    assert corpus.search(query) == NO_RESULT


def test_the_search_gives_as_many_documents_as_asked(corpus: Corpus) -> None:
    assert len(corpus.search("of Poland", limit=2).splitlines()) == 2
