"""Qwen Code and Gemini CLI: no ids; a swapped system text asks for a snapshot of the history."""

from mosaic.lineage import Harness

HARNESS = Harness(
    name="qwen-code",
    spawns={"agent": "prompt", "invoke_agent": "prompt"},
    summary=(r"generate the <state_snapshot>", r"summarizes internal chat history"),
    auxiliary={
        "memory": (r"managed[- ]memory", r"extract (?:\w+ ){0,3}memor(?:y|ies)"),
        "tool output": (r"^\W*summarize the following tool output to be a maximum of",),
    },
)
