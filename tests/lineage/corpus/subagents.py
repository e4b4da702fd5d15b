"""Playbooks of subagents and handoffs: at once, nested, in the background, orphaned; histories shared and recast."""

from typing import Any

from mosaic.records import SessionKind
from tests.lineage.corpus import identities
from tests.lineage.corpus.stage import Agent, Ids, Play, nobody

LEAD = "look count task"
JOBS = {
    "quay": "Count every boat at the quay and tell me who owns it.",
    "mole": "Walk along the mole and note each boat.",
}


def sends_out(lead: Agent, tool: str = "task", argument: str = "prompt") -> list[Agent]:
    """Two subagents at once, each with a sampled prompt."""
    prompts = [lead.play.say(job) for job in JOBS.values()]
    given = [(tool, {"description": f"the {p}", argument: t}) for p, t in zip(JOBS, prompts, strict=True)]
    lead.calls("I send two helpers.", *given)
    return [lead.spawns(place, tools="look count").hears(p) for place, p in zip(JOBS, prompts, strict=True)]


def at_once(play: Play) -> None:
    """Two children side by side, answered for in the other order."""
    lead = play.agent(ids=identities.opencode, tools=LEAD).hears(play.task)
    one, other = sends_out(lead)
    one.works("quay")
    other.works("mole", "slip")
    reports = [one.says("Two boats, the cooper's."), other.says("Two boats, the smith's.")]
    framed = [f"<task id={a.claim} state=completed>\n{r}\n</task>" for a, r in zip((one, other), reports, strict=True)]
    lead.gets(*framed, order=(1, 0)).says("There are four boats.")


def nested(play: Play) -> None:
    """A child that sends out a child of its own; the newest report is indented and framed."""
    lead = play.agent(ids=identities.claude, tools=LEAD).hears(play.task)
    one, other = sends_out(lead)
    other.works("mole")
    one.tools = LEAD
    prompt = play.say("Read the ledger of the quay.")
    one.calls("Someone must read the ledger.", ("task", {"prompt": prompt}))
    grandchild = one.spawns("ledger", tools="look", system="You read ledgers.").hears("The tide is low.", prompt)
    report = grandchild.works("ledger").says("The ledger names the cooper.")
    one.gets(f"Report of the agent:\n    {report}\nEnd of report.")
    reports = [one.says("Two boats, the cooper's."), other.says("Two boats, the smith's.")]
    lead.gets(*reports).says("There are four boats.")


def alike(play: Play) -> None:
    """Three children with the same prompt, told apart by what they report."""
    lead = play.agent(tools=LEAD).hears(play.task)
    prompt = play.say("Guess how many boats there are.")
    lead.calls("I ask three helpers.", *[("task", {"prompt": prompt})] * 3)
    children = [lead.spawns(f"guess {n}", tools="look").hears(prompt) for n in range(3)]
    reports = {n: children[n].works("quay").says(f"I guess {n + 3} boats.") for n in (2, 0, 1)}
    lead.gets(*[reports[n] for n in range(3)]).says("Most say four.")


def system_from_the_call(play: Play) -> None:
    """The parent writes the child's system text too; the result is JSON."""
    lead = play.agent(tools="look spawn_agent").hears(play.task)
    system, prompt = play.say("You are a careful counter of boats."), play.say("Count those at the slip.")
    lead.calls("I make a counter.", ("spawn_agent", {"systemPrompt": system, "task": prompt}))
    child = lead.spawns("counter", system=system, tools="look count").hears(prompt)
    report = child.works("slip").says("Three boats.")
    lead.gets(f'{{"text": "{report}", "iterations": 2}}').says("There are three boats.")


def answers_by_tool(play: Play) -> None:
    """The child answers by a last tool call; the parent gets the argument of that call."""
    lead = play.agent(ids=identities.openhands, tools=LEAD).hears(play.task)
    prompt = play.say("Count the boats at the slip.")
    lead.calls("I send a helper.", ("task", {"description": "count", "prompt": prompt}))
    child = lead.spawns("helper", tools="look count finish").hears(prompt).works("slip")
    report = play.say("Three boats lie at the slip.")
    child.calls(None, ("finish", {"message": report}))
    lead.gets(f"Subagent finished.\nResult: {report}").says("There are three boats.")


def in_a_template(play: Play) -> None:
    """The child's prompt is wrapped in fixed words, its history tells calls as text; it is asked twice."""
    lead = play.agent(tools="look expert").hears(play.task)
    for at, place in enumerate(("quay", "slip")):
        prompt = play.say(f"Count all boats at the {place}, please, and report what you find.")
        lead.calls("I ask the expert.", ("expert", {"task": prompt}))
        child = lead.spawns(f"expert {at}", tools="look count final_answer")
        child.hears(
            f"You are a helpful agent named 'expert'. Your manager gives you this task.\nTask:\n{prompt}\nBe thorough."
        )
        child.works(place)
        report = play.say(f"There are {at + 2} boats.")
        child.calls(None, ("final_answer", {"answer": report}))
        lead.gets(f"Here is the final answer from your managed agent 'expert':\n{report}")
    lead.says("There are five boats.")


