"""Sessions end provisionally, trajectories roll over, and a call that comes late is put where it belongs."""

from dataclasses import replace

from adapters.harnesses import HARNESSES
from mosaic.capture import CapturedCall
from mosaic.lineage import Ending, Lineage, Placement
from mosaic.records import SessionKind
from tests.lineage.corpus import PLAYBOOKS
from tests.lineage.corpus.stage import Play
from tests.lineage.test_lineage import TASK, compaction, linear
from tests.playbook import Recording, assistant, user


def place(calls: list[CapturedCall]) -> list[Placement]:
    lineage = Lineage(HARNESSES)
    return [lineage.place(c) for c in calls]


def ends(calls: list[CapturedCall]) -> dict[str, Ending | None]:
    """Session -> how it ended in the end."""
    found: dict[str, Ending | None] = {}
    for placement in place(calls):
        found.update(placement.ended)
    return found


def test_a_session_has_answered_when_it_calls_no_tool_and_is_open_again_when_it_is_asked_more() -> None:
    recording = Recording()
    one = recording.call([TASK], assistant("The Wey."))
    history = [TASK, assistant("The Wey."), user("And the mill?")]
    two = recording.call(history, assistant(None, ("id-1", "look", "{}")), "look")
    first, second = place([one, two])
    assert first.ended == {first.session_id: Ending.ANSWERED}
    assert second.ended == {first.session_id: None}


def test_a_session_that_was_compacted_has_succeeded() -> None:
    calls = compaction(Recording())
    assert ends(calls)[f"s-{calls[0].call_id}"] is Ending.SUCCEEDED


def playbook(name: str) -> list[CapturedCall]:
    play = Play(name.replace("_", " "))
    PLAYBOOKS[name](play)
    return [line.call for line in play.lines]


def test_a_child_has_returned_once_its_parent_has_the_result_also_after_a_compaction_of_its_own() -> None:
    for name, returned in (("at_once", 2), ("inside_a_child", 1), ("in_the_background", 2)):
        assert list(ends(playbook(name)).values()).count(Ending.RETURNED) == returned, name


def attempt(client: Recording, number: int, *, answered: bool = True) -> list[CapturedCall]:
    calls = linear(client, 2, f"{number}-")
    if answered:
        history = [*calls[-1].messages, calls[-1].choices[0].message]
        calls.append(client.call(list(history), assistant("It is the North Sea."), "search"))
    return [replace(c, call_id=f"{number}/{c.call_id}") for c in calls]


def test_the_one_agent_of_a_client_rolls_over_to_the_next_trajectory() -> None:
    client = Recording(None)
    first, second, third = (attempt(client, n) for n in range(3))
    placements = place([*first, *second, *third])
    assert [p.trajectory_id for p in placements if p.opened] == [f"tr-{n[0].call_id}" for n in (first, second, third)]
    assert [p.rolled_over for p in placements if p.rolled_over] == [
        (f"tr-{first[0].call_id}",),
        (f"tr-{second[0].call_id}",),
    ]


def test_an_attempt_that_waits_for_its_tool_is_not_over_when_another_begins() -> None:
    client = Recording(None)
    placements = place([*attempt(client, 0, answered=False), *attempt(client, 1)])
    assert not any(p.rolled_over for p in placements)


def test_a_call_that_comes_after_those_that_went_on_from_it_is_put_before_them() -> None:
    for late in (0, 1, 2):
        calls = linear(Recording(), 4)
        order = [c for c in calls if c is not calls[late]]
        order.insert(late + 1, calls[late])
        placements = {p.call_id: p for p in place(order)}
        assert len({p.session_id for p in placements.values()}) == 1
        assert placements[calls[late].call_id].parent_call_id == (calls[late - 1].call_id if late else None)
        assert sum(p.opened is not None for p in placements.values()) == 1
        assert all(p.opened is None or p.opened.kind is SessionKind.ROOT for p in placements.values())
