"""Playbooks of calls that frameworks make for themselves, around an ordinary run."""

from tests.lineage.corpus import identities
from tests.lineage.corpus.compactions import transcript
from tests.lineage.corpus.stage import Agent, Ids, Play, nobody, reply


def aside(agent: Agent, kind: str, answer: str, *texts: str, system: str = "", tools: str = "", **more: object) -> None:
    """A call of the framework's own, with its own system text and nothing of the history."""
    messages = [{"role": "user", "content": t} for t in texts]
    agent.sends(reply(answer), messages=messages, system=system, tools=tools, auxiliary=kind, **more)


def _titled(play: Play, ids: Ids, *, before: bool, system: str, ask: tuple[str, ...]) -> None:
    clerk = play.agent(ids=ids).hears(play.task)

    def title() -> None:
        aside(clerk, "title", "Boats in the harbour", *ask, system=system)

    if before:
        title()
    clerk.works("quay")
    if not before:
        title()
    clerk.works("slip").says("There are four boats.")


def title_first(play: Play) -> None:
    """A title is asked for before the first turn, in two user messages."""
    ask = ("Generate a title for this conversation:", play.task)
    _titled(play, identities.opencode, before=True, system="You are a title generator.", ask=ask)


def title_later(play: Play) -> None:
    """A title is asked for in the midst of the run, in one message and in words of its own."""
    ask = (f"Write a title of at most six words for a conversation that begins so:\n{play.task}",)
    _titled(play, nobody, before=False, system="Be concise.", ask=ask)


def topic(play: Play) -> None:
    """Each user message is asked about first: is it a new topic, and of what title; the answer is JSON."""
    system = "Analyze if this message indicates a new conversation topic. Answer as JSON with isNewTopic and title."
    clerk = play.agent(ids=identities.claude)
    for text in (play.task, "And who sails them?"):
        aside(clerk, "topic", '{"isNewTopic": true, "title": "Boats"}', text, system=system)
        clerk.hears(text).works("quay").says("There are four boats.")


def probes(play: Play) -> None:
    """A quota probe before everything, and a warm-up of a helper that has tools."""
    clerk = play.agent(ids=identities.claude)
    aside(clerk, "quota", "I", "quota", params={"max_tokens": 1})
    aside(clerk, "warm-up", "I am ready.", "Warmup", system="You are a helper of the clerk.", tools="look count")
    clerk.hears(play.task).works("quay").says("There are four boats.")


def safety(play: Play) -> None:
    """Each command is judged before it runs."""
    system = (
        "Your task is to process Bash commands that an AI coding agent wants to run, and determine the command prefix."
    )
    clerk = play.agent(ids=identities.claude_before, tools="look bash").hears(play.task)
    for command in ("ls pier", "cat ledger"):
        given = play.say(command)
        clerk.calls("I look.", ("bash", {"command": given}))
        aside(clerk, "safety", command.split()[0], f"Command: {given}", system=system)
        clerk.gets("rope ledger")
    clerk.says("There are four boats.")


def commit_message(play: Play) -> None:
    """A weak model writes the message of a commit from the difference and the conversation."""
    clerk = play.agent().hears(play.task).works("quay")
    said = clerk.says("I wrote it into the ledger.")
    system = "You are an expert software engineer that generates concise commit messages. Reply with the message alone."
    aside(
        clerk,
        "commit message",
        "docs: count the boats",
        f"# USER\n{play.task}\n# ASSISTANT\n{said}\n+4 boats",
        system=system,
    )
    clerk.hears("And the oars?").works("slip").says("There are nine oars.")


def memory(play: Play) -> None:
    """After the answer, an agent of its own goes on with the history to write memories down."""
    clerk = play.agent().hears(play.task).works("quay")
    clerk.says("There are four boats.")
    system = "You are the managed memory agent. Extract durable memories from the conversation."
    asked = [*clerk.history, {"role": "user", "content": "Extract what should be remembered."}]
    call = reply("", (play.new_id(), "write_memory", {"text": play.say("The user counts boats.")}))
    clerk.sends(call, messages=asked, system=system, tools="write_memory read_memory", auxiliary="memory")
    kept = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "kept"}
    messages = [*asked, call, kept]
    done = reply("One memory is kept.")
    clerk.sends(done, messages=messages, system=system, tools="write_memory read_memory", auxiliary="memory")
    clerk.hears("And the oars?").works("slip").says("There are nine oars.")


def suggestion(play: Play) -> None:
    """After an answer the framework asks what the user may say next."""
    clerk = play.agent(ids=identities.claude).hears(play.task).works("quay")
    clerk.says("There are four boats.")
    ask = {"role": "user", "content": "[SUGGESTION MODE: predict what the user will type next, in at most ten words.]"}
    clerk.sends(reply("who sails them?"), messages=[*clerk.history, ask], auxiliary="suggestion")
    clerk.hears("And the oars?").works("slip").says("There are nine oars.")


def unheard_of(play: Play) -> None:
    """Frameworks that nobody knows: tags, follow-up questions and a title, each over a transcript, without tools."""
    clerk = play.agent().hears(play.task).works("quay")
    clerk.says("There are four boats.")
    told = transcript(clerk)
    aside(clerk, "side", '{"tags": ["boats"]}', f"### Task:\nGive one to three broad tags for this chat.\n{told}")
    aside(clerk, "side", '{"follow_ups": ["Whose?"]}', f"### Task:\nSuggest three follow-up questions.\n{told}")
    aside(clerk, "title", '{"title": "Boats"}', f"### Task:\nGenerate a concise title for the chat.\n{told}")
    clerk.hears("And the oars?").works("slip").says("There are nine oars.")


def announced(play: Play) -> None:
    """Everything at once: a probe, a title before the first turn, a subagent with a title of its own."""
    clerk = play.agent(ids=identities.opencode, tools="look count task")
    aside(clerk, "quota", "I", "quota")
    system = "You are a title generator."
    aside(clerk, "title", "Boats", "Generate a title for this conversation:", play.task, system=system)
    prompt = play.say("Count the boats at the slip and come back.")
    clerk.hears(play.task).calls("I send a helper.", ("task", {"prompt": prompt}))
    child = clerk.spawns("child", tools="look count").hears(prompt)
    aside(child, "title", "Slip", "Generate a title for this conversation:", prompt, system=system)
    clerk.gets(child.works("slip").says("Three boats.")).says("There are three boats.")
