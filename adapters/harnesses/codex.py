"""Codex: a thread id for each agent, the session id and the cache key of the root for all of them, numbered windows."""

from mosaic.lineage import Harness

HARNESS = Harness(
    name="codex",
    session=("thread-id", "x-codex-turn-metadata thread_id"),
    parent=("x-codex-parent-thread-id", "x-codex-turn-metadata parent_thread_id"),
    trajectory=("session-id", "x-codex-turn-metadata session_id"),
    window=("x-codex-window-id",),
    request_kind=("x-codex-turn-metadata request_kind",),
    spawns={"multi_agent_v1__spawn_agent": "message", "spawn_agent": "message"},
    summary=(r"context checkpoint compaction",),
)
