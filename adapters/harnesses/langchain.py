"""LangChain and deepagents: no ids; the summariser's prompt and its transcript stand in one user message."""

from mosaic.lineage import Harness

HARNESS = Harness(
    name="langchain",
    spawns={"task": "description"},
    summary=(r"context extraction assistant",),
)
