"""Playbooks of what other frameworks do: agents without tools, calls made in text, histories told in one message,
answers that were changed, and traffic that only looks like a framework's own."""

import json

from mosaic.records import SessionKind
from tests.lineage.corpus.auxiliary import aside
from tests.lineage.corpus.compactions import FACTS
from tests.lineage.corpus.sessions import failed
from tests.lineage.corpus.stage import Agent, Play, reply

AT_LENGTH = (
    "I went through all of it twice, in order, and held it against the ledger of the harbour office, line by line; "
    "where the two differ, I asked the pilot, who has known each of the boats since he was a child."
)


def observations_added(play: Play) -> None:
    """What a tool gave is added to the agent's own text; then the context is too small, and is written up in parts."""
    clerk = play.agent(tools="").hears(play.task)
    for place in ("quay", "slip"):
        _looks(clerk, place)
    clerk.sends(**failed(400))
    parts = [clerk.history[0]["content"] + clerk.history[1]["content"], clerk.history[2]["content"]]
    told = []
    for part in parts:
        told.append(play.say("The clerk counts boats and has seen ropes."))
        ask = {"role": "user", "content": f"Summarize the following text and leave nothing out: {part}"}
        clerk.sends(reply(told[-1]), messages=[ask], system="You summarize texts.", summary=True)
    after = clerk.compacted("after", system="").hears(
        f"This is a summary of our conversation so far:\n{' '.join(told)}"
    )
    _looks(after, "mole")
    after.says("Answer: four boats")


def _looks(clerk: Agent, place: str) -> None:
    text = f"Thought: {clerk.play.say(f'I should go to the {place}')}\nAction: look\nInput: {place}"
    clerk.sends(reply(text))
    clerk.history.append(reply(f"{text}\nObservation: three ropes at the {place}"))


def cut_at_the_action(play: Play) -> None:
    """Of each reply only what comes before the first observation is kept: the rest was made up."""
    clerk = play.agent(tools="").hears(play.task)
    for place in ("quay", "slip", "mole"):
        kept = f"Thought: {play.say(f'I should go to the {place} and look around')}\nAction: look[{place}]"
        clerk.sends(reply(f"{kept}\nObservation: a boat\nThought: {play.say('that was it')}"))
        clerk.history.append(reply(kept))
        clerk.hears(f"Observation: three ropes at the {place}")
    clerk.says("Answer: four boats")


def delegated_in_text(play: Play) -> None:
    """Calls are made in text: as JSON, in tags, and in code, here to an agent of the very same kind."""
    forms = {"quay": '{{"action": "delegate", "task": "{}"}}', "slip": "<task>\n{}\n</task>", "mole": 'ask(task="{}")'}
    lead = play.agent(tools="").hears(f"New task: {play.task}")
    for place, form in forms.items():
        order = play.say(f"Count all the boats that lie at the {place}, and name the owner of each.")
        lead.says(form.format(order))
        system = lead.system if place == "mole" else "You work for the clerk."
        child = lead.spawns(place, system=system, tools="")
        child.hears(
            f"New task: You were sent by your manager, who gives you this to do.\n---\n{order}\n---\nBe thorough."
        )
        child.says(f"ls {place}")
        child.hears("Output: ropes")
        lead.hears(f"Result: {child.says(f'There are two boats at the {place}, both of them the smith’s.')}")
    lead.says("There are six boats.")


def told_anew(play: Play) -> None:
    """Each request tells the task and all steps so far in one message; at last another prompt draws the conclusion."""
    clerk = play.agent(tools="", system="You are given a question and the steps so far. Give the next thought.")
    steps = ""
    for number, place in enumerate(("quay", "slip", "mole")):
        thought = play.say(f"I should go to the {place} now and count its boats")
        said = reply(f"[[ thought ]]\n{thought}\n[[ tool ]]\nlook")
        clerk.sends(said, messages=[{"role": "user", "content": f"Question: {play.task}\nSteps:\n{steps}\nGo on."}])
        steps += f"[[ thought {number} ]]\n{thought}\n[[ seen {number} ]]\nthree ropes\n"
    last = clerk.spawns("last", kind=SessionKind.HANDOFF, tools="", system="Conclude from steps what the answer is.")
    last.hears(f"Question: {play.task}\nSteps:\n{steps}\nConclude.").says(f"There are no boats. {AT_LENGTH}")


