"""OpenCode: a session id for each agent, with its parent's."""

from mosaic.lineage import Harness

HARNESS = Harness(
    name="opencode",
    session=("x-opencode-session-id", "x-opencode-session"),
    parent=("x-opencode-parent-session-id",),
    spawns={"task": "prompt"},
    summary=(r"context summarization agent",),
    auxiliary={"title": (r"you are a title generator", r"^\s*generate a title for this conversation")},
)
