"""Logs as plain events, and what is derived from them of who owned what: without Spark."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from keylanes.offsets.events import Committed, Event, SnapshotTaken
from keylanes.spark.copy_checks import Copying, fold_copying, judge_copying
from keylanes.spark.history import Grants, Source, fold_control, oldest_snapshot
from keylanes.spark.ownership import Edges, EventSpan, OffsetLog, Ownership, TileSeries, fold_ownership
from keylanes.spark.ownership_checks import Verdict, judge_ownership

from .honest import Run

Logs = Mapping[int, Sequence[tuple[int, Event]]]
"""(position, event) of each partition of the offset log."""


class Owned(NamedTuple):
    """All that is derived."""

    grants: Grants
    ownership: Ownership
    copying: Copying
    log: OffsetLog
    edges: Edges

    def verdicts(self) -> dict[str, Verdict]:
        """By name."""
        ownership = judge_ownership(self.grants, self.ownership, self.log, self.edges)
        return {v.name: v for v in (*ownership, *judge_copying(self.copying))}

    def violated(self) -> list[str]:
        """The names of those that do not hold."""
        return [name for name, verdict in self.verdicts().items() if verdict.problems]


def owned(control: Sequence[Event], logs: Logs, starts: Mapping[int, int] | None = None) -> Owned:
    """From a control log and an offset log. ``starts``: where partitions of it begin that were trimmed."""
    grants = fold_control(enumerate(control))
    ownership = fold_ownership(grants.counted)
    log = offset_log(logs, starts or {})
    return Owned(grants, ownership, fold_copying(grants.counted, ownership), log, Edges(ownership, log))


def judged(run: Run) -> Owned:
    """From a run whose logs are whole."""
    return owned(run.control_log(), {p: list(enumerate(events)) for p, events in enumerate(run.events)})


def offset_log(logs: Logs, starts: Mapping[int, int]) -> OffsetLog:
    """As the stage makes it of rows."""
    runs: list[TileSeries] = []
    spans: list[EventSpan] = []
    rare: dict[int, list[tuple[int, Event]]] = {}
    taken: dict[Source, SnapshotTaken] = {}
    for number, events in logs.items():
        others = [(at, event) for at, event in events if not isinstance(event, Committed)]
        start = starts.get(number, 0)
        snapshot = oldest_snapshot(others, start) if start else None
        since = 0 if snapshot is None else snapshot.position
        taken |= {} if snapshot is None else {(e.topic, e.partition): e for e in snapshot.taken if e.topic}
        rare[number] = [(at, event) for at, event in others if at >= since]
        for at, event in events:
            if isinstance(event, Committed) and at >= since:
                epoch = (event.topic, event.partition), event.epoch
                spans.append(EventSpan(number, event.incarnation, epoch, at, at))
                of = (number, *epoch, event.incarnation)
                runs += [TileSeries(*of, t.first, t.end, t.offset_to, at, at, event.transaction) for t in event.tiles]
    return OffsetLog(runs, spans, rare, taken)
