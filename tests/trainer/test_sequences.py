"""Sequences from trajectories: every sampled token once, after the very prefix at which it was sampled."""

from collections import Counter
from itertools import count

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mosaic.records import Call, Sample, Session, SessionKind, Trajectory, TrajectoryState
from trainer.sequences import (
    UNTRAINED_VERSION,
    Cause,
    Credit,
    LeftOut,
    Reason,
    Sequence,
    TrajectorySequences,
    answer_call_id,
    build_sequences,
)


def sample(ids: list[int], index: int = 0, logprobs: list[float] | None = None) -> Sample:
    values = [-0.5 - i / 100 for i in range(len(ids))] if logprobs is None else logprobs
    return Sample(index, np.array(ids, np.int32), np.array(values, np.float32), {"role": "assistant"}, "stop")


def call(
    call_id: str,
    prompt: list[int],
    *choices: list[int],
    exact: bool = True,
    auxiliary: str | None = None,
    versions: tuple[int, int] = (1, 1),
) -> Call:
    return Call(
        call_id=call_id,
        prompt_ids_P=np.array(prompt, np.int32),
        samples=tuple(sample(ids, index) for index, ids in enumerate(choices)),
        messages=(),
        policy_version=versions[0],
        policy_version_end=versions[1],
        exact=exact,
        auxiliary=auxiliary,
        started_at=0.0,
    )


def session(
    session_id: str,
    *calls: Call,
    kind: SessionKind = SessionKind.ROOT,
    parent: str | None = None,
    opened_by: str | None = None,
) -> Session:
    return Session(session_id, kind, parent, opened_by, calls)


def trajectory(*sessions: Session) -> Trajectory:
    return Trajectory("t", "task", 1.0, TrajectoryState.SCORED, sessions)


def build(*sessions: Session, max_length: int = 10_000, calls: dict[str, float] | None = None) -> TrajectorySequences:
    credit = Credit({s.session_id: float(n + 1) for n, s in enumerate(sessions)}, calls or {})
    return build_sequences(trajectory(*sessions), credit, max_length)


def test_calls_that_extend_each_other_become_one_sequence() -> None:
    built = build(session("a", call("1", [1, 2], [3, 4]), call("2", [1, 2, 3, 4, 5], [6])))
    (only,) = built.sequences
    assert only.ids_L.tolist() == [1, 2, 3, 4, 5, 6]
    assert only.mask_L.tolist() == [False, False, True, True, False, True]
    assert only.advantages_L.tolist() == [0, 0, 1, 1, 0, 1]
    np.testing.assert_allclose(only.logprobs_L, [0, 0, -0.5, -0.51, 0, -0.5])
    assert (only.prompt_len, only.call_ids, only.n_trained) == (2, ("1", "2"), 3)
    assert [(span.start, span.end) for span in only.spans] == [(2, 4), (5, 6)]
    assert built.causes == {Cause.ROOT: 1}


def test_a_changed_reply_starts_a_new_sequence_and_is_named() -> None:
    built = build(session("a", call("1", [1, 2], [3, 4]), call("2", [1, 2, 3, 9, 5], [6])))
    assert [s.call_ids for s in built.sequences] == [("1",), ("2",)]
    assert built.sequences[1].cause is Cause.REPLY_CHANGED
    assert built.sequences[1].mask_L.tolist() == [False] * 5 + [True]


def test_a_changed_prompt_is_a_broken_prefix() -> None:
    built = build(session("a", call("1", [1, 2], [3, 4]), call("2", [9, 2, 3, 4, 5], [6])))
    assert [s.cause for s in built.sequences] == [Cause.ROOT, Cause.PREFIX_BROKEN]


def test_a_broken_prefix_does_not_end_the_chains_before_it() -> None:
    calls = call("1", [1], [2]), call("2", [7], [8]), call("3", [1, 2, 3], [4]), call("4", [7, 8, 9], [5])
    assert [s.call_ids for s in build(session("a", *calls)).sequences] == [("1", "3"), ("2", "4")]


def test_the_same_prompt_again_is_a_resample() -> None:
    built = build(session("a", call("1", [1, 2], [3]), call("2", [1, 2], [4])))
    assert [s.cause for s in built.sequences] == [Cause.ROOT, Cause.RESAMPLED]


def test_a_second_continuation_of_one_sample_is_a_branch_that_does_not_train_it_again() -> None:
    built = build(session("a", call("1", [1], [2]), call("2", [1, 2, 3], [4]), call("3", [1, 2, 5], [6])))
    assert [(s.cause, s.call_ids) for s in built.sequences] == [(Cause.ROOT, ("1", "2")), (Cause.BRANCH, ("3",))]


