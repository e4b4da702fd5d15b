"""Questions are disjoint, answerable from the documents alone, and scored exactly."""

import re
from pathlib import Path

import pytest

from examples.demo.corpus import Corpus
from examples.demo.questions import SIZES, Chain, Question, Split, follow, questions, score

README = Path(__file__).parents[2] / "examples" / "demo" / "README.md"
SPLITS: tuple[Split, ...] = ("train", "heldout")


def _cities(split: Split) -> list[str]:
    return [chain.start for question in questions(split) for chain in question.chains]


def test_there_are_enough_questions_of_both_kinds() -> None:
    assert len(questions("train")) == SIZES["train"] >= 128
    assert len(questions("heldout")) == SIZES["heldout"] >= 64
    for split in SPLITS:
        kinds = [question.kind for question in questions(split)]
        assert kinds.count("fork") == kinds.count("chain")


def test_no_city_occurs_twice_let_alone_in_both_splits() -> None:
    both = _cities("train") + _cities("heldout")
    assert len(set(both)) == len(both)


@pytest.mark.parametrize("split", SPLITS)
def test_answers_follow_from_the_documents(split: Split) -> None:
    corpus = Corpus()
    for question in questions(split):
        ends = []
        for chain in question.chains:
            here = chain.start
            for relation in chain.relations:
                here = corpus.search(f"{relation} of {here}").split(" is ")[1].removesuffix(".")
            ends.append(here)
        assert question.answer == "; ".join(ends)


def test_forks_have_two_short_chains_and_chains_are_long() -> None:
    for question in (*questions("train"), *questions("heldout")):
        lengths = [len(chain.relations) for chain in question.chains]
        assert lengths == [2, 2] if question.kind == "fork" else lengths in ([4], [5])


def test_a_chain_without_a_fact_leads_nowhere() -> None:
    assert follow(Chain("Gdansk", ("country", "moon"))) is None


@pytest.mark.parametrize(
    ("answer", "reward"),
    [("Warsaw; DZD", 1.0), ("  warsaw;\n dzd ", 1.0), ("Warsaw", 0.0), ("DZD; Warsaw", 0.0), ("", 0.0)],
)
def test_score_is_exact_but_for_case_and_white_space(answer: str, reward: float) -> None:
    chains = (Chain("Gdansk", ("country", "capital")), Chain("Oran", ("country", "currency")))
    assert score(Question("fork", chains, "Warsaw; DZD"), answer) == reward


def test_the_questions_that_the_readme_offers_are_training_questions_with_their_answers() -> None:
    offered = re.findall(r"^    (From .*?\.) {2,}\((\w+): (.*)\)$", README.read_text(), re.MULTILINE)
    assert len(offered) == 2
    assert set(offered) <= {(q.prompt, q.kind, q.answer) for q in questions("train")}
