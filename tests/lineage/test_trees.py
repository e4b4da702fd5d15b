"""Random trees of sessions, sent by frameworks that rewrite histories at random, are recovered from the traffic."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lineage.corpus import identities
from tests.lineage.corpus.compactions import compact_by_transcript, compact_with_tail
from tests.lineage.corpus.rewrites import HARMLESS, Messages
from tests.lineage.corpus.stage import Agent, Ids, Play, nobody
from tests.lineage.corpus.variants import interleaved
from tests.lineage.scoring import Score, place, score

TOOLS = "look count task"
DIALECTS: list[Ids] = [nobody, nobody, identities.claude, identities.opencode, identities.openhands]

Data = st.DataObject


def rewriting(names: set[str]) -> Callable[[Messages, int], Messages]:
    """All the rewrites of these names, in the corpus' order."""

    def rewrite(messages: Messages, made: int) -> Messages:
        for name, change in HARMLESS.items():
            messages = change(messages, made) if name in names else messages
        return messages

    return rewrite


def live(data: Data, agent: Agent, depth: int) -> str:
    """Let an agent do a few things, and answer; returns its answer."""
    for step in range(data.draw(st.integers(1, 3), label="steps")):
        did = data.draw(st.sampled_from(["look", "talk", "spawn", "compact"]), label="step")
        name = f"{agent.session}.{step}"
        if did == "spawn" and depth < 2:
            spawn(data, agent, name, depth)
        elif did == "compact" and agent.made:
            compact = data.draw(st.sampled_from([compact_with_tail, compact_by_transcript]), label="compaction")
            agent = compact(agent.works(f"pier {name}"), name)
        elif did == "talk" and depth == 0:
            agent.says(f"So much for step {name}.")
            agent.hears(f"Go on with step {name}.")
        else:
            agent.works(f"pier {name}")
    return agent.says(f"That was {agent.session}.")


def spawn(data: Data, parent: Agent, name: str, depth: int) -> None:
    """One to three children at once, answered for in any order."""
    number = data.draw(st.integers(1, 3), label="children")
    prompts = [parent.play.say(f"Visit pier {name}/{n} and tell me what lies there.") for n in range(number)]
    parent.calls("I send helpers.", *[("task", {"description": "visit", "prompt": p}) for p in prompts])
    asked = list(parent.open)
    reports: dict[int, str] = {}
    for n in data.draw(st.permutations(range(number)), label="order"):
        child = parent.spawns(f"{name}/{n}", tools=TOOLS, rewrite=parent.rewrite)
        reports[n] = live(data, child.hears(prompts[n]), depth + 1)
    parent.open = asked
    parent.gets(*[reports[n] for n in range(number)])


@st.composite
def trees(draw: st.DrawFn) -> list[Play]:
    """One to three attempts at one task, each a tree of sessions."""
    data = draw(st.data())
    ids = draw(st.sampled_from(DIALECTS))
    names = draw(st.sets(st.sampled_from(sorted(HARMLESS))))
    plays = []
    for copy in range(draw(st.integers(1, 3), label="attempts")):
        play = Play("tree", copy, voice=copy)
        live(data, play.agent(ids=ids, tools=TOOLS, rewrite=rewriting(names)).hears("A morning.", play.task), 0)
        plays.append(play)
    return plays


def recovered(found: Score) -> None:
    assert not found.merges
    assert (found.purity, found.f1) == (1, 1), found.wrong
    assert (found.kind_accuracy, found.parent_accuracy) == (1, 1), found.wrong
    assert found.auxiliary["found"] == 0, found.wrong


@given(trees(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=15)
def test_random_trees_are_recovered_whatever_is_rewritten(plays: list[Play], draw: object) -> None:
    recovered(score(place(interleaved([p.lines for p in plays], draw))))  # type: ignore[arg-type]
