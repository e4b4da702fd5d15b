"""Replays of recorded attempts by the real framework, with and without what one session put out.

The agent runs again, unmodified, against a server that answers the calls before the session's output as they were
recorded, leaves the output out in one arm, and lets the policy generate everything else anew. The two arms differ in
nothing but that session: its true contribution is the difference of their mean rewards (arXiv 2610.22174; M replays on
both sides are this project's own, mosaic.md, section 4.2, E3).
"""

import hashlib
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from mosaic.credit.replay import Removal
from mosaic.records import Message, Trajectory

RANDOM_HEX = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,}")
"""Ids that a framework makes up anew in every run and writes into its prompts."""


@dataclass(slots=True)
class Script:
    """What one replay is answered from the record."""

    answers: dict[str, list[Message]] = field(default_factory=dict)
    """Digest of a request's messages -> the replies to give, in order."""
    given: int = 0
    """Replies that came from the record."""
    generated: int = 0
    """Replies that the policy sampled."""

    def next(self, digest: str) -> Message | None:
        """The recorded reply to a request, once; None when it has to be generated."""
        waiting = self.answers.get(digest)
        if not waiting:
            self.generated += 1
            return None
        self.given += 1
        return waiting.pop(0)

    @property
    def unused(self) -> int:
        """Recorded replies that were never asked for: above 0, the replay left the recorded path early."""
        return sum(map(len, self.answers.values()))


def script(trajectory: Trajectory, removal: Removal, with_session: bool) -> Script:
    """The recorded replies of one arm."""
    made = Script()
    for call in (call for session in trajectory.sessions for call in session.calls):
        if not call.samples:
            continue
        reply: Message = call.samples[0].message
        if call.call_id not in removal.recorded:
            if call.call_id not in removal.own or not (with_session or call.call_id == removal.replaced_call_id):
                continue
            reply = reply if with_session else {"role": "assistant", "content": removal.placeholder}
        made.answers.setdefault(digest(call.messages), []).append(reply)
    return made


def digest(messages: Sequence[Message]) -> str:
    """Of what a request says, without the ids in it."""
    rows = [(m.get("role"), _text(m.get("content")), [_call(c) for c in m.get("tool_calls") or ()]) for m in messages]
    return hashlib.blake2b(json.dumps(rows).encode(), digest_size=16).hexdigest()


def _text(content: Any) -> str:
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return RANDOM_HEX.sub("#", content) if isinstance(content, str) else ""


def _call(tool_call: Mapping[str, Any]) -> tuple[str, str]:
    function = tool_call.get("function") or {}
    arguments = function.get("arguments")
    return str(function.get("name")), arguments if isinstance(arguments, str) else json.dumps(arguments)


class ReplayServer:
    """Chat completions at `/<replay>/v1`: from the replay's script, else from the engine."""

    def __init__(self, engine_url: str) -> None:
        self.scripts: dict[str, Script] = {}
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status, answer = outer._answer(self.path.split("/")[1], body)
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._engine = f"{engine_url}/v1/chat/completions"
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def url(self, replay: str) -> str:
        """The base URL of one replay."""
        return f"http://127.0.0.1:{self._server.server_port}/{replay}/v1"

    def _answer(self, replay: str, body: bytes) -> tuple[int, bytes]:
        with self._lock:
            reply = self.scripts[replay].next(digest(json.loads(body)["messages"]))
        if reply is not None:
            return 200, json.dumps(_completion(reply)).encode()
        request = urllib.request.Request(self._engine, body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


def _completion(reply: Message) -> dict[str, Any]:
    """A recorded reply in the form of the wire."""
    calls = reply.get("tool_calls")
    message = {"role": "assistant", "content": reply.get("content"), **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    return {"id": "replay", "object": "chat.completion", "created": 0, "model": "", "choices": [choice], "usage": usage}
