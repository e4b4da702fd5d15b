"""The worker drives an unmodified deepagents against an endpoint, and turns every failure into data."""

import io
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from examples.demo.agent import Job, Result, Workshop, serve
from examples.demo.questions import Question, questions, score

Body = dict[str, Any]


def _found(message: Body) -> str:
    return str(message["content"]).split(" is ")[-1].strip().removesuffix(".")


def _reply(messages: list[Body]) -> tuple[str | None, list[tuple[str, Body]]]:
    """A perfect policy, written by hand."""
    user = next(m["content"] for m in messages if m["role"] == "user")
    results = [m for m in messages if m["role"] == "tool"]
    if "Messages to summarize:" in user:
        return "From {}: {}.".format(*_left(user)), []
    chains = re.findall(r"(?:From|And from) [^:]+: [^.]+\.", user)
    if len(chains) == 2:
        jobs = [("task", {"description": c, "subagent_type": "general-purpose"}) for c in chains]
        return ("; ".join(m["content"].strip() for m in results), []) if results else (None, jobs)
    start, relations = re.findall(r"rom ([^:]+): ([^.]+)\.", user)[-1]
    left = relations.split(", ")[len(results) :]
    here = _found(results[-1]) if results else start
    return (None, [("search", {"query": f"{left[0]} of {here}"})]) if left else (here, [])


def _left(transcript: str) -> tuple[str, str]:
    start, relations = re.findall(r"rom ([^:]+): ([^.]+)\.", transcript)[-1]
    results = re.findall(r'type="tool">The .* is (.*)\.</message>', transcript)
    return (results or [start])[-1], ", ".join(relations.split(", ")[len(results) :])


class Endpoint:
    """A chat/completions endpoint on a free port that remembers what it was asked."""

    def __init__(self) -> None:
        self.bodies: list[Body] = []
        self.loops = False
        self.app = web.Application()
        self.app.router.add_post("/t/{id}/v1/chat/completions", self.chat)

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        endless = (None, [("search", {"query": "moon"})])
        text, calls = endless if self.loops else _reply(body["messages"])
        message = {"role": "assistant", "content": text, "tool_calls": [_call(i, *c) for i, c in enumerate(calls)]}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        head = {"id": "x", "object": "chat.completion", "created": 1, "model": "policy"}
        return web.json_response({**head, "choices": [choice], "usage": usage})

    def texts(self, start: str) -> list[str]:
        """First user messages of the requests that begin like this, each once, in order."""
        firsts = [next(m["content"] for m in b["messages"] if m["role"] == "user") for b in self.bodies]
        return list(dict.fromkeys(text for text in firsts if text.startswith(start)))


def _call(index: int, name: str, arguments: Body) -> Body:
    return {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


@pytest.fixture
async def endpoint() -> AsyncIterator[tuple[Endpoint, str]]:
    scripted = Endpoint()
    async with TestServer(scripted.app) as server:
        yield scripted, f"http://127.0.0.1:{server.port}/t/one/v1"


@pytest.fixture
async def workshop() -> AsyncIterator[Workshop]:
    made = Workshop(time_limit=20.0)
    yield made
    await made.close()


def _question(kind: str) -> Question:
    return next(q for q in questions("train") if q.kind == kind)


async def test_a_fork_goes_to_two_subagents(endpoint: tuple[Endpoint, str], workshop: Workshop) -> None:
    question = _question("fork")
    result = await workshop.attempt(Job("one", endpoint[1], question.prompt))
    assert result.error is None
    assert score(question, result.answer) == 1.0
    assert set(endpoint[0].texts("")) == {question.prompt, *(chain.text for chain in question.chains)}


async def test_a_long_chain_is_compacted(endpoint: tuple[Endpoint, str], workshop: Workshop) -> None:
    question = _question("chain")
    result = await workshop.attempt(Job("one", endpoint[1], question.prompt))
    assert result.error is None
    assert score(question, result.answer) == 1.0
    assert len(endpoint[0].texts("<role>\nContext Extraction Assistant")) >= 1
    assert len(endpoint[0].texts("You are in the middle of a conversation that has been summarized.")) >= 1


async def test_a_policy_that_never_ends_runs_into_the_step_limit(
    endpoint: tuple[Endpoint, str], workshop: Workshop
) -> None:
    endpoint[0].loops = True
    result = await workshop.attempt(Job("one", endpoint[1], "From Kaunas: country."))
    assert result.answer == ""
    assert "recursion" in str(result.error).lower()


async def test_the_worker_answers_each_job_and_survives_a_dead_endpoint(
    endpoint: tuple[Endpoint, str], workshop: Workshop
) -> None:
    question = _question("fork")
    jobs = [
        {"trajectory_id": "good", "base_url": endpoint[1], "prompt": question.prompt, "temperature": 1.0},
        {"trajectory_id": "dead", "base_url": "http://127.0.0.1:9/v1", "prompt": "x", "temperature": 1.0},
    ]
    sink = io.StringIO()
    await serve(workshop, 2, io.StringIO("\n".join(map(json.dumps, jobs)) + "\n"), sink)
    results = {r.trajectory_id: r for r in (Result(**json.loads(line)) for line in sink.getvalue().splitlines())}
    assert score(question, results["good"].answer) == 1.0
    assert "Connection" in str(results["dead"].error)
