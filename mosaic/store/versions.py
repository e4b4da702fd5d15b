"""Which policy version sampled a token: told from when it arrived.

A version's `live_at` is committed after its weights are loaded and before generation resumes. While generation is
paused no token is sampled, so a token that arrived before `live_at` came from the version before it, and one that
arrived after came from it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from mosaic.capture import CapturedCall, Choice
from mosaic.store.models import PolicyVersionRow


@dataclass(frozen=True, slots=True)
class Timeline:
    """Policy versions by the time at which they went live (Unix seconds, ascending)."""

    live_at: tuple[float, ...]
    versions: tuple[int, ...]

    def at(self, when: float) -> int:
        """The version that was live; 0, the weights that the engine started with, before any swap."""
        index = bisect_right(self.live_at, when)
        return self.versions[index - 1] if index else 0

    @property
    def newest(self) -> int:
        """The version that went live last."""
        return self.versions[-1] if self.versions else 0

    def of(self, call: CapturedCall, choice: Choice) -> list[tuple[int, int, int]]:
        """(version, first token, end) of a choice's tokens: as the engine says, where it names versions that went live,
        else by the clock."""
        named = {} if call.fidelity is None else dict(call.fidelity.versions)
        spans = named.get(choice.index, ())
        if spans and all(version in self.versions for version, _, _ in spans):
            return list(spans)
        return self.spans(choice.arrivals, len(choice.ids_T), call)

    def spans(
        self, arrivals: Sequence[tuple[int, float]], tokens: int, call: CapturedCall
    ) -> list[tuple[int, int, int]]:
        """(version, first token, end) of a choice's tokens; one span unless a swap fell inside the call.

        `arrivals` holds (tokens so far, when). Without them only the call's own times are known: when a swap fell
        between these the whole choice is given to both versions, as two spans over the same tokens.
        """
        if not arrivals:
            first, last = self.at(call.started_at), self.at(call.ended_at)
            return [(first, 0, tokens)] if first == last else [(first, 0, tokens), (last, 0, tokens)]
        spans: list[tuple[int, int, int]] = []
        done = 0
        for so_far, when in arrivals:
            version = self.at(when)
            if spans and spans[-1][0] == version:
                spans[-1] = (version, spans[-1][1], so_far)
            else:
                spans.append((version, done, so_far))
            done = so_far
        return spans


def read_timeline(connection: Connection) -> Timeline:
    """The versions that went live so far."""
    rows = connection.execute(
        select(PolicyVersionRow.live_at, PolicyVersionRow.version)
        .where(PolicyVersionRow.live_at.is_not(None))
        .order_by(PolicyVersionRow.live_at)
    ).all()
    return Timeline(tuple(r[0] or 0.0 for r in rows), tuple(r[1] for r in rows))
