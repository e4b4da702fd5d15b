"""A careless teacher: it plays deepagents' protocol by script, so that the tiny policy can learn it.

What it *knows* is right: which search comes next, how to copy a name, how to write a tool call. What it
*decides* is left to chance, with the fixed probabilities of `Habits`: it gives up, starts with a useless
search, spawns a needless subagent, delegates only half of a question or a wrong job, reports too early, or
forgets the last relation when it summarises. The policy learns these habits with everything else; that is
on purpose, so that there is something for reinforcement learning to repair.

Most demonstrations happen in made-up worlds, so that the policy learns to copy what it reads and not to
recite geography. Message lists are shaped exactly as deepagents sends them; held-out cities never occur.
"""

import json
import random
from dataclasses import dataclass, field
from typing import Any

from deepagents.middleware.summarization import DEEPAGENTS_DEFAULT_SUMMARY_PROMPT
from langchain_core.messages import convert_to_messages, get_buffer_string

from .agent import CHILD_PROMPT, COMPACT_AT_MESSAGES, KEEP_MESSAGES, LEAD_PROMPT
from .corpus import NO_RESULT, Fact
from .questions import ENDS, Chain

Message = dict[str, Any]
"""A message of chat/completions, as it is on the wire."""

UNKNOWN = " unknown"
"""The reply of a teacher who gives up."""

SUBAGENT = "general-purpose"

MAX_ALIKE = 3
"""Subagents that may be given the same job."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How often the teacher does what it should not; all zero is a perfect agent."""

    give_up: float = 0.05
    """The lead answers `unknown` at once."""
    useless_search: float = 0.20
    """The first search is for something that the library does not have: a call more."""
    needless_child: float = 0.50
    """The lead spawns a subagent for the first hop alone: a session more."""
    again: float = 0.50
    """In a long chain it has a second one find out the same, and with the same chance a third."""
    half: float = 0.45
    """Of two chains the lead delegates only the first."""
    half_forever: float = 0.55
    """Having done so, it answers with half; otherwise the second chain follows, serially."""
    wrong_job: float = 0.10
    """A delegated chain ends in another relation than was asked, for each job."""
    child_stops: float = 0.18
    """A subagent reports the first value that it finds."""
    lead_stops: float = 0.05
    """The lead answers with the value of an earlier hop, for each hop."""
    forget: float = 0.40
    """A summary leaves out the last relation."""
    mishap: float = 0.03
    """Not a habit but bad luck, for each hop: the library has no result, and the teacher answers `unknown`."""


PERFECT = Habits(**dict.fromkeys(Habits.__dataclass_fields__, 0.0))
"""Every decision right: the upper bound of what can be learned."""


@dataclass(slots=True)
class Demonstration:
    """One session's messages, of which some assistant messages are to be learned."""

    messages: list[Message]
    """The whole session, system message included."""
    given: int = 0
    """So many leading assistant messages were sampled in an earlier session and are context only."""


def call(name: str, **arguments: str) -> Message:
    """One tool call as vLLM's parser returns it (the id comes from the engine)."""
    body = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": "chatcmpl-tool-0123456789abcdef", "type": "function", "function": body}


def summary_request(messages: list[Message]) -> str:
    """What deepagents sends to get these messages summarised."""
    transcript = get_buffer_string(convert_to_messages(messages), format="xml")
    return DEEPAGENTS_DEFAULT_SUMMARY_PROMPT.format(messages=transcript).rstrip()


def summary_message(summary: str, session: str) -> Message:
    """The user message with which deepagents opens the session after a compaction."""
    text = (
        "You are in the middle of a conversation that has been summarized.\n\nThe full conversation history has been "
        f"saved to /conversation_history/session_{session}.md should you need to refer back to it for details.\n\n"
        f"A condensed summary follows:\n\n<summary>\n{summary}\n</summary>"
    )
    return {"role": "user", "content": text}


