"""First stage: the logs themselves. The stage folds the rare events in this process; the commits stay in Spark."""

from collections import defaultdict
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ..keyrange.steps import Steps
from ..offsets.codec import decode
from ..offsets.events import Event, LogOpened, SnapshotTaken
from .brokers import Place, Span
from .history import Snapshot, Source, WorkerSpan, fold_workers, left_edges, oldest_snapshot
from .report import Example
from .run import AuditContext


@dataclass(slots=True)
class LogFold:
    """The fold of the rare events. ``left``: the first audited offset of each point of a source partition."""

    snapshots: dict[int, Snapshot]
    workers: list[WorkerSpan]
    left: dict[Source, Steps[int]]
    changed: dict[Source, dict[int, int]]
    """By source partition, each incarnation that changed state and was not succeeded, with its last transaction."""
    others: DataFrame
    """The rows of all events except commits, also in front of the snapshots."""
    rare: dict[int, list[tuple[int, Event]]]
    """By log partition, the counted events with their positions, except commits and changes of state."""
    rare_ms: dict[tuple[int, int], int]
    """When the rare events were written, by log partition and position."""

    @property
    def snapshots_by_source(self) -> dict[Source, SnapshotTaken]:
        """The snapshot of each source partition."""
        events = (event for snapshot in self.snapshots.values() for event in snapshot.taken)
        return {event.topic_partition: event for event in events if event.topic}

    def position_from(self, log_partition: int) -> int:
        """The position from which on the events of a log partition count."""
        snapshot = self.snapshots.get(log_partition)
        return snapshot.position if snapshot else 0


def judge_logs(run: AuditContext, app: str) -> LogFold:
    """Judge that the logs are whole and do not contradict themselves."""
    pins = run.pins
    rare: dict[int, list[tuple[int, Event]]] = defaultdict(list)
    columns = "log_partition,position,timestamp,kind,topic,partition,incarnation,transaction,worker,event"
    read = run.persist(run.read("keylanes_events", pins.logs, columns, only="others"))
    others = read.where("event is not null and kind <> 'state_changed'")
    rows = others.select("log_partition", "position", "timestamp", "event").collect()
    for log_partition, position, _, data in sorted(rows, key=lambda row: (row[0], row[1])):
        rare[log_partition].append((position, decode(bytes(data))))
    snapshots: dict[int, Snapshot] = {}
    problems: list[Example] = list(pins.problems)
    for (log, log_partition), span in pins.logs.items():
        if not any(pins.log_partition(p) == log_partition for _, p in pins.grants.granted):
            continue
        events = rare[log_partition]
        problem = _problem(app, span, events) or _before_opening(run, (log, log_partition), span, events)
        if problem:
            problems.append({"log": log, "log_partition": log_partition, **span._asdict(), "problem": problem})
            continue
        snapshot = oldest_snapshot(rare[log_partition], span.start) if span.start else None
        if snapshot is not None:
            snapshots[log_partition] = snapshot
            run.notes.append(
                f"{log}[{log_partition}] begins at position {span.start}: what happened before its snapshot of "
                f"position {snapshot.position} can't be proven any more"
            )
    run.judge(
        "log-whole",
        "the logs are whole: none is empty, or begins in the middle without a snapshot",
        len(pins.logs) + 1,
        len(problems),
        problems,
    )
    history = LogFold(
        snapshots=snapshots,
        workers=[],
        left={},
        changed={},
        others=read,
        rare={},
        rare_ms={(row[0], row[1]): row[2] for row in rows},
    )
    for number, events in sorted(rare.items()):
        since = history.position_from(number)
        history.rare[number] = [(position, event) for position, event in events if position >= since]
    if pins.grants.stores:
        history.changed = _changed_last(history, read)
    _judge_control(run, history)
    return history


def _changed_last(history: LogFold, others: DataFrame) -> dict[Source, dict[int, int]]:
    """By source partition, the writers of state with their last transaction. A succession ends earlier changes."""
    last: dict[Source, dict[int, tuple[int, int]]] = defaultdict(dict)
    """(position, transaction) by incarnation."""
    for snapshot in history.snapshots.values():
        for event in snapshot.taken:
            last[event.topic, event.partition] = {w.incarnation: (-1, w.transaction) for w in event.changed}
    froms = [F.when(F.col("log_partition") == log, s.position) for log, s in history.snapshots.items()]
    changes = others.where("kind = 'state_changed'").where(F.col("position") >= F.coalesce(*froms, F.lit(0)))
    place = ("topic", "partition")
    writers = changes.groupBy(*place, "incarnation").agg(F.max(F.struct("position", "transaction")).alias("last"))
    for topic, partition, incarnation, (position, transaction) in writers.collect():
        last[topic, partition][incarnation] = position, transaction
    ended: dict[Source, dict[int, int]] = defaultdict(dict)
    successions = changes.where("worker is not null").groupBy(*place, "worker").agg(F.max("position").alias("position"))
    for topic, partition, incarnation, position in successions.collect():
        ended[topic, partition][incarnation] = position
    stay = {
        source: {
            incarnation: transaction
            for incarnation, (position, transaction) in writers_of.items()
            if position >= ended[source].get(incarnation, -1)
        }
        for source, writers_of in last.items()
    }
    return {source: writers_of for source, writers_of in stay.items() if writers_of}


def _judge_control(run: AuditContext, history: LogFold) -> None:
    """Fold the workers and the left edges into ``history``, and judge the contradictions of both logs."""
    pins = run.pins
    taken = history.snapshots_by_source
    counted = [item for events in history.rare.values() for item in events]
    history.workers, contradictions = fold_workers(counted, list(taken.values()))
    history.left = {source: left_edges(start, taken.get(source)) for source, start in pins.grants.starts.items()}
    unstarted: list[Example] = [
        {"topic": topic, "partition": partition, "problem": "granted, but its start is not in the control log"}
        for topic, partition in sorted(pins.grants.granted - pins.grants.starts.keys())
    ]
    problems = [*pins.grants.problems, *contradictions, *unstarted]
    run.judge(
        "control",
        "no epoch, worker number, store or start is given twice",
        len(pins.control) + len(history.workers),
        len(problems),
        problems,
    )


def _problem(app: str, span: Span, rare: list[tuple[int, Event]]) -> str | None:
    """The problem of a log partition that is empty, truncated or foreign; None: the partition is whole."""
    if span.start == span.end:
        return "empty although ranges were granted"
    if span.start > 0:
        found = oldest_snapshot(rare, span.start)
        return None if found else "truncated: begins above 0 without a complete snapshot"
    first = rare[0][1] if rare else None  # an aborted first opening leaves a hole in front
    if not isinstance(first, LogOpened):
        return "truncated: does not begin with log_opened"
    if first.app != app:
        return f"belongs to another application: {first.app}"
    return None


def _before_opening(run: AuditContext, place: Place, span: Span, rare: list[tuple[int, Event]]) -> str | None:
    """The problem of commits in front of ``log_opened``, from a foreign writer. Rare events do not show commits."""
    opened_at = rare[0][0]
    if span.start > 0 or opened_at == 0:
        return None
    before = run.read("keylanes_events", {place: Span(0, opened_at)}, "position").head(1)
    return f"does not begin with log_opened: position {before[0].position} comes before it" if before else None
