"""Random trees of sessions, sent by frameworks that rewrite histories at random, are recovered from the traffic."""

from collections.abc import Callable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic.records import SessionKind
from tests.lineage.corpus import identities
from tests.lineage.corpus.compactions import compact_by_transcript, compact_with_tail
from tests.lineage.corpus.rewrites import HARMLESS, Messages
from tests.lineage.corpus.stage import Agent, Ids, Line, Play, nobody
from tests.lineage.corpus.variants import interleaved
from tests.lineage.scoring import place, score

TOOLS = "look count task"
EXPERTS = ("You measure boats.", "Act as the keeper of the ledger; name owners.", "As a diver, report what lies below.")
STEPS = ["look", "talk", "spawn", "compact", "branch", "hand over"]
DIALECTS: list[Ids] = [nobody, nobody, identities.claude, identities.opencode, identities.openhands]


def rewriting(names: set[str]) -> Callable[[Messages, int], Messages]:
    """All the rewrites of these names, in the corpus' order."""

    def rewrite(messages: Messages, made: int) -> Messages:
        for name, change in HARMLESS.items():
            messages = change(messages, made) if name in names else messages
        return messages

    return rewrite


def live(draw: Random, agent: Agent, depth: int) -> str:
    """Let an agent do a few things, and answer; returns its answer."""
    for step in range(draw.randint(1, 3)):
        did = draw.choice(STEPS)
        name = f"{agent.session}.{step}"
        if did == "spawn" and depth < 2:
            spawn(draw, agent, name, depth)
        elif did == "compact" and agent.made:
            compact = draw.choice([compact_with_tail, compact_by_transcript])
            agent = compact(agent.works(f"pier {name}"), name)
        elif did == "talk" and depth == 0:
            agent.says(f"So much for step {name}.")
            agent.hears(f"Go on with step {name}.")
        elif did == "branch" and depth == 0:
            branch(agent, name)
        elif did == "hand over" and depth == 0 and agent.ids is nobody:
            agent = hand_over(agent, name)
        else:
            agent.works(f"pier {name}")
    return agent.says(f"That was {agent.session}.")


def spawn(draw: Random, parent: Agent, name: str, depth: int) -> None:
    """One to three children at once, answered for in any order."""
    number = draw.randint(1, 3)
    prompts = [parent.play.say(f"Visit pier {name}/{n} and tell me what lies there.") for n in range(number)]
    parent.calls("I send helpers.", *[("task", {"description": "visit", "prompt": p}) for p in prompts])
    asked, background = list(parent.open), draw.random() < 0.5
    if background:
        parent.gets(*["Started in the background."] * number)
    reports: dict[int, str] = {}
    for n in draw.sample(range(number), number):
        child = parent.spawns(f"{name}/{n}", tools=TOOLS, rewrite=parent.rewrite)
        reports[n] = live(draw, child.hears(prompts[n]), depth + 1)
    if background:
        for n, report in reports.items():
            told = f"<tool-use-id>{asked[n]}</tool-use-id>\n<result>{report}</result>"
            parent.hears(f"<task-notification>\n{told}\n</task-notification>")
    else:
        parent.open = asked
        parent.gets(*[reports[n] for n in range(number)])


def branch(agent: Agent, name: str) -> None:
    """The user asks something, then takes that back and asks something else; the agent goes on from the first."""
    agent.says(f"Step {name} is done.")
    other = Agent(agent.play, f"branch {name}", SessionKind.FORK, agent, agent.system, agent.tools, agent.ids)
    other.claim, other.rewrite, other.made = agent.claim, agent.rewrite, agent.made
    other.history = list(agent.history)
    agent.hears(f"Was {name} hard?").says("It was not.")
    other.hears(f"Was {name} easy?").works(f"pier {name}").says("It was.")
    agent.hears("Go on.")


def hand_over(agent: Agent, name: str) -> Agent:
    """Another agent goes on with the history, under its own system text and tools."""
    agent.calls("Someone else shall do it.", ("transfer", {"to": name}))
    agent.gets(f"transferred to {name}")
    system = EXPERTS[int(name[-1])]
    other = agent.spawns(
        name, kind=SessionKind.HANDOFF, system=system, tools=f"measure_{name} task", rewrite=agent.rewrite
    )
    other.history, other.made = list(agent.history), agent.made
    return other


def tree(copy: int, voice: int, draw: Random, ids: Ids, rewrites: set[str]) -> list[Line]:
    """One attempt: a tree of sessions."""
    play = Play("tree", copy, voice=voice)
    live(draw, play.agent(ids=ids, tools=TOOLS, rewrite=rewriting(rewrites)).hears("A morning.", play.task), 0)
    return play.lines


randoms = st.randoms(use_true_random=False)
rewrites = st.sets(st.sampled_from(sorted(HARMLESS)))


@given(st.lists(randoms, min_size=1, max_size=3), st.sampled_from(DIALECTS), rewrites, randoms)
@settings(max_examples=60)
def test_random_trees_are_recovered_whatever_is_rewritten(
    draws: list[Random], ids: Ids, names: set[str], order: Random
) -> None:
    attempts = [tree(n, n, draw, ids, names) for n, draw in enumerate(draws)]
    found = score(place(interleaved(attempts, order)))
    assert not found.merges
    assert (found.purity, found.f1) == (1, 1), found.wrong
    assert (found.kind_accuracy, found.parent_accuracy) == (1, 1), found.wrong
    assert found.auxiliary["found"] == 0, found.wrong


@given(st.integers(), st.integers(2, 5), st.sampled_from(DIALECTS), rewrites, randoms)
@settings(max_examples=60)
def test_attempts_that_say_the_same_to_the_letter_are_never_merged_surely(
    seed: int, copies: int, ids: Ids, names: set[str], order: Random
) -> None:
    attempts = [tree(n, 0, Random(seed), ids, names) for n in range(copies)]
    found = score(place(interleaved(attempts, order)))
    assert found.sure_merges == 0, found.merges