def test_choices_that_are_not_continued_become_their_own_sequences() -> None:
    built = build(session("a", call("1", [1], [2], [3], [4]), call("2", [1, 3, 9], [5], [6])))
    assert [(s.cause, s.ids_L.tolist()) for s in built.sequences] == [
        (Cause.ROOT, [1, 3, 9, 5]),
        (Cause.CHOICE, [1, 2]),
        (Cause.CHOICE, [1, 4]),
        (Cause.CHOICE, [1, 3, 9, 6]),
    ]


def test_the_longest_choice_that_fits_is_the_continued_one() -> None:
    built = build(session("a", call("1", [1], [2], [2, 3]), call("2", [1, 2, 3, 4], [5])))
    assert [s.ids_L.tolist() for s in built.sequences] == [[1, 2, 3, 4, 5], [1, 2]]


def test_a_summary_with_its_own_prompt_is_trained_in_its_own_sequence() -> None:
    built = build(
        session("a", call("1", [1], [2]), call("sum", [50, 51], [52])),
        session("b", call("2", [52, 53], [54]), kind=SessionKind.COMPACTION, parent="a", opened_by="sum"),
    )
    assert [(s.cause, s.session_id, s.call_ids) for s in built.sequences] == [
        (Cause.ROOT, "a", ("1",)),
        (Cause.SUMMARY, "a", ("sum",)),
        (Cause.COMPACTION, "b", ("2",)),
    ]


def test_a_call_override_replaces_the_sessions_advantage() -> None:
    built = build(session("a", call("1", [1], [2, 3]), call("2", [1, 2, 3, 4], [5])), calls={"2": -7.0})
    assert built.sequences[0].advantages_L.tolist() == [0, 1, 1, 0, -7]


def test_what_cannot_be_trained_is_left_out_with_its_reason() -> None:
    bad = Call("bad", np.array([1], np.int32), (sample([2], logprobs=[float("nan")]),), (), 1, 1, True, None, 0.0)
    built = build_sequences(
        trajectory(
            session(
                "a",
                call("aux", [1], [2], auxiliary="title"),
                call("inexact", [1], [2], exact=False),
                call("no prompt", [], [2]),
                call("empty", [1], []),
                bad,
                call("good", [1], [2]),
            ),
            session("b", call("good", [1], [2]), call("unscored", [3], [4])),
        ),
        Credit({"a": 1.0}),
        100,
    )
    assert [s.call_ids for s in built.sequences] == [("good",)]
    assert built.left_out == (
        LeftOut("aux", None, Reason.AUXILIARY),
        LeftOut("inexact", None, Reason.INEXACT),
        LeftOut("no prompt", None, Reason.INEXACT),
        LeftOut("empty", None, Reason.EMPTY),
        LeftOut("bad", None, Reason.BAD_LOGPROBS),
        LeftOut("good", None, Reason.DUPLICATE),
        LeftOut("unscored", None, Reason.NO_CREDIT),
    )


def test_an_inexact_call_between_two_exact_ones_does_not_break_the_chain() -> None:
    calls = call("1", [1], [2]), call("x", [1, 2, 3], [4], exact=False), call("2", [1, 2, 3, 4, 5], [6])
    (only,) = build(session("a", *calls)).sequences
    assert only.mask_L.tolist() == [False, True, False, False, False, True]


def test_too_long_sequences_lose_whole_calls_from_the_end() -> None:
    calls = call("1", [1], [2]), call("2", [1, 2, 3], [4]), call("3", [1, 2, 3, 4, 5], [6, 7])
    built = build(session("a", *calls), max_length=6)
    assert [s.call_ids for s in built.sequences] == [("1", "2")]
    assert built.reasons == {Reason.TOO_LONG: 1}
    assert build(session("a", *calls), max_length=1).sequences == ()


def test_a_swap_inside_a_call_gives_its_last_token_the_later_version() -> None:
    (only,) = build(session("a", call("1", [1], [2, 3, 4], versions=(6, 7)))).sequences
    assert only.versions_L.tolist() == [UNTRAINED_VERSION, 6, 6, 7]


