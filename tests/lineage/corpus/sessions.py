"""Playbooks of one agent: linear runs, continued and resumed ones, retries, branches, choices, missing ids."""

from typing import Any

from mosaic.capture import CallStatus
from mosaic.records import SessionKind
from tests.lineage.corpus import identities, rewrites
from tests.lineage.corpus.stage import Agent, Play, reply


def linear(play: Play) -> None:
    """A run with tools, append-only."""
    clerk = play.agent().hears(play.task)
    clerk.works("quay", "slip", "mole").says("There are four boats, all of them the cooper's.")


def parallel_calls(play: Play) -> None:
    """Two tools at once; the results come in another order."""
    clerk = play.agent(ids=identities.claude).hears(play.task)
    for place in ("quay", "mole"):
        clerk.calls(f"I look at the {place} twice.", ("look", {"place": place}), ("count", {"what": play.say("boats")}))
        clerk.gets(f"the {place} is empty", "two boats", order=(1, 0))
    clerk.says("There are two boats.")


def silent(play: Play) -> None:
    """Tool calls without a word, with the same arguments each time."""
    clerk = play.agent().hears(play.task)
    for _ in range(4):
        clerk.calls(None, ("look", {"place": "quay"}))
        clerk.gets("nothing yet")
    clerk.says("There are no boats.")


def text_protocol(play: Play) -> None:
    """Commands and screens as plain text, no tools."""
    clerk = play.agent(tools="", system="").hears(f"You work in a terminal. Answer with commands in JSON.\n{play.task}")
    for number in range(4):
        clerk.says(f'{{"plan": "look further", "commands": ["ls pier{number}"]}}')
        clerk.hears(f"New output:\n$ ls pier{number}\nrope ledger")
    clerk.says('{"plan": "done", "complete": true}')


def continued(play: Play) -> None:
    """The user goes on after an answer; a week later the run is resumed under another date."""
    clerk = play.agent(ids=identities.opencode).hears(play.task).works("quay")
    clerk.says("There are four boats.")
    clerk.hears("And how many of them leak?").works("slip").says("One of them leaks.")
    clerk.system += " Today is the ninth. The wind has turned."
    clerk.hears("We met last week. Which one was it?").says("It was the red one.")


def cleared(play: Play) -> None:
    """After an answer the user clears the conversation and begins another task in the same process."""
    first = play.agent(ids=identities.claude, trajectory="1").hears(play.task).works("quay")
    first.says("There are four boats.")
    other = play.agent("second", ids=identities.claude, trajectory="2").hears("Now list the ropes in the net loft.")
    other.works("loft").says("There are nine ropes.")


def rewritten(play: Play) -> None:
    """All harmless rewrites at once."""

    def every(messages: rewrites.Messages, made: int) -> rewrites.Messages:
        for rewrite in rewrites.HARMLESS.values():
            messages = rewrite(messages, made)
        return messages

    clerk = play.agent(rewrite=every).hears("The office is open.", play.task)
    for place in ("quay", "slip", "mole", "shed"):
        clerk.calls(None, ("look", {"place": play.say(place)}), ("count", {"what": "boats", "at": place}))
        clerk.reply["reasoning_content"] = "The ledger may say more."
        clerk.gets(f"two boats lie at the {place}", "two")
    clerk.says("There are eight boats.")


def thinking(play: Play) -> None:
    """Reasoning stands inside the reply and is not sent back."""
    clerk = play.agent().hears(play.task)
    for number in range(3):
        answer = play.say(f"Boat {number} belongs to the cooper.")
        clerk.sends(reply(f"<think>\n{play.say('Let me see.')}\n</think>\n\n{answer}"))
        clerk.history.append(reply(answer))
        clerk.hears("And the next one?")


def calls_as_text(play: Play) -> None:
    """Calls and results come back as text; the ids stand in it."""
    clerk = play.agent(rewrite=rewrites.calls_as_text).hears(play.task)
    clerk.works("quay", "slip").says("There are four boats.")


def own_ids(play: Play) -> None:
    """The framework replaces tool-call ids by its own, which are not unique."""

    def counted(messages: rewrites.Messages, _made: int) -> rewrites.Messages:
        known: dict[str, str] = {}
        for m in messages:
            if m.get("tool_calls"):
                m["tool_calls"] = [
                    {**c, "id": known.setdefault(c["id"], f"call_{len(known)}")} for c in m["tool_calls"]
                ]
            elif m["role"] == "tool":
                m["tool_call_id"] = known[m["tool_call_id"]]
        return messages

    clerk = play.agent(rewrite=counted).hears(play.task)
    clerk.works("quay", "slip", "mole").says("There are four boats.")


def few_shots(play: Play) -> None:
    """Examples that nobody sampled open every request; files in old messages are written anew each time."""

    def with_files(messages: rewrites.Messages, made: int) -> rewrites.Messages:
        shots = [
            {"role": "user", "content": "Change the sign to say open."},
            {"role": "assistant", "content": "sign.txt\n<<<<<<< closed\n=======\nopen\n>>>>>>>"},
            {"role": "user", "content": f"These are the files as they are now:\nledger.txt: {made * 3} boats"},
            {"role": "assistant", "content": "Ok."},
        ]
        last = {**messages[-1], "content": f"{messages[-1]['content']}\nAnswer in blocks."}
        return [messages[0], *shots, *messages[1:-1], last]

    clerk = play.agent(tools="", rewrite=with_files).hears(play.task)
    for question in ("Who owns the red one?", "And the blue one?"):
        clerk.says("I wrote it into the ledger.")
        clerk.hears(question)
    clerk.says("It is the cooper's, as the ledger says.")


