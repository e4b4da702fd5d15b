"""The labelled corpus: every row of the matrix in harnesses.md §6 as a compact playbook in words of our own."""

from collections.abc import Callable

from tests.lineage.corpus import auxiliary, compactions, sessions, strangers, subagents, unforeseen
from tests.lineage.corpus.stage import Play

Playbook = Callable[[Play], None]

ROWS: dict[int, tuple[Playbook, ...]] = {
    1: (sessions.linear, sessions.parallel_calls, sessions.silent, sessions.text_protocol),
    2: (sessions.continued, sessions.cleared),
    3: (
        subagents.at_once,
        subagents.nested,
        subagents.alike,
        subagents.system_from_the_call,
        subagents.answers_by_tool,
        subagents.in_a_template,
    ),
    4: (subagents.in_the_background, subagents.with_a_notice, subagents.unnamed_notice),
    5: (subagents.orphaned,),
    6: (compactions.prefix_with_tail, compactions.tools_dropped, compactions.swapped_system),
    7: (
        compactions.assistant_summary,
        compactions.transcript_with_tail,
        compactions.summary_in_first_message,
        compactions.transcript_in_system,
        compactions.fresh_start,
    ),
    8: (compactions.three_calls, compactions.verified),
    9: (compactions.overflow,),
    10: (
        compactions.twice,
        compactions.growing_summaries,
        compactions.long_tail,
        compactions.assistant_tail,
        compactions.inside_a_child,
    ),
    11: (compactions.never_used,),
    12: (sessions.sliding_window, sessions.cleared_when_idle, compactions.tool_pairs),
    13: (subagents.handed_over, subagents.recast, subagents.round_table),
    14: (
        auxiliary.title_first,
        auxiliary.title_later,
        auxiliary.topic,
        auxiliary.probes,
        auxiliary.safety,
        auxiliary.commit_message,
        auxiliary.memory,
        auxiliary.suggestion,
        auxiliary.unheard_of,
        auxiliary.announced,
    ),
    15: (sessions.retried, sessions.cut_off, sessions.timed_out),
    17: (sessions.two_choices, sessions.best_of_two, sessions.edited, sessions.forked_thread),
    18: (sessions.calls_as_text, sessions.own_ids, sessions.few_shots),
    20: (sessions.rewritten, sessions.thinking),
    21: (
        unforeseen.in_german,
        unforeseen.in_chinese,
        unforeseen.notes_before_going_on,
        unforeseen.several_arguments,
        unforeseen.told_while_compacted,
        unforeseen.interrupted,
        unforeseen.tools_and_system_change,
        unforeseen.cut_report,
        unforeseen.sent_again_otherwise,
        unforeseen.regenerated,
        unforeseen.plan_and_do,
        unforeseen.chat,
        unforeseen.questions_after,
    ),
    22: (
        strangers.observations_added,
        strangers.cut_at_the_action,
        strangers.delegated_in_text,
        strangers.told_anew,
        strangers.state_in_one_message,
        strangers.in_a_channel,
        strangers.memory_carried,
        strangers.two_without_tools,
        strangers.one_after_the_other,
        strangers.planned_first,
        strangers.critic_is_heard,
        strangers.orchestrated,
        strangers.summary_in_system,
        strangers.asked_by_system,
        strangers.first_round_kept,
        strangers.summary_by_tool,
        strangers.summary_for_the_user,
        strangers.looked_up_first,
        strangers.remembered,
        strangers.not_what_it_seems,
    ),
}
"""Row of the matrix -> its playbooks. Rows 16 and 19 are the variants in which every playbook is run;
21 and 22 are ours: frameworks that nobody looked at."""

PLAYBOOKS: dict[str, Playbook] = {p.__name__: p for row in ROWS.values() for p in row}

__all__ = ["PLAYBOOKS", "ROWS", "Playbook"]