def test_the_answer_is_the_last_task_call_of_the_last_continuation_of_the_root() -> None:
    root = session("a", call("1", [1], [2]), call("sum", [1], [3]))
    child = session("c", call("child", [5], [6]), kind=SessionKind.SPAWN, parent="a", opened_by="1")
    after = session(
        "b",
        call("2", [7], [8]),
        call("title", [9], [9], auxiliary="title"),
        kind=SessionKind.COMPACTION,
        parent="a",
        opened_by="sum",
    )
    assert answer_call_id(trajectory(root)) == "sum"
    assert answer_call_id(trajectory(root, child, after)) == "2"
    assert answer_call_id(trajectory()) is None


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    """Random trees of sessions over a tiny alphabet, so that accidental prefixes happen as well."""
    ids = st.lists(st.integers(1, 3), min_size=1, max_size=4)
    numbers = count()
    sessions: list[Session] = []
    for n in range(draw(st.integers(1, 4))):
        calls: list[Call] = []
        for _ in range(draw(st.integers(0, 6))):
            prompt = draw(ids)
            step = draw(st.sampled_from(["extend", "extend", "extend", "edit", "repeat", "fresh"]))
            if calls and step != "fresh":
                earlier = draw(st.sampled_from([calls[-1], calls[-1], *calls]))
                prompt = earlier.prompt_ids_P.tolist()
                if step != "repeat":
                    chosen = draw(st.sampled_from(earlier.samples)).ids_T.tolist()
                    chosen = chosen[:-1] if step == "edit" else chosen
                    prompt = prompt + chosen + draw(st.lists(st.integers(1, 3), max_size=3))
            choices = draw(st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=3))
            exact, auxiliary = draw(st.integers(0, 5)) > 0, "title" if draw(st.integers(0, 5)) == 0 else None
            calls.append(call(f"c{next(numbers)}", prompt, *choices, exact=exact, auxiliary=auxiliary))
        parent = draw(st.sampled_from(sessions)) if sessions else None
        opened_by = draw(st.sampled_from(parent.calls)).call_id if parent and parent.calls else None
        kind = draw(st.sampled_from(list(SessionKind)[1:])) if parent else SessionKind.ROOT
        parent_id = parent.session_id if parent else None
        sessions.append(session(f"s{n}", *calls, kind=kind, parent=parent_id, opened_by=opened_by))
    return trajectory(*sessions)


def trained_spans(sequences: tuple[Sequence, ...]) -> Counter[tuple[str, int]]:
    return Counter((span.call_id, span.sample_index) for sequence in sequences for span in sequence.spans)


@given(tree=trajectories(), max_length=st.integers(1, 40))
def test_each_sampled_token_is_trained_once_or_left_out_with_a_reason(tree: Trajectory, max_length: int) -> None:
    built = build_sequences(tree, Credit({s.session_id: 1.0 for s in tree.sessions}), max_length)
    trained = trained_spans(built.sequences)
    assert set(trained.values()) <= {1}
    whole = {item.call_id for item in built.left_out if item.sample_index is None}
    parts = {(item.call_id, item.sample_index) for item in built.left_out}
    for one in (c for s in tree.sessions for c in s.calls):
        usable = one.exact and one.auxiliary is None and any(len(choice.ids_T) for choice in one.samples)
        assert usable == (one.call_id not in whole)
        for choice in one.samples:
            expected = usable and len(choice.ids_T) and (one.call_id, choice.index) not in parts
            assert trained[one.call_id, choice.index] == int(bool(expected))


@given(tree=trajectories(), max_length=st.integers(1, 40))
def test_a_sequence_holds_the_recorded_prompt_before_each_recorded_sample(tree: Trajectory, max_length: int) -> None:
    calls = {c.call_id: c for s in tree.sessions for c in s.calls}
    advantages = {s.session_id: float(n) for n, s in enumerate(tree.sessions)}
    for sequence in build_sequences(tree, Credit(advantages, {"c1": 99.0}), max_length).sequences:
        assert len(sequence.ids_L) <= max_length
        rest_L = sequence.mask_L.copy()
        for span in sequence.spans:
            recorded = calls[span.call_id]
            choice = recorded.samples[span.sample_index]
            here = slice(span.start, span.end)
            assert sequence.ids_L[: span.start].tolist() == recorded.prompt_ids_P.tolist()
            assert sequence.ids_L[here].tolist() == choice.ids_T.tolist()
            assert sequence.logprobs_L[here].tolist() == choice.logprobs_T.tolist()
            assert sequence.mask_L[here].all()
            expected = 99.0 if span.call_id == "c1" else advantages[sequence.session_id]
            assert (sequence.advantages_L[here] == expected).all()
            rest_L[here] = False
        assert not rest_L.any()
        assert sequence.prompt_len == int(sequence.mask_L.argmax())
        for untrained_L in (sequence.logprobs_L, sequence.advantages_L, sequence.versions_L + 1):
            assert not untrained_L[~sequence.mask_L].any()


@given(tree=trajectories())
def test_only_a_named_cause_keeps_a_continuation_from_its_sequence(tree: Trajectory) -> None:
    """A call whose prompt extends the call before it joins it, unless a sibling already took that place."""
    built = build_sequences(tree, Credit({s.session_id: 1.0 for s in tree.sessions}), 10_000)
    opening = {Cause(kind.value) for kind in SessionKind}
    per_session = Counter(s.session_id for s in built.sequences if s.cause in opening)
    assert set(per_session.values()) <= {1}
    assert sum(built.causes.values()) == len(built.sequences)
