"""PURE. The statements on owners of points, each judged from the folds of ownership.py.

The two logs have no common order, and clocks prove nothing. The verdicts depend on positions alone:

- In the control log, on the events in front of a grant.
- In a partition of the offset log, on the order of all events of a source partition.
- From the offset log to the control log: the writer of an event at an epoch had read the grant of that epoch, and the
  writer of any event of a member had read the joining of the member. The last of these decisions is the event's
  *floor*. All events behind the event in the same partition of the offset log were appended later, therefore also later
  than the floor. The coordinator writes FENCED when no transaction of the member is undecided any more. Therefore no
  event of a fenced member may stand behind an event with a floor above the member's FENCED.

Epochs that were over before the snapshot at the start of the offset log are passed over: their events are gone.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from ..keyrange.hashing import SPACE_END
from ..keyrange.steps import Steps
from ..offsets.control_events import ReleaseAsked
from ..offsets.event_values import NO_MOVE, Edge
from ..offsets.events import LogOpened, OffsetEvent, RangesReleased, WorkersCut
from .history import Grants, Source
from .ownership import (
    NOBODY,
    Claim,
    Edges,
    Epoch,
    EventSpan,
    OffsetLog,
    Ownership,
    cuts_of,
    epoch_of,
    releases_of,
)
from .report import Example


class Verdict(NamedTuple):
    """The verdict on one statement. ``checked``: the number of things looked at."""

    name: str
    statement: str
    checked: int
    problems: list[Example]


def judge_ownership(grants: Grants, ownership: Ownership, log: OffsetLog, edges: Edges) -> list[Verdict]:
    """The verdicts on all statements on owners of points."""
    return [
        Verdict(
            "decision-turn",
            "the decisions of each term have its numbers in turn, behind the election that counts",
            len(grants.counted) + grants.passed_over,
            grants.out_of_turn,
        ),
        Verdict(
            "grant-owner",
            "at every epoch a point has one owner, a member that takes part, and epochs rise",
            len(ownership.claims),
            ownership.problems,
        ),
        _judge_free(ownership, log, edges),
        _judge_grants(ownership, grants, edges),
        _judge_releases(ownership, log, edges),
        _judge_last(ownership, log, edges),
        _judge_fenced(ownership, log),
    ]


def _judge_free(ownership: Ownership, log: OffsetLog, edges: Edges) -> Verdict:
    problems: list[Example] = []
    checked = 0
    logs = {event.topic_partition: number for number, _, event in releases_of(log)}
    """The log partition of each source partition with a release."""
    floors = {number: _Floors(ownership, spans) for number, spans in _spans_by_log(log).items()}
    for claim in ownership.claims:
        if claim.epoch_before == NOBODY:
            continue
        if not claim.is_fenced_before and not edges.in_view(claim.source, claim.epoch_before):
            continue
        checked += 1
        if claim.is_fenced_before:
            continue
        released = edges.released_points(claim.source, claim.epoch_before, claim.incarnation_before)
        # The writer of the event at this position had read the grant, or a later decision.
        known_by = floors[logs[claim.source]].above(claim.position - 1) if claim.source in logs else None
        for first, end, release in released.all_pieces(claim.first, claim.end):
            owner = f"incarnation {claim.incarnation_before} at epoch {claim.epoch_before}"
            shown = {**_claim_example(claim), "first": first, "end": end}
            if release is None:
                problems.append({**shown, "problem": f"granted while {owner} has neither released it nor is fenced"})
            elif known_by is not None and known_by < release.position:
                shown = {**shown, "position": known_by, "released_at": release.position}
                problems.append({**shown, "problem": f"granted when {owner} had not released it; it released it later"})
    return Verdict("grant-free", "a range is granted when its owner has released it or is fenced", checked, problems)


def _judge_grants(ownership: Ownership, grants: Grants, edges: Edges) -> Verdict:
    problems: list[Example] = []
    checked = 0
    for claim in ownership.claims:
        shown = {**_claim_example(claim), "granted_from": claim.offset_from}
        if claim.epoch_before == NOBODY:
            start = grants.starts.get(claim.source)
            checked += start is not None
            if start not in (None, claim.offset_from):
                problems.append({**shown, "edge": start, "problem": "not from the start of its partition"})
            continue
        before = claim.source, claim.epoch_before
        if not edges.in_view(*before):
            continue
        for first, end, edge in edges.of(*before).pieces(claim.first, claim.end):
            checked += 1
            if edge != claim.offset_from:
                problem = f"{'ahead of' if edge < claim.offset_from else 'behind'} the edge of its last owner"
                problems.append({**shown, "first": first, "end": end, "edge": edge, "problem": problem})
        released = edges.released_points(*before, claim.incarnation_before)
        for first, end, release in released.pieces(claim.first, claim.end):
            if release.edge not in (None, claim.offset_from):
                problem = f"released at offset {release.edge}, granted on from {claim.offset_from}"
                problems.append({**shown, "first": first, "end": end, "edge": release.edge, "problem": problem})
    return Verdict("grant-edge", "every grant goes on where its last owner has ended", checked, problems)


def _judge_releases(ownership: Ownership, log: OffsetLog, edges: Edges) -> Verdict:
    problems: list[Example] = []
    checked = 0
    for number, position, event in releases_of(log):
        source = event.topic_partition
        if not edges.in_view(source, event.epoch):
            continue
        owned = edges.owned_points(source, event.epoch, event.incarnation)
        shown = {"topic": event.topic, "partition": event.partition, "epoch": event.epoch}
        shown = {**shown, "log_partition": number, "position": position}
        for band in event.bands:
            checked += 1
            if not 0 <= band.first < band.end <= SPACE_END:
                problems.append({**shown, "first": band.first, "end": band.end, "problem": "no range of points"})
                continue
            for first, end, is_owned in owned.all_pieces(band.first, band.end):
                if is_owned is None:
                    problem = f"released by incarnation {event.incarnation}, not granted"
                    problems.append({**shown, "first": first, "end": end, "problem": problem})
            for first, end, edge in edges.of(source, event.epoch).pieces(band.first, band.end):
                if band.edge not in (None, edge):
                    problem = f"released at offset {band.edge}, its tiles end at {edge}"
                    problems.append({**shown, "first": first, "end": end, "problem": problem})
            if event.move != NO_MOVE and not _was_asked(ownership.asked.get(event.move), event, band):
                problem = f"released for move {event.move}, which did not ask for it"
                problems.append({**shown, "first": band.first, "end": band.end, "problem": problem})
    return Verdict("release-edge", "every release is of what is owned, at the edges of its tiles", checked, problems)


def _was_asked(asked: ReleaseAsked | None, event: RangesReleased, band: Edge) -> bool:
    """Whether the request asks the writer of the release for all of the band, at the epoch of the release."""
    if asked is None:
        return False
    same = (asked.topic, asked.partition, asked.epoch, asked.incarnation)
    is_its_own = same == (event.topic, event.partition, event.epoch, event.incarnation)
    return is_its_own and asked.first <= band.first and band.end <= asked.end


def _judge_last(ownership: Ownership, log: OffsetLog, edges: Edges) -> Verdict:
    successors: dict[Epoch, list[Claim]] = defaultdict(list)
    """The claims on points of each epoch."""
    for claim in ownership.claims:
        successors[claim.source, claim.epoch_before].append(claim)
    cuts = cuts_of(log)
    released: dict[tuple[Source, int, int], Steps[int]] = defaultdict(Steps)
    """The position of the last release of each point so far, by source partition, epoch and incarnation."""
    problems: list[Example] = []
    releases = releases_of(log)
    for number, position, event in releases:
        source = event.topic_partition
        shown = {"topic": event.topic, "partition": event.partition, "epoch": event.epoch}
        shown = {**shown, "log_partition": number, "released_at": position}
        before = released[source, event.epoch, event.incarnation]
        for band in event.bands:
            if not 0 <= band.first < band.end <= SPACE_END:
                continue
            for first, end, at in before.pieces(band.first, band.end):
                again = {**shown, "first": first, "end": end, "position": position, "released_at": at}
                problems.append({**again, "problem": "released twice"})
            before.put(band.first, band.end, position)
            problems += [{**shown, **late} for late in _tiles_behind(event, position, band, edges)]
            for claim in successors.get((source, event.epoch), ()):
                if claim.first < band.end and band.first < claim.end:
                    begun_at = _begun_at(claim, edges, cuts)
                    if begun_at is not None and begun_at < position:
                        problem = "the next owner began in front of the release"
                        problems.append({**shown, **_claim_example(claim), "position": begun_at, "problem": problem})
    statement = "nothing of an epoch stands behind its release, and nothing of the next one in front of it"
    return Verdict("release-last", statement, len(releases), problems)


def _tiles_behind(event: RangesReleased, position: int, band: Edge, edges: Edges) -> Iterator[Example]:
    """The tiles over a released band behind the release, at its epoch. Tiles of the release's own transaction are
    right: within a transaction the release may stand in front of the tiles.
    """
    for run in edges.runs_behind(event.topic_partition, event.epoch, position):
        overlaps = run.first < band.end and band.first < run.end
        if overlaps and (run.incarnation, run.transaction_last) != (event.incarnation, event.transaction):
            late = {"first": run.first, "end": run.end, "position": run.position_last}
            problem = "a tile at the epoch behind its release"
            yield {**late, "transaction": run.transaction_last, "problem": problem}


def _begun_at(claim: Claim, edges: Edges, cuts: Mapping[Epoch, Sequence[tuple[int, int, WorkersCut]]]) -> int | None:
    """The position at which the owner of a claim began on its points, with a tile or a cut; None: not begun."""
    at = [
        run.position_first
        for run in edges.runs(claim.source, claim.epoch)
        if run.first < claim.end and claim.first < run.end
    ]
    at += [
        cut_at
        for _, cut_at, cut in cuts.get((claim.source, claim.epoch), ())
        if cut.bounds[0] < claim.end and claim.first < cut.bounds[-1]
    ]
    return min(at, default=None)


def _judge_fenced(ownership: Ownership, log: OffsetLog) -> Verdict:
    members = ownership.members
    problems: list[Example] = list(ownership.unexpelled)
    for number, spans in sorted(_spans_by_log(log).items()):
        floors = _Floors(ownership, spans)
        last: dict[int, int] = {}
        for span in spans:
            last[span.incarnation] = max(span.position_last, last.get(span.incarnation, -1))
        for incarnation, position in sorted(last.items()):
            fenced_at = members.fenced.get(incarnation)
            behind = None if fenced_at is None else floors.above(fenced_at)
            if behind is not None and position >= behind:
                shown = {"log_partition": number, "incarnation": incarnation, "position": position}
                problem = f"visible behind position {behind}, which was written after the member was fenced"
                problems.append({**shown, "fenced_at": fenced_at, "problem": problem})
    statement = "nothing of an expelled member becomes visible after its fence"
    return Verdict("fence-last", statement, len(members.fenced), problems)


class _Floors:
    """The floors of events in a partition of the offset log, each with the first position of this or a later floor.

    The floor of an event is the grant of the event's epoch, or the joining of its member, whichever is later.
    """

    def __init__(self, ownership: Ownership, spans: Sequence[EventSpan]) -> None:
        joined = ownership.members.joined
        granted: dict[Epoch, int] = {}
        for claim in ownership.claims:
            granted.setdefault((claim.source, claim.epoch), claim.position)
        found = [
            (max(-1 if s.epoch is None else granted.get(s.epoch, -1), joined.get(s.incarnation, -1)), s.position_first)
            for s in spans
        ]
        found.sort()
        self._floors = [floor for floor, _ in found]
        positions = [position for _, position in found]
        self._from = list(accumulate(reversed(positions), min))[::-1]

    def above(self, control_position: int) -> int | None:
        """The first position of an event with a floor above ``control_position``; None: no event has a later floor."""
        i = bisect_right(self._floors, control_position)
        return self._from[i] if i < len(self._from) else None


def _spans_by_log(log: OffsetLog) -> dict[int, list[EventSpan]]:
    """By log partition, spans of all events from members' transactions. ``log_opened`` has a transaction of its own."""
    found: dict[tuple[int, int, Epoch | None], EventSpan] = {}
    rare = (
        EventSpan(
            log_partition=number,
            incarnation=event.incarnation,
            epoch=epoch_of(event),
            position_first=position,
            position_last=position,
        )
        for number, events in log.rare.items()
        for position, event in events
        if isinstance(event, OffsetEvent) and not isinstance(event, LogOpened)
    )
    for span in chain(log.spans, rare):
        known = found.get(span[:3], span)
        first, last = min(known.position_first, span.position_first), max(known.position_last, span.position_last)
        found[span[:3]] = span._replace(position_first=first, position_last=last)
    by_log: dict[int, list[EventSpan]] = defaultdict(list)
    for span in found.values():
        by_log[span.log_partition].append(span)
    return by_log


def _claim_example(claim: Claim) -> Example:
    topic, partition = claim.source
    points = {"first": claim.first, "end": claim.end}
    return {"topic": topic, "partition": partition, "epoch": claim.epoch, "control_position": claim.position, **points}
