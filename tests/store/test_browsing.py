"""What the dashboard and the API ask the store: pages that miss and repeat nothing, whatever is filtered."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mosaic.errors import RequestError
from mosaic.records import TrajectoryState
from mosaic.store import Store, browsing, call_browsing, feed, progress
from mosaic.store.browsing import Filter
from tests.lineage.test_lineage import compaction, linear, spawns
from tests.playbook import Recording, user

FILTERS = (
    Filter(),
    Filter(text="RUN-1"),
    Filter(text="100% _sure_"),
    Filter(state="scored"),
    Filter(min_reward=0.5),
    Filter(below_reward=0.5),
    Filter(scored=False),
    Filter(text="run", state="open", scored=False),
)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    opened = Store(database_url)
    for number in range(12):
        # Three at a time begin at the same moment: the cursor has to part them by their ids.
        calls = linear(Recording(f"run-{number:02d}"), 2)
        at = 1e9 + number // 3
        opened.record([replace(call, started_at=at, ended_at=at + 1) for call in calls])
        if number % 3:
            opened.reward(f"run-{number:02d}", number / 12, "test")
    opened.record([Recording("odd").call([user("100% _sure_ that it's found")], {"role": "assistant", "content": "x"})])
    yield opened
    opened.close()


def read(store: Store, ask: Callable[..., Any], *what: Any) -> Any:
    with store.database.reading() as connection:
        return ask(connection, *what)


def walked(store: Store, wanted: Filter, limit: int) -> list[str]:
    """All ids of a list, page by page."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = read(store, browsing.page, wanted, cursor, limit)
        found += [one.trajectory_id for one in page.items]
        assert len(page.items) <= limit
        cursor = page.next
        if cursor is None:
            return found


@pytest.mark.parametrize("wanted", FILTERS)
def test_pages_of_any_size_and_window_give_the_whole_list_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, wanted: Filter
) -> None:
    fitting = [t for t in store.trajectories(100) if fits(t, wanted)]
    fitting.sort(key=lambda t: (t.created_at, t.trajectory_id), reverse=True)
    for window in (1, 2, 5, 100):
        monkeypatch.setattr(browsing, "WINDOW", window)
        monkeypatch.setattr(browsing, "TEXT_WINDOW", window)
        for limit in (1, 3, 50):
            assert walked(store, wanted, limit) == [t.trajectory_id for t in fitting]


def fits(one: Any, wanted: Filter) -> bool:
    text = (wanted.text or "").lower()
    return (
        (text in one.trajectory_id.lower() or text in (one.task or "").lower())
        and wanted.state in (None, one.state)
        and (wanted.min_reward is None or (one.reward is not None and one.reward >= wanted.min_reward))
        and (wanted.below_reward is None or (one.reward is not None and one.reward < wanted.below_reward))
        and (wanted.scored is None or wanted.scored is (one.reward is not None))
    )


def test_what_comes_meanwhile_moves_no_page(store: Store) -> None:
    first = read(store, browsing.page, Filter(), None, 4)
    store.record([replace(call, started_at=2e9, ended_at=2e9) for call in linear(Recording("newer"), 1)])
    second = read(store, browsing.page, Filter(), first.next, 100)
    assert len(first.items) + len(second.items) == 13
    assert not {t.trajectory_id for t in first.items} & {t.trajectory_id for t in second.items}


