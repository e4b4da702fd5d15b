"""How well lineage found what is true: sessions, links, auxiliary calls, merges, and what its scores are worth.

Used by the tests that hold the goals and by `python -m benchmarks.lineage`. Counts add up over playbooks, so that every
figure is over calls, pairs or links and not over averages.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from adapters.harnesses import HARNESSES
from mosaic.lineage import Lineage, Link, Placement
from mosaic.records import SessionKind
from tests.lineage.corpus.stage import Line

SURE = 0.9
"""Score from which no two trajectories may be merged."""
BINS = (0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)
"""Lower bounds of the calibration table."""


@dataclass(slots=True)
class Score:
    """What was counted."""

    calls: int = 0
    sessions: int = 0
    """Sessions that were found."""
    impure: int = 0
    """Found sessions with task calls of more than one true session."""
    pairs: Counter[str] = field(default_factory=Counter)
    """Pairs of task calls in one session: `both` found and true, `found`, `true`."""
    links: Counter[str] = field(default_factory=Counter)
    """True sessions and wrongly opened ones: `all`, with the right `kind`, with the right `parent` too."""
    auxiliary: Counter[str] = field(default_factory=Counter)
    """Auxiliary calls: `both`, `found`, `true`; `named`: with the right kind; `placed`: in the right trajectory."""
    summaries: Counter[str] = field(default_factory=Counter)
    """Summaries that were used: `true`, and those `trained` with the session that they close."""
    retries: Counter[str] = field(default_factory=Counter)
    """Requests that were sent again: `both`, `found`, `true`."""
    bins: dict[float, Counter[str]] = field(default_factory=dict)
    """Lower bound of the score -> links of that score: `all`, `right`."""
    roots: Counter[str] = field(default_factory=Counter)
    """Sessions opened as roots: `all`, `right`."""
    merges: list[dict[str, Any]] = field(default_factory=list)
    """Calls that were put under a call of another trajectory."""
    wrong: list[dict[str, Any]] = field(default_factory=list)
    """What else went wrong, for a reader."""

    @property
    def purity(self) -> float:
        """Share of found sessions that hold calls of one true session only."""
        return 1 - self.impure / self.sessions

    @property
    def f1(self) -> float:
        """Of pairs of calls in one session."""
        return _f1(self.pairs)

    @property
    def kind_accuracy(self) -> float:
        """Share of sessions, true or wrongly opened, that opened as they truly did."""
        return self.links["kind"] / self.links["all"]

    @property
    def parent_accuracy(self) -> float:
        """The same, under the true parent as well."""
        return self.links["parent"] / self.links["all"]

    @property
    def auxiliary_f1(self) -> float:
        """Of the calls tagged auxiliary, whatever the tag."""
        return _f1(self.auxiliary)

    @property
    def sure_merges(self) -> int:
        """Merges at a score that claims to be sure."""
        return sum(m["score"] >= SURE for m in self.merges)

    def add(self, other: "Score") -> None:
        """Count another run in."""
        for name in (f.name for f in fields(self) if f.name != "bins"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for bound, counted in other.bins.items():
            self.bins[bound] = self.bins.get(bound, Counter()) + counted


def _f1(counted: Counter[str]) -> float:
    possible = counted["found"] + counted["true"]
    return 2 * counted["both"] / possible if possible else 1.0


@dataclass(frozen=True, slots=True)
class Placed:
    """A line and where lineage put it, once all was known."""

    line: Line
    placement: Placement
    link: Link
    """How its session opened, as it was last told."""
    auxiliary: str | None
    """Its tag, as it was last told."""


def place(lines: Iterable[Line], lineage: Lineage | None = None) -> list[Placed]:
    """Let lineage place the lines, with all frameworks' tables."""
    lineage = lineage or Lineage(HARNESSES)
    placements: list[tuple[Line, Placement]] = []
    links: dict[str, Link] = {}
    trained: set[str] = set()
    for line in lines:
        placement = lineage.place(line.call)
        placements.append((line, placement))
        links |= {link.session_id: link for link in (placement.opened, *placement.relinked) if link is not None}
        trained |= set(placement.confirmed)
    return [
        Placed(line, p, links[p.session_id], None if p.call_id in trained else p.auxiliary) for line, p in placements
    ]


def score(placed: Sequence[Placed]) -> Score:
    """Count what is right and what is wrong."""
    found = Score(calls=len(placed))
    tasks = [p for p in placed if p.line.truth.auxiliary is None]
    _count_sessions(found, tasks)
    _count_links(found, placed, tasks)
    _count_tags(found, placed)
    return found


