"""Stage beside the records: the owners of points and of copies of state.

The statements on owners are in ownership_checks.py, the statements on copies in copy_checks.py.
"""

from pyspark.sql import functions as F

from . import brokers, checks
from .copy_checks import fold_copying, judge_copying
from .group_figures import Times, group_figures
from .group_report import GroupFigures
from .judge_logs import LogFold
from .judge_plane import Tiles
from .ownership import Edges, Epoch, EventSpan, OffsetLog, TileSeries, fold_ownership
from .ownership_checks import judge_ownership
from .run import AuditContext

TAIL = 200
"""Offsets at the end of a log partition in which the stage looks for the last event."""


def judge_group(run: AuditContext, history: LogFold, tiles: Tiles, *, has_figures: bool) -> GroupFigures | None:
    """Judge all statements on owners and copies; returns the group's figures with ``has_figures``, else None."""
    ownership = fold_ownership(run.pins.grants.counted)
    copying = fold_copying(run.pins.grants.counted, ownership)
    log = _offset_log(run, history, tiles)
    edges = Edges(ownership, log)
    for verdict in (*judge_ownership(run.pins.grants, ownership, log, edges), *judge_copying(copying)):
        run.judge(verdict.name, verdict.statement, verdict.checked, len(verdict.problems), verdict.problems)
    if not has_figures:
        return None
    times = Times(run.pins.control_ms, history.rare_ms, _last_ms(run))
    return group_figures(run.pins.grants, ownership, copying, log, edges, times)


def _offset_log(run: AuditContext, history: LogFold, tiles: Tiles) -> OffsetLog:
    """The offset log. Tiles of one writer, epoch and range are one run; tiles that do not count are included."""
    shape = ("first", "end")
    has_tile = F.col("item").isNotNull() & checks.well_formed()
    table = (
        tiles.committed.withColumns({name: F.when(has_tile, F.col(name)) for name in shape})
        .groupBy("log_partition", "source", "epoch", "incarnation", *shape)
        .agg(
            F.max("offset_to").alias("offset_to"),
            F.min("position").alias("position_first"),
            F.max("position").alias("position_last"),
            F.max("transaction").alias("transaction_last"),
        )
        .toArrow()
    )
    runs: list[TileSeries] = []
    spans: list[EventSpan] = []
    for log, number, epoch, incarnation, first, end, offset_to, low, high, transaction in zip(
        *(table[i].to_pylist() for i in range(table.num_columns)), strict=True
    ):
        source = run.sources[number] if number >= 0 else None
        at: Epoch | None = None if source is None else (source, epoch)
        spans.append(
            EventSpan(log_partition=log, incarnation=incarnation, epoch=at, position_first=low, position_last=high)
        )
        if source is not None and first is not None:
            runs.append(
                TileSeries(
                    log_partition=log,
                    source=source,
                    epoch=epoch,
                    incarnation=incarnation,
                    first=first,
                    end=end,
                    offset_to=offset_to,
                    position_first=low,
                    position_last=high,
                    transaction_last=transaction,
                )
            )
    if run.pins.grants.stores:
        spans += _changes_of_state(history)
    return OffsetLog(runs, spans, history.rare, history.snapshots_by_source)


def _changes_of_state(history: LogFold) -> list[EventSpan]:
    changed = (
        history.others.where("kind = 'state_changed'")
        .groupBy("log_partition", "incarnation")
        .agg(F.min("position"), F.max("position"))
    )
    return [
        EventSpan(log_partition=log, incarnation=incarnation, epoch=None, position_first=low, position_last=high)
        for log, incarnation, low, high in changed.collect()
    ]


def _last_ms(run: AuditContext) -> int:
    """The latest timestamp among the last events of the offset log; 0 without events."""
    spans = {
        place: brokers.Span(max(span.start, span.end - TAIL), span.end)
        for place, span in run.pins.logs.items()
        if span.start < span.end
    }
    row = run.read("keylanes_events", spans, "timestamp").agg(F.max("timestamp")).first()
    return 0 if row is None or row[0] is None else int(row[0])
