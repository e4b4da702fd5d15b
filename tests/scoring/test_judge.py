"""A judge model behind a real HTTP server."""

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mosaic.job_settings import ScoreConfig
from mosaic.records import TrajectoryState
from mosaic.scoring import judge as judge_module
from mosaic.scoring.judge import MAX_ANSWER, RETRIES, Judge
from mosaic.scoring.outcome import Score, ScoreError
from mosaic.scoring.passive import score_closed
from mosaic.store import Store
from tests.cli.command import mosaic
from tests.engine import Fault, ScriptedEngine, Turn
from tests.engine.raw import End, RawEngine, Step, head, whole
from tests.playbook import Recording, assistant, user
from tests.scoring.test_transcript import trajectory_of

TRAJECTORY = trajectory_of([user("find the capital of France"), user("x" * 5000)])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "BACKOFF_S", 0.01)


async def judged(script: Callable[[dict[str, Any]], Turn], **given: Any) -> tuple[Score, ScriptedEngine]:
    engine = ScriptedEngine(script)
    async with engine.serve() as url:
        judge = Judge(url, "policy", "secret", **given)
        return await asyncio.to_thread(judge.score, TRAJECTORY), engine


async def test_it_is_told_task_record_and_rubric_within_the_budget_and_gives_a_reason() -> None:
    said = 'Let me see: {"a": 1}. {"reason": "It says Paris.", "reward": 0.75}'
    score, engine = await judged(lambda _: Turn(said), rubric="Is it Paris?", max_tokens=200)
    assert score == Score(0.75, "It says Paris.")
    asked = engine.requests[0]
    system, prompt = (m["content"] for m in asked["messages"])
    assert (asked["model"], asked["temperature"]) == ("policy", 0)
    assert "Is it Paris?" in system
    assert "find the capital of France" in prompt
    assert "the outcome" in prompt
    assert len(prompt) < 1000
    assert ("authorization", "Bearer secret") in [(k.lower(), v) for k, v in engine.headers[0].items()]


async def test_null_means_that_it_cannot_be_told() -> None:
    score, _ = await judged(lambda _: Turn('{"reason": "no idea", "reward": null}'))
    assert score == Score(None, "no idea")


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ('{"reward": 0.2, "detail": {"reward": 1}}', Score(0.2)),
        ('{"verdict": {"reward": 1, "of": {"reward": 0}}}', Score(1.0)),
        ('{"reward": 1} would be wrong: {"reward": 0, "reason": "not {done}"}', Score(0.0, "not {done}")),
        ('{"reward": 1, "reason": "cut \\ud83d"}', Score(1.0, "cut \\ud83d")),
    ],
)
async def test_the_last_of_the_outermost_objects_with_a_reward_counts(said: str, score: Score) -> None:
    assert (await judged(lambda _: Turn(said)))[0] == score


@pytest.mark.parametrize(
    "said",
    [
        *("It was good.", '{"reward": 7}', '{"reward": "high"}', '{"reward": ', ""),
        *('{"reward": true}', '{"reward": 1e400}', f'{{"reward": {"9" * 400}}}', '{"a":' * 3000),
    ],
)
async def test_what_is_no_reward_is_no_score(said: str) -> None:
    with pytest.raises(ScoreError):
        await judged(lambda _: Turn(said))


async def test_a_judge_that_is_busy_is_asked_again_and_one_that_stays_so_is_given_up() -> None:
    turns = iter([Turn(fault=Fault.REFUSE), Turn('{"reward": 1}')])
    score, _ = await judged(lambda _: next(turns))
    assert score.value == 1
    asked: list[int] = []

    def busy(_: dict[str, Any]) -> Turn:
        asked.append(1)
        return Turn(fault=Fault.REFUSE)

    with pytest.raises(ScoreError, match="does not answer"):
        await judged(busy)
    assert len(asked) == RETRIES


async def test_a_question_that_is_refused_is_not_asked_again() -> None:
    asked: list[int] = []

    def refuses(_: dict[str, Any]) -> Turn:
        asked.append(1)
        return Turn(fault=Fault.OVERFLOW)

    with pytest.raises(ScoreError, match="refused with status 400"):
        await judged(refuses)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("given", "said", "step"),
    [
        (
            ["--judge", "localhost:9", "--judge-model", "m"],
            "--judge: it is no web address",
            "mosaic score",
        ),
        (["--judge", "http://127.0.0.1:9/v1"], "the judge has no model", "--judge-model"),
        (["--judge", "http://127.0.0.1:9/v1", "--judge-model", "m", "--timeout", "0s"], "--timeout: Input", "--help"),
        (["--judge", "http://me:secret@127.0.0.1:9/v1", "--judge-model", "m"], "does not answer", "Is it up?"),
    ],
)
def test_a_judge_that_cannot_be_asked_scores_nothing(tmp_path: Path, given: list[str], said: str, step: str) -> None:
    record(tmp_path)
    done = mosaic(tmp_path, "score", *given, "--database", f"sqlite:///{tmp_path}/mosaic.db")
    assert (done.returncode in (1, 2), said in done.stderr, step in done.stderr) == (True, True, True), done.stderr
    assert "secret" not in done.stderr
    assert done.stdout == ""
    unscored(tmp_path)


