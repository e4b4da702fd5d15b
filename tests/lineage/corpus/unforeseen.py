"""Playbooks of frameworks that nobody looked at: other words, other languages, other mechanisms of the same things."""

from mosaic.capture import CallStatus
from mosaic.records import SessionKind
from tests.lineage.corpus import identities
from tests.lineage.corpus.auxiliary import aside
from tests.lineage.corpus.compactions import FACTS, compact_by_transcript, transcript
from tests.lineage.corpus.stage import Agent, Play, reply


def in_german(play: Play) -> None:
    """A title, a helper and a compaction, all of it in German and with tools of unknown names."""
    clerk = play.agent(system="Du bist ein Hafenschreiber.", tools="look beauftrage")
    clerk.hears("Finde heraus, wie viele Boote im Hafen liegen.").works("Kai")
    auftrag = play.say("Zähle bitte alle Boote an der Mole und melde dich wieder.")
    clerk.calls("Ich schicke jemanden.", ("beauftrage", {"auftrag": auftrag}))
    helper = clerk.spawns("helper", system="Du hilfst dem Schreiber.", tools="look").hears(auftrag).works("Mole")
    clerk.gets(helper.says("Es liegen zwei Boote dort."))
    ask = {"role": "user", "content": "Fasse zusammen, was bisher erreicht wurde, und nenne die nächsten Schritte."}
    said = play.say("Am Kai liegen drei Taue, an der Mole zwei Boote. Es fehlt noch die Helling.")
    clerk.sends(reply(said), messages=[*clerk.history, ask], tools="", summary=True)
    after = clerk.compacted("after").hears(f"Bisheriger Stand der Arbeit:\n{said}")
    after.works("Helling").says("Es sind vier Boote.")


def in_chinese(play: Play) -> None:
    """A helper and a compaction in a language that puts no spaces between words."""

    def say(text: str) -> str:
        return f"{text}(" + "".join(chr(0x4E00 + ord(c) * 7 % 5000) for c in play.say("")[-24:]) + ")"

    clerk = play.agent(system="你是港口的职员。", tools="look task").hears("请查明港口里有多少条船以及它们属于谁。")
    prompt = say("请数一数防波堤旁边所有的船,并写出每条船的主人。")
    clerk.calls("我派一名助手。", ("task", {"description": "数船", "prompt": prompt}))
    helper = clerk.spawns("helper", system="你是助手。", tools="look").hears(f"你的任务如下:{prompt}请简短回答。")
    helper.works("防波堤")
    report = say("防波堤旁边有两条船,都属于铁匠。")
    helper.sends(reply(report))
    clerk.gets(f"助手的报告:{report}").works("码头")
    said = say("目前已知:防波堤旁边有两条船,属于铁匠;码头上有三根绳子。还需要查看船台。")
    ask = f"请总结以下对话:\n{transcript(clerk)}"
    clerk.sends(reply(said), messages=[{"role": "user", "content": ask}], system="", tools="", summary=True)
    after = clerk.compacted("after").hears(f"之前对话的摘要:\n{said}")
    after.works("船台").says("一共有四条船。")


def notes_before_going_on(play: Play) -> None:
    """What matters is asked for in other words, tools stay offered: only what follows shows that it was a summary."""
    clerk = play.agent().hears(play.task).works("quay", "slip")
    clerk.hears("Before we go on, put down everything that a colleague would need to take your place.")
    notes = clerk.says(FACTS, summary=True)
    after = clerk.compacted("after").hears(f"Notes of your predecessor:\n\n{notes}\n\nTake it from there.")
    after.works("mole").says("There are four boats.")


def several_arguments(play: Play) -> None:
    """A child's prompt is made of three arguments, set into a long form."""
    lead = play.agent(tools="look delegate").hears(play.task)
    given = {
        "goal": play.say("Count what lies at the slip."),
        "context": play.say("The harbour master is away until noon, so ask the cooper."),
        "expected": play.say("A number and the names of the owners."),
    }
    lead.calls("I delegate.", ("delegate", given))
    form = "# Work order" + "".join(f"\n\n## {name.title()}\n{text}" for name, text in given.items())
    child = lead.spawns("child", tools="look count").hears(f"{form}\n\nWork alone. Do not ask questions.").works("slip")
    lead.gets(child.says("Three boats, all the cooper's.")).says("There are three boats.")


