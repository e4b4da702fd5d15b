"""Playbooks of context compaction: with the prefix or with a transcript, in one to three calls, twice, in a child."""

from typing import Any

from tests.lineage.corpus import identities
from tests.lineage.corpus.sessions import failed
from tests.lineage.corpus.stage import Agent, Play, Rewrite, reply

FACTS = "The task is to count the boats and name their owners. The quay and the slip are done; the mole is left."


def transcript(agent: Agent, history: list[dict[str, Any]] | None = None, *, mark: str = "#") -> str:
    """The history, or a part of it, as text, with calls and results rendered."""
    rounds = []
    for m in agent.history if history is None else history:
        text = m["content"] if isinstance(m["content"], str) else ""
        calls = [f"{c['function']['name']}({c['function']['arguments']})" for c in m.get("tool_calls", ())]
        rounds.append(f"{mark} {m['role'].upper()}\n{' '.join([text, *calls])}")
    return "\n".join(rounds)


def sum_up(agent: Agent, text: str = FACTS, *, ask: str, prefix: bool, system: str | None = None) -> str:
    """The call that writes the summary: the agent's own history goes before it, or nothing."""
    before = agent.history if prefix else []
    said = agent.play.say(text)
    messages = [*before, {"role": "user", "content": ask}]
    agent.sends(
        reply(said), messages=messages, tools="", system=agent.system if system is None else system, summary=True
    )
    return said


def prefix_with_tail(play: Play) -> None:
    """The summary is asked for inside the conversation, tools and all; the last round is kept behind it."""
    clerk = play.agent(ids=identities.claude).hears(play.task).works("quay", "slip")
    compact_with_tail(clerk, "after").works("mole").says("There are four boats.")


def compact_with_tail(clerk: Agent, session: str) -> Agent:
    kept = clerk.history[-2:]
    asked = {"role": "user", "content": "Your context is full. Summarize this conversation in detail; call no tools."}
    text = clerk.play.say(FACTS)
    written = f"<analysis>\nI look back.\n</analysis>\n<summary>\n{text}\n</summary>"
    clerk.sends(reply(written), messages=[*clerk.history[:-2], asked], summary=True)
    after = clerk.compacted(session)
    after.hears("The tide is low.", f"This session continues an earlier one that ran out of room. Summary:\n{text}")
    after.history += kept
    return after


def tools_dropped(play: Play) -> None:
    """The summary is asked for at the end of the conversation without tools; user texts are kept before it."""
    clerk = play.agent(ids=identities.codex).hears(play.task).works("quay", "slip")
    clerk.hears("CONTEXT CHECKPOINT COMPACTION. Write a handover for whoever goes on.")
    said = play.say(FACTS)
    clerk.sends(reply(said), tools="", summary=True)
    after = clerk.compacted("after")
    after.hears(play.task).hears(f"Another model worked on this before and left this handover:\n{said}")
    after.works("mole").says("There are four boats.")


def swapped_system(play: Play) -> None:
    """Another system text asks for a snapshot; an answer that nobody sampled is fused with the kept call."""
    clerk = play.agent(system="You are a clerk at a terminal.").hears(play.task).works("quay", "slip")
    kept = clerk.history[-2:]
    ask = "First reason in a scratchpad. Then generate the <state_snapshot>."
    said = f"<scratchpad>hm</scratchpad>\n<state_snapshot>\n{play.say(FACTS)}\n</state_snapshot>"
    clerk.sends(
        reply(said),
        messages=[*clerk.history[:-2], {"role": "user", "content": ask}],
        system="You compress chat histories into snapshots.",
        tools="",
        summary=True,
    )
    after = clerk.compacted("after").hears(said)
    fused = {**kept[0], "content": f"Understood, thank you for the context.\n{kept[0]['content']}"}
    after.history += [fused, kept[1]]
    after.works("mole").says("There are four boats.")