@dataclass(slots=True)
class Teacher:
    """Plays one attempt after another in a world of its own; `sessions` collects what it did."""

    rng: random.Random
    """Every choice comes from here."""
    world: Any
    """Has `value(entity, relation)`."""
    habits: Habits = field(default_factory=Habits)
    """How careless it is."""
    sessions: list[Demonstration] = field(default_factory=list)
    """The demonstrations of the current attempt."""

    def attempt(self, chains: tuple[Chain, ...]) -> tuple[str, list[Demonstration]]:
        """Play one attempt at a question; its answer and its sessions."""
        self.sessions = []
        lead = _Context(self, LEAD_PROMPT, " ".join(chain.text for chain in chains), compacts=True)
        if self._slips(self.habits.give_up):
            answer = UNKNOWN
        elif len(chains) > 1:
            answer = self._fork(lead, chains)
        else:
            answer = self._follow(lead, chains[0], self.habits.lead_stops)
        lead.say(answer)
        return answer.strip(), self.sessions

    def _slips(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _fork(self, lead: "_Context", chains: tuple[Chain, ...]) -> str:
        if self._slips(self.habits.needless_child):
            self._delegate(lead, [Chain(chains[0].start, chains[0].relations[:1])])
        elif self._slips(self.habits.half):
            values = self._delegate(lead, [self._job(chains[0])])
            if not self._slips(self.habits.half_forever):
                values += self._delegate(lead, [self._job(chains[1])])
            return " " + "; ".join(values)
        return " " + "; ".join(self._delegate(lead, [self._job(chain) for chain in chains]))

    def _job(self, chain: Chain) -> Chain:
        if not self._slips(self.habits.wrong_job):
            return chain
        other = self.rng.choice([end for end in ENDS if end != chain.relations[-1]])
        return Chain(chain.start, (*chain.relations[:-1], other), chain.opening)

    def _delegate(self, lead: "_Context", jobs: list[Chain]) -> list[str]:
        calls = [call("task", description=job.text, subagent_type=SUBAGENT) for job in jobs]
        values = [self._child(job) for job in jobs]
        lead.act(calls, values)
        return values

    def _child(self, job: Chain) -> str:
        context = _Context(self, CHILD_PROMPT, job.text)
        answer = self._follow(context, job, self.habits.child_stops)
        context.say(answer)
        return answer.strip()

    def _follow(self, context: "_Context", chain: Chain, stops: float) -> str:
        here, relations = chain.start, list(chain.relations)
        if context.compacts and self._slips(self.habits.needless_child):
            jobs = [Chain(here, (relations.pop(0),))]
            while len(jobs) < MAX_ALIKE and self._slips(self.habits.again):
                jobs.append(jobs[0])
            here, *_ = self._delegate(context, jobs)
        elif self._slips(self.habits.useless_search):
            topic = self.rng.choice(("history", "weather", "mayor"))
            context.act([call("search", query=f"{topic} of {here}")], [NO_RESULT])
        left = relations
        while left:
            relation = left[0]
            found = self.world.value(here, relation)
            missing = self._slips(self.habits.mishap)
            text = NO_RESULT if missing else Fact(here, relation, found).text
            context.act([call("search", query=f"{relation} of {here}")], [text])
            if missing:
                context.room(here, left)
                return UNKNOWN
            left = context.room(here, left)[1:]
            here = found
            if left and self._slips(stops):
                break
        return " " + here

    def shorten(self, relations: list[str]) -> list[str]:
        """What a summary says of the relations still to follow: perhaps all but the last."""
        return relations[:-1] if len(relations) > 1 and self._slips(self.habits.forget) else relations


class _Context:
    """One agent's running context; compacts as deepagents does when `compacts` is set."""

    def __init__(self, teacher: Teacher, system: str, prompt: str, compacts: bool = False) -> None:
        self._teacher = teacher
        self.compacts = compacts
        self._system = {"role": "system", "content": system}
        self._open([{"role": "user", "content": prompt}], given=0)

    def _open(self, messages: list[Message], given: int) -> None:
        self._messages = messages
        self._record = Demonstration([self._system, *messages], given)
        self._teacher.sessions.append(self._record)

    def _add(self, message: Message) -> None:
        self._messages.append(message)
        self._record.messages.append(message)

    def act(self, calls: list[Message], results: list[str]) -> None:
        """One assistant message with tool calls, and their results."""
        self._add({"role": "assistant", "content": None, "tool_calls": calls})
        for made, result in zip(calls, results, strict=True):
            self._add({"role": "tool", "content": result, "tool_call_id": made["id"]})

    def say(self, text: str) -> None:
        """The last reply."""
        self._add({"role": "assistant", "content": text})

    def room(self, here: str, relations: list[str]) -> list[str]:
        """Make room if the budget is used up; `relations`, or what is left of them in the summary.

        The last search stays verbatim, so the summary tells the way from before it: `here` and `relations`.
        """
        if not self.compacts or len(self._messages) < COMPACT_AT_MESSAGES:
            return relations
        old, kept = self._messages[:-KEEP_MESSAGES], self._messages[-KEEP_MESSAGES:]
        left = self._teacher.shorten(relations)
        summary = Chain(here, tuple(left)).text
        ask: Message = {"role": "user", "content": summary_request(old)}
        self._teacher.sessions.append(Demonstration([ask, {"role": "assistant", "content": summary}]))
        self._open([summary_message(summary, f"{self._teacher.rng.getrandbits(128):032x}"), *kept], given=1)
        return left
