"""Claude Code and the SDKs that start it: one session id for all agents, agent ids for subagents."""

from mosaic.lineage import Harness

HARNESS = Harness(
    name="claude-code",
    session=("x-claude-code-session-id", "params:metadata.user_id.session_id"),
    agent=("x-claude-code-agent-id",),
    parent=("x-claude-code-parent-agent-id",),
    spawns={"Agent": "prompt", "Task": "prompt"},
    summary=(r"respond with text only.{0,200}do not call any tools", r"create a detailed summary of (?:the|our)"),
    auxiliary={
        "topic": (r"isNewTopic", r"indicates a new (?:conversation )?topic"),
        "safety": (r"determine the command prefix", r"process bash commands that an ai"),
        "git": (r"analyz\w+ git history",),
        "warm-up": (r"^\s*warmup\s*$",),
        "suggestion": (r"predict what the user (?:will|would)",),
    },
    asides={"suggestion": (r"^\W*\[SUGGESTION MODE",)},
)