def state_in_one_message(play: Play) -> None:
    """The same with a tool that must be called, and what was done so far before the task."""
    clerk = play.agent(tools="act")
    done = ""
    for number, place in enumerate(("quay", "slip", "mole")):
        memory, goal = play.say(f"So far I have seen {number} places"), play.say(f"Open the page of the {place} next")
        state = f"<done>{done}</done>\n<wanted>{play.task}</wanted>\n<page>{place} at {number} o'clock</page>"
        call = reply("", (play.new_id(), "act", {"memory": memory, "goal": goal, "open": place}))
        clerk.sends(call, messages=[{"role": "user", "content": state}])
        done += f"<step>Memory: {memory}. Goal: {goal}. Result: opened.</step>"


def in_a_channel(play: Play) -> None:
    """A bot is shown the newest lines of a channel in one message; the oldest fall out, and with them how it began."""
    bot = play.agent(tools="", system="You are a bot in the channel of the harbour. Be kind to everybody.")
    lines: list[str] = []
    for pier in range(5):
        lines += [f"alice: how many boats lie at pier {pier}?", f"bob: I wonder about {pier}, too"]
        said = play.say(f"Dear alice and bob, at pier number {pier} there lie two boats, both of them red.")
        bot.sends(reply(said), messages=[{"role": "user", "content": "\n".join(lines[-8:])}])
        lines.append(f"bot: {said}")


def memory_carried(play: Play) -> None:
    """Section by section: each request holds the problem and what the answer before it said was worth keeping."""
    reader = play.agent(tools="", system="")
    memory = "none so far"
    for number in range(4):
        ask = f"Read on and keep what matters.\nProblem: {play.task}\nKept: {memory}\nSection {number} of a long book."
        memory = play.say(f"Up to section {number} the book names nothing but ropes, and two boats in a ledger.")
        reader.sends(reply(memory), messages=[{"role": "user", "content": ask}])


def two_without_tools(play: Play) -> None:
    """Two agents hear nothing but each other's words; that one is brief does not make it the framework's."""
    master = play.agent(tools="", system="You are the harbour master. Give one instruction at a time.")
    master.hears("Begin.")
    clerk = master.spawns("clerk", kind=SessionKind.HANDOFF, tools="", system="You are the clerk. Do as you are told.")
    for pier in range(3):
        clerk.hears(master.says(f"Go to pier number {pier} and count the boats that lie there."))
        master.hears(clerk.says(f"I was at pier number {pier}, and I saw two boats there."))
    master.says("That was all.")


def one_after_the_other(play: Play) -> None:
    """A writer, a reviewer and an editor, each of whom is told what those before it wrote."""
    writer = play.agent(tools="", system="You write lists.").hears(play.task)
    draft = writer.says(f"{play.say('The list has four boats')}. {AT_LENGTH}")
    reviewer = writer.spawns("reviewer", kind=SessionKind.HANDOFF, tools="", system=f"You review lists.\n{draft}")
    remarks = reviewer.hears(f"{play.task}\nThe writer said: {draft}").says(
        f"{play.say('The owners are missing')}. {AT_LENGTH}"
    )
    editor = reviewer.spawns("editor", kind=SessionKind.HANDOFF, tools="", system="You improve lists.")
    editor.hears(f"{play.task}\nThe writer said: {draft}\nThe reviewer said: {remarks}").says(
        f"Here it is. {AT_LENGTH}"
    )


def planned_first(play: Play) -> None:
    """What a planner wrote is put into the mouth of the agent that carries it out."""
    planner = play.agent(tools="", system="").hears(f"Make a plan for this task:\n{play.task}")
    plan = planner.says("1. Look at the quay. 2. Look at the slip. 3. Add up what you found there.")
    doer = planner.spawns("doer", kind=SessionKind.HANDOFF, tools="", system="You solve tasks by code.")
    doer.hears(play.task).history.append(reply(f"This is my plan:\n{plan}"))
    doer.hears("Carry it out.").says("look('quay')")
    doer.hears("three ropes").says("answer(4)")


