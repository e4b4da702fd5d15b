"""Frameworks that nobody has looked at: ids under common names, and the words in which such calls are usually put."""

from mosaic.lineage import Harness

_NOUN = r"(?:conversation|session|chat|thread|discussion|dialog(?:ue)?|history|context|work|progress)"
_WRITE = "create|write|provide|give|generate|produce|make|prepare"

HARNESS = Harness(
    name="generic",
    session=(
        "x-session-id",
        "session_id",
        "agent-session-id",
        "goose-session-id",
        "x-session-affinity",
        "x-kilocode-taskid",
        "x-roo-task-id",
        "params:session_id",
        "params:metadata.session_id",
        "params:conversation",
    ),
    parent=("x-parent-session-id",),
    spawns={
        **dict.fromkeys(("task", "Task", "spawn_agent", "new_task", "subagent"), "prompt"),
        "delegate_work_to_coworker": "task",
    },
    handoffs=(r"^transfer_to_", r"hand_?off", r"^(?:summari[sz]e|condense|compact|compress|fold)(?:_|$)"),
    summary=(
        rf"summari[sz]e\b.{{0,60}}\b{_NOUN}\b",
        rf"condense\b.{{0,60}}\b{_NOUN}\b",
        rf"compact\b.{{0,60}}\b{_NOUN}\b",
        rf"recap\b.{{0,60}}\b{_NOUN}\b",
        r"^\W*(?:you )?summari[sz]e (?:an? |the |each )?(?:old )?tool (?:call|result|output|response)",
        rf"summary(?<!is summary)(?<!is a summary)(?<!is the summary) of\b.{{0,40}}\b{_NOUN}\b",
        r"summari[sz]\w+ (?:(?:of|the|this|these|following|above|entire) )*"
        r"(?:text|messages?|dialog(?:ue)?|transcript)\b",
        *(rf"{verb} (?:this|that|the|your)\b.{{0,20}}\bsummary\b" for verb in ("extend", "expand", "update", "refine")),
        r"context (?:summari[sz]ation|extraction|compaction)\b",
        r"hand(?:ing)? (?:off|over) your work\b",
    ),
    auxiliary={
        "title": (
            r"\btitle generator\b",
            rf"^\W*(?:task:\s*)?(?:please |you (?:will |are to |should )?)?(?:{_WRITE})s?\b"
            rf".{{0,40}}\btitle\b.{{0,40}}\b(?:{_NOUN}|messages?|following content)\b",
        ),
        "commit message": (r"^\W*(?:you are .{0,80})?(?:generate|write|create)s?\b.{0,60}\bcommit messages?\b",),
        "safety": (r"\bcheck if there is unsafe content in\b",),
        "quota": (r"^\W*(?:quota|ping)\W*$",),
        "warm-up": (r"^\W*warm-?up\W*$",),
    },
)
