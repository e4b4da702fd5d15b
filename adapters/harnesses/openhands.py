"""OpenHands SDK: LiteLLM's session id for each conversation; the cache key is that of the root conversation."""

from mosaic.lineage import Harness

HARNESS = Harness(
    name="openhands",
    session=("x-litellm-session-id",),
    trajectory=("params:prompt_cache_key",),
    spawns={"task": "prompt"},
    summary=(r"maintaining a context-aware state summary",),
)