def told_while_compacted(play: Play) -> None:
    """The parent compacts while a child works; the report comes in the new context."""
    lead = play.agent(ids=identities.claude, tools="look count Agent").hears(play.task)
    prompt = play.say("Count the boats at the mole and take your time.")
    lead.calls("I send a helper.", ("Agent", {"description": "count", "prompt": prompt}))
    call = lead.open[0]
    child = lead.spawns("child", tools="look count").hears(prompt).works("mole")
    lead.gets("Started in the background.").works("quay", "slip")
    after = compact_by_transcript(lead, "after").works("shed")
    report = child.works("loft").says("Two boats, the smith's.")
    notice = f"<task-notification>\n<tool-use-id>{call}</tool-use-id>\n<result>{report}</result>\n</task-notification>"
    after.hears(notice).says("There are four boats.")


def interrupted(play: Play) -> None:
    """The user interrupts an answer; what was said so far stays in the history, cut."""
    clerk = play.agent(ids=identities.claude).hears(play.task).works("quay")
    said = play.say("I will now look at every single boat in turn and write down")
    clerk.sends(reply(said), status=CallStatus.ABORTED, http_status=200)
    clerk.history.append(reply(said[:40]))
    clerk.hears("[Request interrupted by user]", "Only look at the slip.").works("slip").says("Two boats.")


def tools_and_system_change(play: Play) -> None:
    """In the midst of a run all tools but one are exchanged; later the system text is another one."""
    clerk = play.agent().hears(play.task).works("quay", "slip")
    clerk.tools = "look list_boats find_owner ask_pilot"
    clerk.works("mole")
    clerk.system = "You work in the mode for reviews now. Change nothing, and report what you would do."
    clerk.works("shed").says("There are four boats.")


def cut_report(play: Play) -> None:
    """The parent gets the first part of a long report, and a mark that the rest was cut."""
    lead = play.agent(tools="look count task").hears(play.task)
    prompt = play.say("Describe each boat at the quay at length.")
    lead.calls("I send a helper.", ("task", {"prompt": prompt}))
    child = lead.spawns("child", tools="look").hears(prompt).works("quay")
    report = child.says(" ".join(f"Boat {n} is {play.say('old')}." for n in range(12)))
    lead.gets(f"{report[:300]}\n... [output cut, {len(report) - 300} characters more]").says("There are twelve boats.")


def sent_again_otherwise(play: Play) -> None:
    """A request that failed is sent again with another seed and fewer tokens."""
    clerk = play.agent().hears(play.task).works("quay")
    clerk.sends(status=CallStatus.FAILED, http_status=500, choices=(), params={"seed": 1, "max_tokens": 900})
    again = {"retry": True, "retry_count": 1, "params": {"seed": 2, "max_tokens": 400}}
    clerk.calls("I look at the slip.", ("look", {"place": "slip"}), **again)
    clerk.gets("a boat").says("There is one boat.")


def regenerated(play: Play) -> None:
    """The user asks for another answer to the same history and goes on from that one."""
    clerk = play.agent().hears(play.task).works("quay")
    clerk.sends(reply(play.say("There are four boats, I believe.")))
    branch = Agent(play, "branch", SessionKind.FORK, clerk)
    branch.history = list(clerk.history)
    branch.says("There are five boats.")
    branch.hears("Good. Whose?").works("slip").says("The cooper's.")


def plan_and_do(play: Play) -> None:
    """What a planner without tools wrote is the task of a doer, which knows nothing else."""
    planner = play.agent(system="You make plans.", tools="").hears(play.task)
    plan = planner.says("1. Look at the quay. 2. Look at the slip. 3. Add up what you found and name the owners.")
    doer = planner.spawns("doer", kind=SessionKind.HANDOFF, system="You carry out plans.", tools="look count")
    doer.hears(f"Carry out this plan, step by step:\n{plan}").works("quay", "slip").says("There are four boats.")


def chat(play: Play) -> None:
    """A long talk without tools or ids, in which each answer is a word or two."""
    clerk = play.agent(tools="").hears(play.task)
    for number in range(4):
        clerk.says(f"Yes, pier {number}.")
        clerk.hears("And the next one?")
    clerk.says("That is all.")


def questions_after(play: Play) -> None:
    """After each answer two calls of unknown purpose: they repeat the last exchange as text and offer no tools."""
    clerk = play.agent().hears(play.task)
    for place in ("quay", "slip"):
        said = clerk.works(place).says(f"At the {place} lie two boats.")
        told = f"Q: {play.task}\nA: {said}"
        aside(clerk, "side", "[]", f"Which of the user's wishes are still open? Answer as a list.\n{told}")
        aside(clerk, "side", "0.9", f"Rate the answer between 0 and 1.\n{told}", system="You are a strict judge.")
        clerk.hears("Go on.")
    clerk.says("There are four boats.")
