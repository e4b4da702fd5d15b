"""A store as weeks of use would leave it: attempts at a few questions, with subagents and compactions, rewards, jobs.

Tokens are words, so that a strip of them can be read; `words` tells what an id says, as the engine would.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from aiohttp import web
from sqlalchemy import text

from mosaic.capture import CallStatus, CapturedCall, Choice
from mosaic.records import IdArray
from mosaic.store import Store, trained_tokens
from mosaic.store.trained_tokens import TrainedTokens
from tests.engine import ScriptedEngine
from tests.playbook import Message, Recording, assistant, result, system, user

QUESTIONS = (
    "Which sea does the home port of the research ship Meridian lie at?",
    "Which is larger, the province around Oran or the one around Bari?",
    "Who drew the map that the harbour office of Rabat still uses?",
    "How many bridges cross the river of the town where the tram of 1906 still runs?",
    "Which of the three northern lighthouses was lit first?",
)
HOSTILE = "<img src=x onerror=alert(1)><script>alert(document.cookie)</script>{{ 7*7 }}"
"""What an agent may say to whoever looks at it."""
ROLE = system("You look things up. Use `search` for facts and `task` to send a subagent out; answer in one sentence.")
HELPER = system("You help with one part of a question. Answer in one sentence.")
FIRST = 1000
"""Ids below are bytes."""
_WORD = re.compile(r"\s?\w+|\s?[^\w\s]|\s")


class Vocabulary:
    """Words by id, each new one with the next id."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def ids(self, text: str) -> list[int]:
        """A text as ids."""
        return [self._ids.setdefault(word, len(self._ids) + FIRST) for word in _WORD.findall(text)]

    def said(self, ids: list[int]) -> str:
        """Ids as a text."""
        words = {number: word for word, number in self._ids.items()}
        return "".join(chr(one) if one < FIRST else words.get(one, "�") for one in ids)


@dataclass
class ReadingEngine(ScriptedEngine):
    """An engine that tells what ids say: those of the story, and bytes, which it samples itself."""

    words: Vocabulary = field(default_factory=Vocabulary)

    def _more_routes(self, app: web.Application) -> None:
        app.router.add_post("/detokenize", self._detokenize)

    async def _detokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"prompt": self.words.said((await request.json())["tokens"])})


class Story(Recording):
    """Calls of one attempt, at times of its own."""

    def __init__(self, trajectory_id: str, at: float, words: Vocabulary, luck: random.Random) -> None:
        super().__init__(trajectory_id, "research-agent/2.1")
        self._words, self._luck = words, luck
        self._known: dict[int, tuple[Message, IdArray]] = {}
        self.now = at

    def _rendered(self, message: Message) -> IdArray:
        known = self._known.get(id(message))
        if known is None:
            ids = self._words.ids(f"\n{message['role']}\n{_said(message)}")
            known = self._known[id(message)] = message, np.asarray(ids, np.int32)
        return known[1]

    def says(self, messages: list[Message], reply: Message, tools: str = "", **changes: Any) -> CapturedCall:
        """One call; it takes about as long as its tokens do."""
        prompt = np.concatenate(
            [*map(self._rendered, messages), np.asarray(self._words.ids("\nassistant\n"), np.int32)]
        )
        ids = self._words.ids(_said(reply))
        # Most tokens are certain, some are not.
        logprobs = [-(self._luck.random() ** 5) * 5 for _ in ids]
        start, first = self.now, self.now + 0.15 + self._luck.random() / 4
        self.now = first + 0.025 * len(ids)
        choice = Choice(
            0,
            reply,
            "tool_calls" if reply.get("tool_calls") else "stop",
            np.asarray(ids, np.int32),
            np.asarray(logprobs, np.float32),
        )
        times = {
            "messages": tuple(messages),
            "started_at": start,
            "first_byte_at": first,
            "ended_at": self.now,
            "streamed": True,
        }
        made = self.call([], reply, tools)
        params = {"model": "policy", "temperature": 1.0, "tools": [TOOLS[name] for name in tools.split()]}
        return replace(
            made,
            **{
                **times,
                "choices": (choice,),
                "prompt_ids_P": prompt,
                "params": params,
                **changes,
            },
        )


TOOLS: Mapping[str, Any] = {
    name: {"type": "function", "function": {"name": name, "description": said, "parameters": schema}}
    for name, said, schema in (
        ("search", "Search the library.", {"type": "object", "properties": {"query": {"type": "string"}}}),
        ("task", "Send a subagent out.", {"type": "object", "properties": {"description": {"type": "string"}}}),
    )
}


def _said(message: Message) -> str:
    calls = "".join(f"\n{c['function']['name']} {c['function']['arguments']}" for c in message.get("tool_calls") or ())
    return f"{message.get('content') or ''}{calls}"


def attempt(story: Story, tag: str, question: str, *, delegates: int, condenses: bool) -> list[CapturedCall]:
    """One attempt: searches, sends subagents out, condenses its context when it is told to, and answers."""
    history: list[Message] = [ROLE, user(question)]
    calls = []
    for turn in range(2):
        query = f"{question.split()[-1 - turn].strip('?')} {['archive', 'register'][turn]}"
        asked = assistant(None, (f"s-{tag}-{turn}", "search", f'{{"query": "{query}"}}'))
        calls.append(story.says(list(history), asked, "search task"))
        history += [asked, result(f"s-{tag}-{turn}", f"Volume {turn + 3}, page {40 + turn}: see also {query}.")]
    if delegates:
        calls += _delegated(story, tag, history, delegates)
    if condenses:
        transcript = "\n".join(str(m) for m in history)
        known = f"Wanted: {question} Known: volume 3 names the port, volume 4 the province ({tag})."
        calls.append(story.says([user(f"Summarize this conversation:\n{transcript}")], assistant(known)))
        history = [ROLE, user(f"The conversation was condensed.\n<summary>\n{known}\n</summary>")]
    calls.append(story.says(list(history), assistant(f"It is the one named on page {len(tag) + 40}."), "search task"))
    return calls


