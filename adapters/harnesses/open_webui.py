"""Open WebUI: an id for each chat, where it forwards them; calls of its own over the chat's history, with a heading."""

from mosaic.lineage import Harness

HARNESS = Harness(
    name="open-webui",
    session=("x-openwebui-chat-id",),
    auxiliary={
        "search query": (r"^\W*task:\s*analyze the chat history to determine the necessity",),
        "tags": (r"^\W*task:\s*generate 1-3 broad tags",),
        "follow-ups": (r"^\W*task:\s*suggest 3-5 relevant follow-up",),
    },
)