@pytest.mark.parametrize(
    ("end", "model", "said"),
    [("/v1", "other", "status 404: .*The model `other` does not exist"), ("", "policy", "status 404.*up to /v1")],
)
async def test_a_judge_that_refuses_is_asked_once_and_scores_nothing(
    tmp_path: Path, end: str, model: str, said: str
) -> None:
    record(tmp_path)
    engine = ScriptedEngine(lambda _: Turn('{"reward": 1}'))
    async with engine.serve() as url:
        given = ["--judge", url.removesuffix("/v1") + end, "--judge-model", model]
        where = ("--database", f"sqlite:///{tmp_path}/mosaic.db")
        done = await asyncio.to_thread(mosaic, tmp_path, "score", *given, *where)
        assert done.returncode == 1
        assert re.search(said, " ".join(done.stderr.split())), done.stderr
        unscored(tmp_path)
        good = ["--judge", url, "--judge-model", "policy"]
        done = await asyncio.to_thread(mosaic, tmp_path, "score", *good, *where)
        assert done.stdout.splitlines()[-1] == "1 scored, mean 1, 0 unscorable, 0 failed; 1 written", done.stderr
    assert [request["messages"][-1]["content"] == "Say OK." for request in engine.requests[-2:]] == [True, False]


ODD = {
    "no HTTP": [b"SSH-2.0-OpenSSH_9\r\n", End.FIN],
    "nothing": [End.FIN],
    "a status that is none": [b"HTTP/1.1 99 x\r\n\r\n", End.FIN],
    "cut off": [head("content-length: 999"), b"{", End.FIN],
    "chunks that are none": [head("transfer-encoding: chunked"), b"zz\r\n", End.FIN],
    "an endless header": [b"HTTP/1.1 200 OK\r\nx: " + b"a" * 70_000 + b"\r\n", End.FIN],
    "too deep": [whole(b"[" * 100_000), End.FIN],
    "no text": [whole(b"\xff\xfe{"), End.FIN],
    "a refusal that is cut off": [head("content-length: 999", status="400 Bad"), b"{", End.FIN],
    "no end": [head("content-length: 999"), b"{", End.HANG],
    "no object": [whole(b"5"), End.FIN],
    "too long": [head("connection: close"), b" " * (MAX_ANSWER + 1), End.FIN],
    "a lone surrogate": [whole(b'"\\ud83d"'), End.FIN],
}


@pytest.mark.parametrize("steps", ODD.values(), ids=ODD)
async def test_an_odd_answer_leaves_one_trajectory_unscored_and_says_why(tmp_path: Path, steps: Sequence[Step]) -> None:
    record(tmp_path, "odd-1", "run-2")
    good = whole(b'{"choices": [{"message": {"content": "{\\"reward\\": 1}"}}]}')
    store = Store(f"sqlite:///{tmp_path}/mosaic.db")
    async with RawEngine(lambda asked: steps if b"odd" in asked.body else [good]).serve() as url:
        judge = Judge(url, "policy", timeout_s=0.5)
        odd, fine = await asyncio.to_thread(score_closed, store, judge, ScoreConfig())
    store.close()
    assert (odd.reward, odd.kept, fine.reward, fine.kept) == (None, False, 1.0, True)
    assert "the judge" in str(odd.error)
    assert str(odd.error).encode()


async def test_a_judge_that_drips_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "RETRIES", 1)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head("content-length: 999"))
        with contextlib.suppress(OSError):
            while not reader.at_eof():
                writer.write(b" ")
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(), 0.05)
        writer.close()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        judge = Judge(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", "policy", timeout_s=0.3)
        with pytest.raises(ScoreError, match="does not answer: TimeoutError"):
            await asyncio.to_thread(judge.check)


async def test_a_redirect_takes_the_key_nowhere() -> None:
    engine = ScriptedEngine(lambda _: Turn('{"reward": 1}'))
    async with engine.serve() as elsewhere:
        moved = head(f"location: {elsewhere}/models", "content-length: 0", status="302 Found")
        async with RawEngine(lambda _: [moved, End.FIN]).serve() as url:
            with pytest.raises(ScoreError, match="refused with status 302"):
                await asyncio.to_thread(Judge(url, "policy", "secret").check)
    assert engine.headers == []


def record(folder: Path, *names: str) -> None:
    store = Store(f"sqlite:///{folder}/mosaic.db")
    for name in names or ("run-1",):
        store.record([Recording(name).call([user(f"the task of {name}")], assistant("done"))])
        store.end(name, TrajectoryState.CLOSED, "test")
    store.close()


def unscored(folder: Path) -> None:
    store = Store(f"sqlite:///{folder}/mosaic.db")
    (found,) = store.trajectories()
    assert (found.state, found.reward) == ("closed", None)
    assert store.counters().get("scorer_failures") is None
    store.close()


def test_a_judge_never_shows_its_key() -> None:
    assert "secret" not in repr(Judge("http://x/v1", "strict", "secret"))