def assistant_summary(play: Play) -> None:
    """A transcript in one message; the summary comes back as the assistant's own words."""
    clerk = play.agent(ids=identities.opencode).hears(play.task).works("quay", "slip")
    ask = f"Write the summary of:\n<conversation>\n{transcript(clerk)}\n</conversation>"
    said = sum_up(clerk, ask=ask, prefix=False, system="You are a context summarization agent.")
    after = clerk.compacted("after").hears("What did we do so far?")
    after.history.append(reply(said))
    after.hears("Go on if there is something left to do, else stop.").works("mole").says("There are four boats.")


def transcript_with_tail(play: Play) -> None:
    """A transcript without a system text; the newest rounds stay behind the summary."""
    clerk = play.agent().hears(play.task).works("quay", "slip")
    compact_by_transcript(clerk, "after").works("mole").says("There are four boats.")


def compact_by_transcript(clerk: Agent, session: str) -> Agent:
    kept = clerk.history[-2:]
    ask = f"Extract the most important context from this conversation:\n{transcript(clerk, mark='**')}"
    said = sum_up(clerk, ask=ask, prefix=False, system="")
    after = clerk.compacted(session)
    after.hears(f"You are in the midst of a conversation that was summarized:\n<summary>\n{said}\n</summary>")
    after.history += kept
    return after


def summary_in_first_message(play: Play) -> None:
    """The task stays where it is; the summary becomes a second block of the first user message."""
    clerk = play.agent(ids=identities.openhands).hears(play.task).works("quay", "slip", "shed")
    ask = f"<EVENT id=1>\n{transcript(clerk)}\n</EVENT>\nSummarize these events."
    said = sum_up(clerk, ask=ask, prefix=False, system="You maintain a context-aware state summary of an agent.")
    kept = clerk.history[-4:]
    after = clerk.compacted("after").hears(play.task, said)
    after.history += kept
    after.works("mole").says("There are four boats.")


def transcript_in_system(play: Play) -> None:
    """The transcript stands in the system text; a fixed answer follows the summary, then the last user message."""
    clerk = play.agent(ids=identities.goose).hears(play.task).works("quay", "slip")
    system = f"Summarize conversations with care. The conversation:\n{transcript(clerk)}"
    ask = "Please summarize the conversation history provided in the system prompt."
    said = sum_up(clerk, ask=ask, prefix=False, system=system)
    after = clerk.compacted("after").hears(said)
    after.history.append(reply("I will go on from this summary and not mention it."))
    after.hears(play.task).works("mole").says("There are four boats.")


def fresh_start(play: Play) -> None:
    """Calls are rendered as text before the condensing request; afterwards there is the summary alone."""
    clerk = play.agent(tools="look count new_task").hears(play.task).works("quay", "slip")
    rendered = [{"role": "user" if m["role"] != "assistant" else "assistant", "content": ""} for m in clerk.history]
    for m, shown in zip(clerk.history, rendered, strict=True):
        calls = "".join(f"\n[Tool: {c['function']['name']}]" for c in m.get("tool_calls", ()))
        shown["content"] = f"{m['content']}{calls}"
    said = play.say(FACTS)
    clerk.sends(
        reply(said),
        messages=[*rendered, {"role": "user", "content": "Condense the conversation so far into a summary."}],
        system="You are a helpful assistant that condenses conversations.",
        tools="",
        summary=True,
    )
    after = clerk.compacted("after").hears(f"## Conversation Summary\n{said}")
    after.works("mole").says("There are four boats.")