def critic_is_heard(play: Play) -> None:
    """A critic's words come back, a judge's verdict does not."""
    clerk = play.agent().hears(play.task)
    for number in range(2):
        said = clerk.works(f"pier {number}").says(f"At pier {number} there lie two boats.")
        shown = f"Task: {play.task}\nAnswer: {said}"
        critic = clerk.spawns(f"critic {number}", kind=SessionKind.HANDOFF, tools="", system="You are a critic.")
        remark = critic.hears(shown).says(f"Your answer {number} does not name the owners of the boats, look it up.")
        aside(clerk, "side", '{"score": 3}', shown, system="You are a judge. Give a score.")
        clerk.hears(f"Think about this and try again: {remark}")
    clerk.says("Two boats, the smith's.")


def orchestrated(play: Play) -> None:
    """A ledger in JSON is asked for before each step: an instruction in it becomes the orchestrator's words."""
    ledger = play.agent(tools="", system="").hears(f"We work at this request: {play.task}")
    worker = ledger.spawns("worker", tools="look", system="You look things up.")
    for pier in range(2):
        order = play.say(f"Please go to pier number {pier} and list each of the boats that lie there.")
        ask = {"role": "user", "content": f"Is the request done, and who is next? JSON. Round {pier}."}
        answer = json.dumps({"done": False, "next": {"who": "worker", "instruction": order}})
        ledger.sends(reply(answer), messages=[*ledger.history, ask])
        ledger.history.append(reply(order))
        ledger.hears(worker.hears(order).works(f"pier {pier}").says(f"On pier {pier} there lie two boats."))
    ledger.hears("Give the answer.").says("There are four boats.")


def summary_in_system(play: Play) -> None:
    """A chat without tools whose summary stands in the system text, and is extended the second time."""
    clerk = play.agent(tools="").hears(play.task)
    said, ask = "", "Create a summary of the conversation above:"
    for number in range(2):
        for pier in range(2):
            clerk.says(f"On pier {pier} of part {number} there lie two boats.")
            clerk.hears(f"And what about pier {pier + 1}?")
        newest, said = clerk.history[-1], play.say(f"The user wants boats counted; part {number} is done.")
        clerk.sends(reply(said), messages=[*clerk.history[:-1], {"role": "user", "content": ask}], summary=True)
        clerk = clerk.compacted(f"after {number}")
        clerk.history = [{"role": "system", "content": f"Summary of the conversation so far: {said}"}, newest]
        ask = "Extend this summary by the new messages above:"
    clerk.says("That was the last one.")


def asked_by_system(play: Play) -> None:
    """A system message at the end asks for the summary of the older messages; it opens as the assistant's words."""
    clerk = play.agent(tools="").hears(play.task)
    for pier in range(4):
        clerk.says(f"I have counted the boats at pier {pier} as well.")
        clerk.hears(f"Go on to pier {pier + 1}.")
    ask = {"role": "system", "content": "Provide a concise and complete summarization of the entire dialog."}
    said = play.say(FACTS)
    clerk.sends(reply(said), messages=[*clerk.history[:-3], ask], summary=True)
    after = clerk.compacted("after")
    after.history = [reply(said), *clerk.history[-3:]]
    after.says("There are two blue boats.")
    after.hears("And then?").says("Then there is the sea.")


def first_round_kept(play: Play) -> None:
    """Task and first answer stay; the summary, which had tags inside tags, follows them."""
    clerk = play.agent(tools="").hears(play.task)
    for place in ("quay", "slip"):
        clerk.says(f"<read>{place}.txt</read>")
        clerk.hears(f"[read {place}.txt] three ropes")
    ask = {"role": "user", "content": "The room runs out. Create a detailed summary of the conversation so far."}
    said = play.say(FACTS)
    written = reply(f"<write_up>\n<context>\n{said}\n</context>\n</write_up>")
    clerk.sends(written, messages=[*clerk.history, ask], summary=True)
    after = clerk.compacted("after")
    after.history = clerk.history[:2]
    after.hears(f"[write_up] What went before:\n{said}.\n\nGo on.").says("<read>mole.txt</read>")
    after.hears("[read mole.txt] a boat").says("<done>Four boats.</done>")


def summary_by_tool(play: Play) -> None:
    """The agent hands over to itself by a tool call: what it knows is an argument, and opens the next context."""
    clerk = play.agent(tools="look count summarize_task").hears(play.task).works("quay", "slip")
    clerk.hears("The room runs out. Call summarize_task.")
    said = play.say(FACTS)
    clerk.calls(None, ("summarize_task", {"context": said}))
    after = clerk.compacted("after").hears(f"You continue the work of another. It left this:\n{said}\n\nGo on.")
    after.works("mole").says("There are four boats.")