def sliding_window(play: Play) -> None:
    """Old rounds fall out of the history without a summary."""

    def newest(messages: rewrites.Messages, _made: int) -> rewrites.Messages:
        return [*messages[:2], *messages[2:][-4:]]

    clerk = play.agent(rewrite=newest).hears(play.task)
    clerk.works("quay", "slip", "mole", "shed", "loft").says("There are four boats.")


def cleared_when_idle(play: Play) -> None:
    """After a pause all old results are cleared at once, without any new round; the session goes on."""
    clerk = play.agent(ids=identities.claude).hears(play.task).works("quay", "slip", "mole")
    clerk.says("There are four boats.")
    for m in clerk.history:
        if m["role"] == "tool":
            m["content"] = rewrites.CLEARED
    clerk.hears("I am back. Who owns them?").works("shed").says("The cooper does.")


def retried(play: Play) -> None:
    """A 500 and an overload, each sent again with the SDK's count; then a framework that does not count."""
    clerk = play.agent(ids=identities.claude).hears(play.task).works("quay")
    clerk.sends(**failed(503))
    works_again(clerk, "slip", retry_count=1)
    clerk.sends(**failed(500))
    works_again(clerk, "mole")
    clerk.says("There are four boats.")


def cut_off(play: Play) -> None:
    """The client is cut off and sends the request again; the cut call is recorded after its retry."""
    clerk = play.agent().hears(play.task).works("quay", "slip")
    clerk.calls("I look at the mole.", ("look", {"place": "mole"}), retry_count=1)
    asked = play.lines[-1].call.messages[1:]
    clerk.sends(messages=list(asked), status=CallStatus.ABORTED, http_status=499, choices=(), retry=True)
    clerk.gets("nothing there").says("There are four boats.")


def timed_out(play: Play) -> None:
    """The client's time is up and it asks again; both calls end, and the second answer counts."""
    clerk = play.agent(ids=identities.opencode).hears(play.task).works("quay")
    clerk.sends(reply(play.say("The first answer, which nobody waited for.")))
    works_again(clerk, "slip", retry_count=1)
    clerk.says("There are four boats.")


def edited(play: Play) -> None:
    """The user edits an old message and sends it again: a branch."""
    clerk = play.agent().hears(play.task).works("quay")
    clerk.says("There are four boats.")
    before = list(clerk.history)
    clerk.hears("How many of them leak?").says("One.")
    branch = Agent(play, "branch", SessionKind.FORK, clerk)
    branch.history = before
    branch.hears("How many of them are red?").works("slip").says("Two.")
    clerk.hears("Which one?").says("The small one.")


def two_choices(play: Play) -> None:
    """n = 2: the agent goes on from the second choice."""
    clerk = play.agent().hears(play.task)
    replies = [reply(play.say(f"I look at the {p}."), (play.new_id(), "look", {"place": p})) for p in ("quay", "mole")]
    clerk.sends(*replies, params={"n": 2})
    clerk.history.append(replies[1])
    clerk.open = [replies[1]["tool_calls"][0]["id"]]
    clerk.gets("a boat").says("There is one boat.")


def best_of_two(play: Play) -> None:
    """n = 2, and the agent goes on from both: one continues, the other is a branch."""
    clerk = play.agent().hears(play.task)
    replies = [reply(play.say(f"I look at the {p}."), (play.new_id(), "look", {"place": p})) for p in ("quay", "mole")]
    clerk.sends(*replies, params={"n": 2})
    branch = Agent(play, "branch", SessionKind.FORK, clerk)
    branch.history = list(clerk.history)
    for agent, said in zip((clerk, branch), replies, strict=True):
        agent.history.append(said)
        agent.open = [said["tool_calls"][0]["id"]]
        agent.gets("a boat").works("slip")
    clerk.says("There is one boat.")
    branch.says("There are two boats.")


def forked_thread(play: Play) -> None:
    """The user forks a conversation: it goes on, and another thread does with its history."""
    clerk = play.agent(ids=identities.codex).hears(play.task).works("quay")
    clerk.says("There are four boats.")
    fork = Agent(play, "fork", SessionKind.FORK, clerk, ids=identities.codex)
    fork.history = list(clerk.history)
    clerk.hears("Here, count the masts.").works("mole").says("Three masts.")
    fork.hears("In this thread, count the oars.").works("slip").says("Eight oars.")


def failed(status: int) -> dict[str, Any]:
    """A call that the engine refused."""
    return {"status": CallStatus.FAILED, "http_status": status, "choices": (), "error": "busy"}


def works_again(clerk: Agent, place: str, **changes: Any) -> None:
    """The same request once more, now with an answer."""
    clerk.calls(f"I look at the {place}.", ("look", {"place": clerk.play.say(place)}), retry=True, **changes)
    clerk.gets(f"The {place} holds a boat.")
