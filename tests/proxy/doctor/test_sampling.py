"""Faults in what an engine returns, in its template and in its ids of tool calls."""

from pathlib import Path
from typing import Any

import pytest

from mosaic.errors import EngineError
from proxy.doctor import Level, sampling
from tests.engine import Fault, Turn
from tests.engine.tokens import TokenEngine
from tests.proxy.doctor.looking import LOOKS_UP, Administered, all_of, asked, hello, only, settings_of


async def test_ids_that_are_lost_in_streams_alone(tmp_path: Path) -> None:
    def loses(body: dict[str, Any]) -> Turn:
        lost = body.get("stream") and not body.get("tools")
        return Turn("Hello there", fault=Fault.LOST_IDS if lost else Fault.NONE)

    async with Administered(loses).serve() as url:
        seen = await asked(settings_of(tmp_path, url), "capture")
    only(seen, Level.WRONG, "do not arrive, streamed: logprobs differ", step="vLLM 0.32")
    assert [one.level for one in seen] == [Level.OK, Level.WRONG, Level.OK]


async def test_a_call_that_is_refused(tmp_path: Path) -> None:
    async with Administered(lambda _: Turn(fault=Fault.REFUSE)).serve() as url:
        seen = await asked(settings_of(tmp_path, url), "capture")
    assert [one.level for one in seen] == [Level.WRONG, Level.WRONG, Level.WARNING]
    assert all("503 busy" in one.what for one in seen)


async def test_tools_for_which_the_engine_has_no_parser(tmp_path: Path) -> None:
    said = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    async with Administered(tools_error=said).serve() as url:
        settings = settings_of(tmp_path, url)
        only(await asked(settings, "capture"), Level.WARNING, said, step="--tool-call-parser")
        only(await asked(settings, "template"), Level.NOTE, f"a tool's result is not known: {said}")
        only(await asked(settings, "tool ids"), Level.NOTE, f"is not known: {said}", step="--tool-call-parser")


async def test_an_engine_that_never_answers_ends_the_check_and_not_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "LONG_S", 0.2)
    async with Administered(lambda _: Turn(fault=Fault.HANG)).serve() as url:
        with pytest.raises(EngineError, match="does not answer: timed out"):
            await asked(settings_of(tmp_path, url), "capture")
        seen = await all_of(settings_of(tmp_path, url))
    only([one for one in seen if one.check == "capture"], Level.WRONG, "timed out")
    assert [one.level for one in seen if one.check == "keys"] == [Level.OK]


async def test_a_paused_engine_is_not_asked_for_tokens(tmp_path: Path) -> None:
    engine = Administered(paused=True)
    async with engine.serve() as url:
        assert await asked(settings_of(tmp_path, url), "capture") == []
    assert engine.requests == []


async def test_a_template_that_opens_reasoning_is_not_append_only(tmp_path: Path) -> None:
    async with TokenEngine(hello, opens_reasoning=True).serve() as url:
        seen = await asked(settings_of(tmp_path, url), "template")
        assert "is not append-only: with a reply" in seen[0].what
        assert (seen[0].level, "exact" in seen[0].next_step) == (Level.WARNING, True)
        exact = await asked(settings_of(tmp_path, url, fidelity="exact"), "template")
        assert [one.level for one in exact if "is not append-only" in one.what] == [Level.NOTE, Level.NOTE]


async def test_a_template_that_drops_reasoning_gives_other_ids_back(tmp_path: Path) -> None:
    def thinks(body: dict[str, Any]) -> Turn:
        return LOOKS_UP if body.get("tool_choice") else Turn("Hello", reasoning="They want a greeting.")

    async with TokenEngine(thinks, drops_reasoning=True).serve() as url:
        seen = await asked(settings_of(tmp_path, url), "template")
    only(seen, Level.WARNING, "other ids than were sampled", step="exact")


async def test_a_reply_that_the_engine_does_not_take_back(tmp_path: Path) -> None:
    def refuses(body: dict[str, Any]) -> Turn:
        comes_back = any(m.get("content") == "Hello" for m in body["messages"] if m["role"] == "assistant")
        return Turn(fault=Fault.OVERFLOW) if comes_back else hello(body)

    async with Administered(refuses).serve() as url:
        seen = await asked(settings_of(tmp_path, url), "template")
    only(seen, Level.NOTE, "whether a reply comes back as it was sampled is not known: This model's maximum context")


async def test_ids_of_tool_calls_that_are_counted(tmp_path: Path) -> None:
    async with TokenEngine(hello, counts_ids=True).serve() as url:
        seen = await asked(settings_of(tmp_path, url), "tool ids")
    only(seen, Level.NOTE, "repeats ids of tool calls (functions.look_up:0)")


async def test_a_model_that_calls_no_tool(tmp_path: Path) -> None:
    async with Administered(lambda _: Turn("No.")).serve() as url:
        only(await asked(settings_of(tmp_path, url), "tool ids"), Level.NOTE, "called no tool")


async def test_tool_calls_without_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with TokenEngine(hello).serve() as url:
        monkeypatch.setattr(TokenEngine, "_id", lambda *_: "")
        seen = await asked(settings_of(tmp_path, url), "tool ids")
    only(seen, Level.WARNING, "gives tool calls no ids", step="--tool-call-parser")