def three_calls(play: Play) -> None:
    """Summary, questions of a successor who knows only that, answers; all of it in text, without tools."""
    clerk = play.agent(tools="", system="").hears(f"You work in a terminal.\n{play.task}")
    for number in range(3):
        clerk.says(f'{{"plan": "look", "commands": ["ls pier{number}"]}}').strip()
        clerk.hears(f"New output:\n$ ls pier{number}\nrope ledger")
    first = clerk.history[0]
    del clerk.history[-1]
    clerk.hears("You are about to hand off your work to another AI agent. Write a comprehensive summary.")
    summary = clerk.says(FACTS, summary=True)
    ask = (
        f"You are picking up work from a previous AI agent.\nTask: {play.task}\nSummary: {summary}\nAsk your questions."
    )
    questions = play.say("1. Which pier was the last? 2. Who keeps the ledger?")
    clerk.sends(reply(questions), messages=[{"role": "user", "content": ask}], summary=True)
    clerk.hears(f"The next agent has a few questions for you:\n{questions}")
    answers = clerk.says("1. The second. 2. The cooper.", summary=True)
    after = clerk.compacted("after")
    after.history += [first, {"role": "user", "content": ask}, reply(questions)]
    after.hears(f"Here are the answers the other agent provided.\n{answers}\nGo on with the task.")
    after.says('{"plan": "look", "commands": ["ls pier3"]}')
    after.hears("New output:\n$ ls pier3\nrope").says('{"plan": "done", "complete": true}')


def verified(play: Play) -> None:
    """A snapshot, then a second call that checks it and writes it again; the framework makes its own call ids."""

    def own(messages: list[dict[str, object]], _made: int) -> list[dict[str, object]]:
        for m in messages:
            m.pop("tool_call_id", None)
            if isinstance(calls := m.get("tool_calls"), list):
                m["tool_calls"] = [{k: v for k, v in c.items() if k != "id"} for c in calls]
        return messages

    rewrite: Rewrite = own
    clerk = play.agent(rewrite=rewrite).hears(play.task).works("quay", "slip")
    ask = {"role": "user", "content": "Generate the <state_snapshot> of this conversation."}
    draft = f"<state_snapshot>\n{play.say(FACTS)}\n</state_snapshot>"
    asked = [*clerk.history, ask]
    clerk.sends(reply(draft), messages=asked, tools="", summary=True)
    checked = f"<state_snapshot>\n{play.say(FACTS)} One boat leaks.\n</state_snapshot>"
    again = {"role": "user", "content": "Check the snapshot against the history and write the final one."}
    clerk.sends(reply(checked), messages=[*asked, reply(draft), again], tools="", summary=True)
    after = clerk.compacted("after").hears(checked)
    after.history.append(reply("Got it, I have the context."))
    after.hears(f"Go on with: {play.task}").works("mole").says("There are four boats.")


def overflow(play: Play) -> None:
    """The engine refuses a prompt that is too long; the summary follows, its system text swapped."""
    clerk = play.agent().hears(play.task).works("quay", "slip")
    clerk.sends(**failed(400))
    ask = "Please summarize this conversation."
    system = "You write summaries of conversations, as bullet points, for another assistant."
    said = sum_up(clerk, ask=ask, prefix=True, system=system)
    after = clerk.compacted("after").hears(said)
    after.history += clerk.history[-2:]
    after.works("mole").says("There are four boats.")


def twice(play: Play) -> None:
    """Two compactions in a row, each of the session before, the second one of another kind."""
    clerk = play.agent(ids=identities.claude).hears(play.task).works("quay", "slip")
    second = compact_with_tail(clerk, "second").works("mole", "shed")
    third = compact_by_transcript(second, "third").works("loft")
    third.says("There are four boats.")


def growing_summaries(play: Play) -> None:
    """Three compactions by transcript; each summary repeats the one before and adds to it, one round is kept."""
    clerk = play.agent().hears(play.task).works("quay", "slip")
    known = "What was found out so far:"
    for number in range(3):
        known = play.say(f"{known} pier {number} holds a boat,")
        kept, asked = clerk.history[-2:], transcript(clerk, mark="<message>")
        messages = [{"role": "user", "content": f"Extract what matters.\n<messages>\n{asked}\n</messages>"}]
        clerk.sends(reply(known), messages=messages, system="", tools="", summary=True)
        clerk = clerk.compacted(f"after {number}").hears(f"Here is a summary of the conversation to date:\n\n{known}")
        clerk.history += kept
        clerk.works(*("mole", "shed")[: number + 1])
    clerk.says("There are four boats.")