def summary_for_the_user(play: Play) -> None:
    """The user asks for a summary and goes on: an answer as any other. In a second talk it is the task itself."""
    clerk = play.agent(trajectory="1").hears(play.task).works("quay")
    clerk.says("There are four boats.")
    clerk.hears("Please summarize our conversation so far.").says("We talked about four boats and three ropes.")
    clerk.hears("Thank you. And the oars?").works("slip").says("There are nine oars.")
    task = f"Summarize the history of the harbour and the work that was done there. {play.task}"
    other = play.agent("other", tools="", trajectory="2").hears(task)
    other.says("It was built by seven brothers and enlarged twice.")
    other.hears("Shorter.").says("Seven brothers built it.")


def looked_up_first(play: Play) -> None:
    """What was found stands in the newest message only; each further question is put in other words first."""
    clerk = play.agent(tools="", system="Answer from what was found.")
    said: list[dict[str, object]] = []
    for question in (play.task, "Who owns them all?", "Since when do they lie there?"):
        if said:
            told = "\n".join(f"{m['role']}: {m['content']}" for m in said)
            ask = f"Put the question in words of its own, so that it can be searched for.\n{told}\nQuestion: {question}"
            aside(clerk, "side", play.say("boats of the harbour"), ask)
        found = "\n".join(play.say("A page about harbours") for _ in range(3))
        answer = reply(play.say(f"The pages tell me this about the question number {len(said)}."))
        clerk.sends(answer, messages=[*said, {"role": "user", "content": f"Found:\n{found}\n\n{question}"}])
        said += [{"role": "user", "content": question}, answer]


def remembered(play: Play) -> None:
    """What falls out of the window goes through calls that keep facts; these stand in the system text."""
    clerk = play.agent().hears(play.task)
    system = clerk.system
    for place in ("quay", "slip", "mole"):
        said = clerk.works(place).says(f"At the {place} there lie two boats, as far as I see.")
        fact = play.say("The user cares for boats")
        told = f"Input:\nuser: {clerk.history[0]['content']}\nassistant: {said}"
        aside(clerk, "memory", json.dumps({"facts": [fact]}), told, system="You are a personal information organizer.")
        clerk.system = f"{system}\n<memory>{fact}</memory>"
        clerk.history = clerk.history[-2:]
        clerk.hears("Go on.")
    clerk.says("That was all.")


def not_what_it_seems(play: Play) -> None:
    """Attempts that share texts by nature: answers that are among a prompt's examples, quotes of documents that others
    were given too, a file that another run is asked to review, a memory that stands in a later system text."""
    answer = '{"label": "calm", "confidence": "high", "tone": "even"}'
    for number in range(2):
        judge = play.agent(f"label {number}", tools="", system="You label texts.", trajectory=f"label {number}")
        judge.hears(f"Label the text below. For example: {answer}\nText: {' '.join(['The sea.'] * (6 * number + 1))}")
        judge.sends(reply(answer))
    document = "The harbour was built in the year 1800 by seven brothers, who came from the north with two ships."
    for number in range(2):
        reader = play.agent(f"reader {number}", tools="", trajectory=f"reader {number}")
        reader.hears(f"{document}\n{play.say('Another page')}\nQuestion {number}: {play.task}")
        reader.says(f'It is written:\n"{document}"\nSo it is old, as far as number {number} can tell.')
        reader.hears("Thank you. Who built it?").says("The brothers did.")
    text = play.say("This ledger lists all boats and their owners in the order in which they came to lie here.")
    writer = play.agent("writer", tools="look write", trajectory="writer").hears(play.task).works("quay")
    writer.calls(None, ("write", {"path": "ledger", "content": text}))
    writer.gets("written").works("slip").says("It is written.")
    other = play.agent("other", tools="look write", trajectory="other").hears(
        f"Review this file:\n{text}\nIs it right?"
    )
    other.works("shed").says("It is right.")
    later = play.agent("later", tools="", trajectory="later", system=f"You chat. You remember:\n{text}")
    later.hears("Tell me about the sea.").says("The sea is wide.")