def _delegated(story: Story, tag: str, history: list[Message], number: int) -> list[CapturedCall]:
    parts = [f"part {n + 1} of {tag}: find what page {41 + n} says" for n in range(number)]
    asked = assistant(None, *((f"t-{tag}-{n}", "task", f'{{"description": "{p}"}}') for n, p in enumerate(parts)))
    calls = [story.says(list(history), asked, "search task")]
    history.append(asked)
    for n, part in enumerate(parts):
        answer = f"Page {41 + n} says that the office moved in 18{70 + n} ({tag})."
        calls.append(story.says([HELPER, user(part)], assistant(answer), "search"))
        history.append(result(f"t-{tag}-{n}", answer))
    return calls


def told(store: Store, words: Vocabulary, start: float, rounds: int = 5, attempts: int = 4) -> None:
    """The whole story: in each round every question is attempted, most attempts are scored, a job trains on them."""
    luck = random.Random(8)
    at = start
    for number in range(rounds):
        rewards: dict[str, float] = {}
        for q, question in enumerate(QUESTIONS):
            for a in range(attempts):
                tag = f"{number}{q}{a}"
                story = Story(f"run-{number + 1}-{q + 1}{'abcdefgh'[a]}", at, words, luck)
                store.record(attempt(story, tag, question, delegates=luck.choice((0, 0, 1, 2)), condenses=a % 2 == 1))
                at = story.now + 30 + 60 * luck.random()
                if number < rounds - 1 or a < attempts - 1:
                    won = luck.random() < 0.25 + 0.6 * number / rounds
                    rewards[f"run-{number + 1}-{q + 1}{'abcdefgh'[a]}"] = float(won)
        for trajectory_id, reward in rewards.items():
            store.reward(trajectory_id, reward, "score.py")
        if number < rounds - 1:
            _train(store, number, rewards, luck)
            _live_since(store, number + 1, at)
            at += 60
    hostile = Story("run-hostile", at, words, luck)
    store.record([hostile.says([ROLE, user(HOSTILE)], assistant(HOSTILE, ("h-1", "search", f'{{"q": "{HOSTILE}"}}')))])
    broken = Story("run-broken", at + 5, words, luck)
    cut = {"status": CallStatus.ABORTED, "inexact_reason": "call_aborted", "error": "the client left"}
    store.record([broken.says([ROLE, user(QUESTIONS[0])], assistant("It is the"), "search", **cut)])


def _train(store: Store, number: int, rewards: Mapping[str, float], luck: random.Random) -> None:
    job = store.start_job({"credit": "mosaic"})
    version = store.new_version(f"var/checkpoints/{job}", job)
    store.version_live(version)
    advantages = {
        session.session_id: (2 * reward - 1) * (0.4 + luck.random() / 2)
        for trajectory_id, reward in rewards.items()
        for session in store.trajectory(trajectory_id).sessions
    }
    said = [
        TrainedTokens(call.call_id, 0, call.samples[0].logprobs_T - np.float32(0.01))
        for trajectory_id in rewards
        for session in store.trajectory(trajectory_id).sessions
        for call in session.calls
    ]
    with store.database.writing() as connection:
        trained_tokens.keep(connection, job, said)
    store.finish_training(job, version, rewards, advantages, {"gap_after": 0.0004})
    figures = {
        "groups_trained": 2,
        "trajectories_trained": len(rewards),
        "tokens_trained": 900 * len(rewards),
        "mean_ratio": 1 + luck.gauss(0, 0.004),
        "entropy": 1.4 - 0.15 * number,
        "clip_fraction": 0.01 + luck.random() / 50,
        "logprob_gap_mean": 0.0004 + luck.random() / 5000,
        "train_seconds": 12.5,
        "publish_pause_seconds": 0.06 + luck.random() / 50,
    }
    store.end_job(job, metrics=figures)


def _live_since(store: Store, version: int, when: float) -> None:
    """Say of a version, and of the job that made it, that all this was back then."""
    with store.database.writing() as connection:
        said = {"at": when, "version": version}
        connection.execute(text("update policy_versions set live_at = :at where version = :version"), said)
        job = "update jobs set created_at = :at - 20, ended_at = :at where policy_to = :version"
        connection.execute(text(job), said)


def long(words: Vocabulary, trajectory_id: str, calls: int, at: float) -> list[CapturedCall]:
    """One session of many calls, each with a few messages more than the one before."""
    story = Story(trajectory_id, at, words, random.Random(1))
    history: list[Message] = [ROLE, user(f"Read the library from end to end ({trajectory_id}).")]
    found = []
    for turn in range(calls):
        reply = assistant(None, (f"l-{trajectory_id}-{turn}", "search", f'{{"query": "shelf {turn}"}}'))
        found.append(story.says(history[:], reply, "search"))
        history += [reply, result(f"l-{trajectory_id}-{turn}", f"Shelf {turn} holds {turn % 7} volumes.")]
    return found