@given(cursor=st.text(max_size=30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_no_cursor_is_a_fault_of_the_server(store: Store, cursor: str) -> None:
    for ask, what in ((browsing.page, (Filter(),)), (call_browsing.call_lines, ("run-01",))):
        with contextlib.suppress(RequestError):
            read(store, ask, *what, cursor, 1)


@pytest.mark.parametrize("cursor", ["", "~", "x~y", "1~\0", "1..2~a", "nan"])
def test_the_refusal_of_a_cursor_is_a_400(store: Store, cursor: str) -> None:
    with pytest.raises(RequestError, match="is no cursor") as refused:
        read(store, browsing.page, Filter(), cursor, 1)
    assert refused.value.status == 400


def test_a_trajectorys_sessions_tell_why_they_stand_where_they_do_and_what_they_were_worth(store: Store) -> None:
    store.record(compaction(Recording("tree"), tag="tree"))
    root, child = read(store, browsing.sessions, "tree")
    assert (root.kind, child.kind, child.parent_session_id) == ("root", "compaction", root.session_id)
    assert child.link["rung"] == "summary"
    assert (root.calls, root.auxiliary_calls) == (4, 0)
    assert (child.advantage, child.reward) == (None, None)
    store.reward("tree", 1.0, "test")
    store.reward("tree", 0.25, "test", session_id=child.session_id)
    job = store.start_job({})
    store.finish_training(job, store.new_version("x", job), {"tree": 1.0}, {child.session_id: -0.5}, {})
    root, child = read(store, browsing.sessions, "tree")
    assert (child.advantage, child.reward, root.advantage, root.reward) == (-0.5, 0.25, None, None)
    assert (child.trained_by, root.trained_by) == (job, None)
    assert read(store, browsing.sessions, "tree", child.session_id) == [child]


def test_every_id_leads_to_its_trajectory(store: Store) -> None:
    call = read(store, call_browsing.call_lines, "run-03", None, 1).items[0]
    for named in ("run-03", call.call_id, call.session_id):
        assert read(store, browsing.trajectory_of, named) == "run-03"
    assert read(store, browsing.trajectory_of, "nobody") is None


def test_call_lines_come_in_pages_in_the_order_in_which_calls_ended(store: Store) -> None:
    calls = spawns(Recording("many"), ("first part", "second part"))
    store.record(calls)
    first = read(store, call_browsing.call_lines, "many", None, 3)
    rest = read(store, call_browsing.call_lines, "many", first.next, 3)
    assert [line.call_id for line in (*first.items, *rest.items)] == [call.call_id for call in calls]
    assert rest.next is None
    assert "capital" in (first.items[1].head or "")


def test_a_chain_goes_back_page_by_page_and_stops_before_what_is_known(store: Store) -> None:
    calls = linear(Recording("chain"), 4)
    store.record(calls)
    head = read(store, call_browsing.head_of, calls[3].call_id)
    known = read(store, call_browsing.head_of, calls[1].call_id)
    whole = read(store, call_browsing.chain, head, 1000)
    assert [m.body for m in whole.items] == list(calls[3].messages)
    assert whole.next is None
    for limit in (1, 3, 7):
        seen: list[Any] = []
        cursor = head
        while cursor is not None:
            page = read(store, call_browsing.chain, cursor, limit)
            seen[:0] = page.items
            cursor = None if page.next is None else int(page.next)
        assert seen == list(whole.items)
    new = read(store, call_browsing.chain, head, 1000, known)
    assert [m.body for m in new.items] == list(calls[3].messages[len(calls[1].messages) :])
    assert new.next == str(known)
    assert read(store, call_browsing.chain, None, 5).items == ()


def test_a_calls_tokens_are_those_that_were_sampled(store: Store) -> None:
    call = linear(Recording("tokens"), 3)[2]
    store.record(linear(Recording("tokens"), 3))
    found = read(store, call_browsing.choice_tokens, call.call_id, 0)
    assert found.prompt_P.tolist() == call.prompt_ids_P.tolist()
    assert found.ids_T.tolist() == call.choices[0].ids_T.tolist()
    assert found.versions == [[0, 0, len(found.ids_T)]]
    with pytest.raises(RequestError, match="no choice"):
        read(store, call_browsing.choice_tokens, call.call_id, 1)


def test_a_reader_of_the_feed_who_comes_back_misses_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST", 3)
    mark, seen = feed.Mark(0, 0), []
    while found := read(store, feed.since, mark):
        seen += found
        mark = found[-1].mark
    assert mark == read(store, feed.newest)
    assert feed.Mark.read(str(mark)) == mark
    assert len([e for e in seen if e.kind == "call"]) == 25
    assert [e.trajectory_id for e in seen if e.kind == "reward"] == [f"run-{n:02d}" for n in range(12) if n % 3]
    only = read(store, feed.since, feed.Mark(0, 0), "run-01")
    assert {(e.kind, e.trajectory_id) for e in only} == {("call", "run-01"), ("reward", "run-01")}


@pytest.mark.parametrize("text", ["", "1", "1.", ".1", "1.2.3", "-1.2", "a.b", "1" * 30 + ".1", "١.٢"])
def test_a_mark_that_is_none_is_none(text: str) -> None:
    assert feed.Mark.read(text) is None


def test_recent_attempts_are_figures_oldest_first(store: Store) -> None:
    store.record(compaction(Recording("tree"), tag="tree"))
    found = read(store, progress.recent)
    assert [a.created_at for a in found] == sorted(a.created_at for a in found)
    assert {a.trajectory_id: a.sessions for a in found}["tree"] == 2
    assert len(read(store, progress.recent, 5)) == 5
    assert read(store, browsing.states)[TrajectoryState.SCORED.value] == 8


def test_jobs_and_versions_come_newest_first_with_what_was_measured(store: Store) -> None:
    job = store.start_job({})
    version = store.new_version("there", job)
    store.finish_training(job, version, {}, {}, {"gap_after": 0.5})
    store.end_job(job, metrics={"entropy": 1.5})
    failed = store.start_job({})
    store.end_job(failed, error="no")
    jobs, versions = read(store, progress.jobs), read(store, progress.versions)
    assert [(j.job_id, j.state, j.metrics) for j in jobs] == [
        (failed, "failed", {}),
        (job, "published", {"entropy": 1.5}),
    ]
    assert [(v.version, v.verification) for v in versions] == [(1, {"gap_after": 0.5})]