def _count_sessions(found: Score, tasks: Sequence[Placed]) -> None:
    cells = Counter((p.placement.session_id, p.line.truth.session) for p in tasks)
    mine = Counter(p.placement.session_id for p in tasks)
    true = Counter(p.line.truth.session for p in tasks)
    within = Counter(session for session, _ in cells)
    found.sessions, found.impure = len(mine), sum(n > 1 for n in within.values())
    found.pairs = Counter(both=_pairs(cells), found=_pairs(mine), true=_pairs(true))


def _pairs(sizes: Counter[Any]) -> int:
    return sum(n * (n - 1) // 2 for n in sizes.values())


def _count_links(found: Score, placed: Sequence[Placed], tasks: Sequence[Placed]) -> None:
    truths = {p.placement.call_id: p.line.truth for p in placed}
    best = _best_match(tasks)
    opened: set[str] = set()
    begun: set[str] = set()
    joined: dict[str, str] = {}
    for p in placed:
        truth, session = p.line.truth, p.placement.session_id
        anchor = p.placement.parent_call_id or joined.get(session) or p.link.parent_call_id
        joined.setdefault(session, p.placement.call_id)
        opens = truth.auxiliary is None and session not in opened
        begins = truth.auxiliary is None and truth.session not in begun
        kind = p.link.kind if opens else None
        parent = best.get(truth.parent or "") == p.link.parent_session_id
        right = (kind is truth.kind and parent) if begins else not opens
        if opens or begins:
            _count_opening(found, p, begins, kind is truth.kind and begins, right and begins)
        if truth.auxiliary is None:
            opened.add(session)
            begun.add(truth.session)
        value = p.link.score if opens else p.placement.why.score
        if anchor is None:
            found.roots += Counter(all=1, right=int(truth.auxiliary is not None or truth.kind is SessionKind.ROOT))
            continue
        if truths[anchor].trajectory != truth.trajectory:
            found.merges.append(_told(p, score=value, into=truths[anchor].trajectory))
        same = truths[anchor].trajectory == truth.trajectory
        fits = same if truth.auxiliary else right if opens or begins else truths[anchor].session == truth.session
        _count_bin(found, value, fits)


def _best_match(tasks: Sequence[Placed]) -> dict[str, str | None]:
    """True session -> the found session that holds most of it."""
    most: dict[str, str | None] = {"": None}
    for (session, true), _ in Counter((p.placement.session_id, p.line.truth.session) for p in tasks).most_common():
        most.setdefault(true, session)
    return most


def _count_opening(found: Score, p: Placed, begins: bool, kind: bool, parent: bool) -> None:
    found.links += Counter(all=1, kind=int(kind), parent=int(parent))
    if not parent:
        wanted = p.line.truth.kind.value if begins else "continues"
        found.wrong.append(_told(p, score=p.link.score, wanted=wanted, found=p.link.kind.value))


def _count_bin(found: Score, value: float, right: bool) -> None:
    bound = max((b for b in BINS if b <= value), default=0.0)
    found.bins[bound] = found.bins.get(bound, Counter()) + Counter(all=1, right=int(right))


def _count_tags(found: Score, placed: Sequence[Placed]) -> None:
    trajectories = _best_trajectory(placed)
    for p in placed:
        truth = p.line.truth
        if truth.summary and truth.auxiliary is None:
            found.summaries += Counter(true=1, trained=int(p.auxiliary is None))
        elif truth.auxiliary or p.auxiliary:
            both = int(bool(truth.auxiliary and p.auxiliary))
            found.auxiliary += Counter(found=int(bool(p.auxiliary)), true=int(bool(truth.auxiliary)), both=both)
            found.auxiliary["named"] += int(both and truth.auxiliary == p.auxiliary)
            found.auxiliary["placed"] += int(both and trajectories.get(truth.trajectory) == p.placement.trajectory_id)
            if not both:
                found.wrong.append(_told(p, wanted=str(truth.auxiliary), found=str(p.auxiliary)))
        again = p.placement.retry_of is not None
        found.retries += Counter(found=int(again), true=int(truth.retry), both=int(again and truth.retry))


def _best_trajectory(placed: Sequence[Placed]) -> dict[str, str]:
    most: dict[str, str] = {}
    tasks = [p for p in placed if p.line.truth.auxiliary is None]
    pairs = Counter((p.line.truth.trajectory, p.placement.trajectory_id) for p in tasks)
    for (true, mine), _ in pairs.most_common():
        most.setdefault(true, mine)
    return most


def _told(p: Placed, **more: Any) -> dict[str, Any]:
    return {"call": p.placement.call_id, "rung": p.placement.why.rung.value, **more}