def long_tail(play: Play) -> None:
    """Four compactions with one new round between each: three rounds are kept, and only what falls out is quoted."""
    clerk = play.agent().hears(play.task).works("quay", "slip", "mole", "shed")
    for number in range(4):
        evicted, kept = clerk.history[:-6], clerk.history[-6:]
        ask = f"Extract what matters.\n<messages>\n{transcript(clerk, evicted, mark='<message>')}\n</messages>"
        said = play.say(f"So far {number + 1} places were looked at; they hold ropes and ledgers.")
        clerk.sends(reply(said), messages=[{"role": "user", "content": ask}], system="", tools="", summary=True)
        clerk = clerk.compacted(f"after {number}")
        clerk.hears(f"You are in the midst of a conversation that was summarized:\n<summary>\n{said}\n</summary>")
        clerk.history += kept
        clerk.works(f"pier {number}")
    clerk.says("There are four boats.")


def assistant_tail(play: Play) -> None:
    """A summarizing agent of its own gets the history as it is, nothing is asked; the summary opens the next context
    as the assistant's words, before the newest round."""
    clerk = play.agent().hears(play.task).works("quay", "slip", "shed")
    for number in range(2):
        said = play.say(f"{FACTS} This is summary {number}.")
        older, kept = clerk.history[:-2], clerk.history[-2:]
        clerk.sends(reply(said), messages=older, system="Summarize this conversation.", tools="", summary=True)
        clerk = clerk.compacted(f"after {number}")
        clerk.history += [reply(said), *kept]
        clerk.works("mole", "loft")
    clerk.says("There are four boats.")


def inside_a_child(play: Play) -> None:
    """A subagent compacts its own context; its parent gets the result of the second session."""
    clerk = play.agent(ids=identities.claude, tools="look count task").hears(play.task)
    prompt = play.say("Count every boat between the quay and the mole.")
    clerk.calls("I send a helper.", ("task", {"description": "count boats", "prompt": prompt}))
    child = clerk.spawns("child", tools="look count").hears(prompt).works("quay", "slip")
    report = compact_with_tail(child, "child again").works("mole").says("I counted five boats.")
    clerk.gets(report).says("There are five boats.")


def never_used(play: Play) -> None:
    """A summary after the final answer that nothing follows."""
    clerk = play.agent().hears(play.task).works("quay", "slip")
    clerk.says("There are four boats.")
    ask = f"Summarize this conversation:\n<conversation>\n{transcript(clerk)}\n</conversation>"
    clerk.sends(
        reply(play.say(FACTS)),
        messages=[{"role": "user", "content": ask}],
        system="You summarize coding sessions.",
        tools="",
        auxiliary="summary",
        summary=True,
    )


def tool_pairs(play: Play) -> None:
    """Old rounds are replaced by summaries, one small call for each."""
    clerk = play.agent(ids=identities.goose).hears(play.task).works("quay", "slip", "mole")
    system = "You summarize a tool call and its result in one sentence."
    for at in (1, 3):
        call, result = clerk.history[at : at + 2]
        ask = f"Call: {call['tool_calls'][0]['function']}\nResult: {result['content']}"
        said = play.say("The clerk looked and found three ropes.")
        clerk.sends(
            reply(said),
            messages=[{"role": "user", "content": ask}],
            system=system,
            tools="",
            auxiliary="summary",
            summary=True,
        )
        clerk.history[at : at + 2] = [{"role": "user", "content": said}, {"role": "user", "content": "(shortened)"}]
    clerk.says("There are four boats.")
