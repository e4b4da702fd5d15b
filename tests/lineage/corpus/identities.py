"""How frameworks say which agent calls: an `Ids` for each dialect."""

import json
from typing import Any

from mosaic.records import SessionKind
from tests.lineage.corpus.stage import Agent

Said = tuple[dict[str, str], dict[str, Any]]


def root(agent: Agent) -> Agent:
    """The agent that started it all; after a compaction it is still the same."""
    return root(agent.parent) if agent.parent is not None else agent


def above(agent: Agent) -> Agent | None:
    """The agent that started this one, past its own compactions."""
    parent = agent.parent
    while parent is not None and parent.claim == agent.claim:
        parent = parent.parent
    return parent


def claude(agent: Agent) -> Said:
    """One session for all, agent ids for the children; the session also stands in a JSON text of the body."""
    first, parent = root(agent), above(agent)
    user = {"user_id": json.dumps({"device_id": "d", "session_id": first.claim})}
    headers = {"x-claude-code-session-id": first.claim}
    if agent.claim != first.claim:
        headers["x-claude-code-agent-id"] = agent.claim
    if parent is not None and parent.claim != first.claim:
        headers["x-claude-code-parent-agent-id"] = parent.claim
    return headers, {"client_request": {"metadata": user}}


def claude_before(agent: Agent) -> Said:
    """Older: one session id in the body for the parent and its children."""
    user = {"user_id": f"user_0a1b_account__session_{root(agent).claim}"}
    return {}, {"client_request": {"metadata": user}}


def codex(agent: Agent) -> Said:
    """A thread for each agent, the root's session and cache key for all, numbered windows."""
    forked = agent.kind is SessionKind.FORK
    first, parent = (agent, None) if forked else (root(agent), above(agent))
    asks = agent.history[-1]["content"] if agent.history else ""
    turn = {
        "session_id": first.claim,
        "thread_id": agent.claim,
        "window_number": agent.window,
        "request_kind": "compaction" if "CHECKPOINT" in str(asks) else "turn",
    }
    headers = {
        "session-id": first.claim,
        "thread-id": agent.claim,
        "x-codex-window-id": f"{agent.claim}:{agent.window}",
    }
    if parent is not None:
        headers["x-codex-parent-thread-id"] = turn["parent_thread_id"] = parent.claim
    headers["x-codex-turn-metadata"] = json.dumps(turn)
    return headers, {"client_request": {"prompt_cache_key": first.claim}}


def opencode(agent: Agent) -> Said:
    """A session for each agent, and its parent's."""
    parent = above(agent)
    headers = {"x-opencode-session-id": agent.claim, "x-session-id": agent.claim, "x-session-affinity": agent.claim}
    if parent is not None:
        headers |= {"x-opencode-parent-session-id": parent.claim, "x-parent-session-id": parent.claim}
    return headers, {}


def openhands(agent: Agent) -> Said:
    """A conversation for each agent; the cache key is the root's."""
    return {"x-litellm-session-id": agent.claim}, {"prompt_cache_key": root(agent).claim}


def goose(agent: Agent) -> Said:
    """One id, under a name of its own."""
    return {"agent-session-id": agent.claim}, {}


def anything(agent: Agent) -> Said:
    """A body field that nobody agreed on."""
    return {}, {"session_id": root(agent).claim}