def _notified(play: Play, ids: Ids, tool: str, argument: str, told: str) -> None:
    lead = play.agent(ids=ids, tools=f"look count {tool}").hears(play.task)
    one, other = sends_out(lead, tool, argument)
    calls = dict(zip((one.session, other.session), lead.open, strict=True))
    lead.gets(*[f"Started in the background. id: {a.claim}" for a in (one, other)])
    one.works("quay")
    lead.says("I wait for my helpers.")
    other.works("mole")
    for child, text in ((other, "Two boats, the smith's."), (one, "Two boats, the cooper's.")):
        report = child.says(text)
        lead.hears(told.format(call=calls[child.session], agent=child.claim, report=report))
        lead.says(f"The helper at the {child.session} is done.")


def in_the_background(play: Play) -> None:
    """Children that are started and reported later, inside a reminder that names the call."""
    told = (
        "<system-reminder>\nThis is an automatic event.\n<task-notification>\n<task-id>{agent}</task-id>\n"
        "<tool-use-id>{call}</tool-use-id>\n<result>{report}</result>\n</task-notification>\n</system-reminder>"
    )
    _notified(play, identities.claude, "Agent", "prompt", told)


def with_a_notice(play: Play) -> None:
    """Children that are reported later in a user message that names the agent."""
    status = '{{"agent_id": "{agent}", "status": {{"completed": "{report}"}}}}'
    told = f"<subagent_notification>\n{status}\n</subagent_notification>"
    _notified(play, identities.codex, "spawn_agent", "message", told)


def unnamed_notice(play: Play) -> None:
    """The same, without any id of the framework's."""
    told = "<task-notification>\n<tool-use-id>{call}</tool-use-id>\n<result>\n{report}\n</result>\n</task-notification>"
    _notified(play, nobody, "agent", "prompt", told)


def orphaned(play: Play) -> None:
    """The parent ends while a child still works."""
    lead = play.agent(ids=identities.codex, tools="look spawn_agent").hears(play.task)
    one, other = sends_out(lead, "spawn_agent", "message")
    lead.gets(f'{{"agent_id": "{one.claim}"}}', f'{{"agent_id": "{other.claim}"}}')
    one.works("quay")
    lead.says("I will not wait.")
    other.works("mole", "slip").says("Two boats, the smith's.")
    one.works("shed")


def handed_over(play: Play) -> None:
    """Another agent goes on with the whole history under its own system text and tools, and hands it back."""
    triage = play.agent(system="You are the desk. Hand over what you cannot do.", tools="transfer_to_expert").hears(
        play.task
    )
    triage.calls("The expert shall do it.", ("transfer_to_expert", {}))
    triage.gets('{"assistant": "expert"}')
    expert = triage.spawns(
        "expert", kind=SessionKind.HANDOFF, system="You are the expert of boats.", tools="look count"
    )
    expert.history = list(triage.history)
    expert.works("quay", "slip").says("There are four boats.")


def recast(play: Play) -> None:
    """Another agent is told as a user's text what the first one said and did."""
    desk = play.agent(system="You are the desk.", tools="look transfer_to_agent").hears(play.task).works("quay")
    words = [m["content"] for m in desk.history if m["role"] == "assistant"]
    desk.calls("The expert shall go on.", ("transfer_to_agent", {"agent_name": "expert"}))
    expert = desk.spawns(
        "expert", kind=SessionKind.HANDOFF, system="You are the expert of boats.", tools="measure count"
    )
    told: list[dict[str, Any]] = [{"type": "text", "text": play.task}]
    for text in [*words, desk.history[-1]["content"]]:
        told.append({"type": "text", "text": f"For context: [desk] said: {text}"})
    told.append({"type": "text", "text": "For context: [desk] called tool `transfer_to_agent` with: {}"})
    expert.history.append({"role": "user", "content": told})
    expert.works("slip").says("There are four boats.")


def round_table(play: Play) -> None:
    """Two agents hear each other's words as a user's, turn by turn."""
    writer = play.agent(system="You write the list of boats.", tools="look").hears(play.task)
    critic = writer.spawns("critic", kind=SessionKind.HANDOFF, system="You check lists.", tools="count").hears(
        play.task
    )
    for number in range(3):
        draft = writer.says(f"Draft {number}: the list has {number + 2} boats.")
        critic.history.append({"role": "user", "name": "writer", "content": draft})
        remark = critic.says(f"Remark {number}: a boat is missing at the slip.")
        writer.history.append({"role": "user", "name": "critic", "content": remark})
    writer.says("The list has five boats.")
