"""The demo's agent: deepagents as it comes from PyPI, in a worker process that works on many attempts at once.

Nothing here tells the proxy about sessions: no hook, callback or header, only the base URL of each attempt.
What is set is deepagents' own public configuration: a search tool, one subagent, and a summarisation
middleware with a small budget. `python -m examples.demo.agent --concurrency 16` reads one JSON job a line
from stdin and writes one JSON result a line to stdout as attempts finish. A confused policy ends in an
error string (step limit, time-out), never in a crash.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, dataclass
from typing import Any, TextIO

os.environ.setdefault("LANGSMITH_TRACING", "false")
os.environ.setdefault("LANGCHAIN_TRACING_V2", "false")

import httpx2
from deepagents import create_deep_agent
from deepagents.backends import StateBackend
from deepagents.middleware import FilesystemMiddleware
from deepagents.middleware.summarization import SummarizationMiddleware
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import BaseTool, tool
from langchain_openai import ChatOpenAI

from .corpus import Corpus

LEAD_PROMPT = """You are the lead researcher.
Answer the question by following each chain of relations in the library, one search per hop. Hand independent
chains to general-purpose subagents with the task tool, in parallel. Reply with the last values only, joined by "; "."""

CHILD_PROMPT = """You are a research assistant.
Follow the chain of relations that you are given in the library, one search per hop. Reply with the last value only."""

MAX_TOKENS = 80
"""The longest reply of the policy, in tokens."""

STEP_LIMIT = 60
"""LangGraph's recursion limit for an attempt's lead (about two steps a call)."""

COMPACT_AT_MESSAGES = 7
"""The lead's context budget: with this many messages deepagents compacts."""

KEEP_MESSAGES = 2
"""What compaction keeps verbatim: the last search and its result."""


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt to make."""

    trajectory_id: str
    """Handed back with the result."""
    base_url: str
    """OpenAI-compatible endpoint of this attempt, ending in `/v1`."""
    prompt: str
    """The user's message."""
    temperature: float = 1.0
    """Sampling temperature of every call."""


@dataclass(frozen=True, slots=True)
class Result:
    """How an attempt ended."""

    trajectory_id: str
    """The job's."""
    answer: str
    """The lead's last reply; empty when there is none."""
    error: str | None
    """Why there is no answer, or None."""
    seconds: float
    """Wall time of the attempt."""


def count_tokens(messages: Iterable[Any], **_: Any) -> int:
    """A cheap estimate: a token per four characters (deepagents asks before every call)."""
    return sum(len(str(m.content)) + len(str(getattr(m, "tool_calls", ""))) for m in messages) // 4


def search_tool(corpus: Corpus) -> BaseTool:
    """The search over `corpus` as a LangChain tool."""

    @tool
    async def search(query: str) -> str:
        """Search the library for one fact, for example: capital of France."""
        return corpus.search(query)

    return search


class Workshop:
    """Builds one agent per attempt over one shared HTTP client and one shared corpus."""

    def __init__(self, model: str = "policy", api_key: str = "demo", time_limit: float = 120.0) -> None:
        self._model = model
        self._api_key = api_key
        self._time_limit = time_limit
        self._search = search_tool(Corpus())
        limits = httpx2.Limits(max_connections=256, max_keepalive_connections=256, keepalive_expiry=4.0)
        self._http = httpx2.AsyncClient(limits=limits, timeout=time_limit, trust_env=False)
        self._sync_http = httpx2.Client(trust_env=False)

    def agent(self, job: Job) -> Any:
        """A fresh deepagents graph whose calls go to the job's base URL."""
        model = ChatOpenAI(
            model=self._model,
            base_url=job.base_url,
            api_key=self._api_key,
            temperature=job.temperature,
            max_tokens=MAX_TOKENS,
            max_retries=1,
            use_responses_api=False,
            http_async_client=self._http,
            http_client=self._sync_http,
        )
        backend = StateBackend()
        files: Any = FilesystemMiddleware(backend=backend, tools=["read_file"])
        budget = SummarizationMiddleware(
            model,
            backend=backend,
            trigger=("messages", COMPACT_AT_MESSAGES),
            keep=("messages", KEEP_MESSAGES),
            token_counter=count_tokens,
            trim_tokens_to_summarize=None,
        )
        assistant: Any = {
            "name": "general-purpose",
            "description": "Follows one chain of relations and reports its last value.",
            "system_prompt": CHILD_PROMPT,
            "middleware": [files],
        }
        return create_deep_agent(
            model=model,
            tools=[self._search],
            system_prompt=LEAD_PROMPT,
            middleware=[files, budget],
            subagents=[assistant],
            backend=backend,
        )

    async def attempt(self, job: Job) -> Result:
        """Work on one job; every failure becomes the result's `error`."""
        start = time.monotonic()
        answer, error = "", None
        try:
            state = await asyncio.wait_for(self._invoke(job), self._time_limit)
            answer = final_answer(state["messages"])
        except Exception as failure:  # noqa: BLE001  (the boundary: a failed attempt is data, whatever broke inside)
            error = f"{type(failure).__name__}: {failure}"[:500]
        return Result(job.trajectory_id, answer, error, round(time.monotonic() - start, 3))

    async def _invoke(self, job: Job) -> Any:
        request = {"messages": [{"role": "user", "content": job.prompt}]}
        return await self.agent(job).ainvoke(request, {"recursion_limit": STEP_LIMIT})

    async def close(self) -> None:
        """Close the shared connections."""
        await self._http.aclose()
        self._sync_http.close()


def final_answer(messages: list[BaseMessage]) -> str:
    """The text of the last reply, stripped."""
    last = messages[-1] if messages else None
    return last.text.strip() if isinstance(last, AIMessage) else ""


async def _lines(stream: TextIO) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, stream.readline):
        yield line


async def serve(workshop: Workshop, concurrency: int, source: TextIO, sink: TextIO) -> None:
    """Work on the jobs of `source` (JSON lines), at most `concurrency` at once, until it ends."""
    gate = asyncio.Semaphore(concurrency)

    async def work(job: Job) -> None:
        try:
            result = await workshop.attempt(job)
        finally:
            gate.release()
        sink.write(json.dumps(asdict(result)) + "\n")
        sink.flush()

    async with asyncio.TaskGroup() as tasks:
        async for line in _lines(source):
            if line.strip():
                await gate.acquire()
                tasks.create_task(work(Job(**json.loads(line))))


def main() -> None:
    """Run the worker until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, default=16, help="attempts at once")
    parser.add_argument("--model", default="policy", help="model name in the requests")
    parser.add_argument("--api-key", default="demo", help="sent as the bearer token")
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds per attempt")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")

    async def run() -> None:
        workshop = Workshop(args.model, args.api_key, args.time_limit)
        try:
            await serve(workshop, args.concurrency, sys.stdin, sys.stdout)
        finally:
            await workshop.close()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())


if __name__ == "__main__":
    main()
