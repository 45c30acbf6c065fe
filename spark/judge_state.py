"""Stage beside the others: the state, against the logs and against the state that the sources give.

The stage reads the present state, and compares the state with pinned logs and sources. Therefore the comparison needs
an application at rest: no tile and no change of state was committed since the pins. While an application works, the
keys alone are judged, and a hook is refused. Other events since the pins, of ranges and workers, change no state.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ..offsets.control_events import StoreDeclared
from . import state
from .brokers import AuditError, Place, Span, WitnessBroker
from .history import Source
from .judge_logs import LogFold
from .judge_records import Records, done_records
from .report import SPLIT_KEYS, Example
from .run import AuditContext

ExpectedState: TypeAlias = Callable[[SparkSession, DataFrame], DataFrame]
"""Computes from the done source records (topic, partition, offset, timestamp, key, value) the state of the records:
``store`` (the name), ``partition``, ``key``, ``value`` (bytes, or text), and where needed ``map_key`` and
``deadline_ms``."""

KEY_COLUMNS = ("store", "partition", "key", "map_key")
COLUMNS_NEEDED = ("store", "partition", "key", "value")
COLUMNS_ALLOWED = (*COLUMNS_NEEDED, "map_key", "deadline_ms")


@dataclass(frozen=True, slots=True)
class _Changelog:
    """The changelog of a source topic: its pinned partitions, and the number of each store by name."""

    source: str
    places: Mapping[Place, Span | None]
    stores: Mapping[str, int]


class _Found(NamedTuple):
    """The contents of a partition of a changelog. ``beacons``: transactions by incarnation; None: a damaged beacon."""

    keys: int
    beacons: Mapping[int | None, int | None]


def judge_state(
    run: AuditContext,
    history: LogFold,
    records: Records,
    *,
    app: str,
    expected: ExpectedState | None,
    without: Sequence[str],
    moved: Collection[str],
) -> int:
    """Judge all statements on state; returns the number of keys. Does nothing for an application without stores.

    ``without``: names of stores to leave out of the comparison with ``expected``; ``moved``: sources with keys that may
    lie in several partitions.
    """
    stores = run.pins.grants.stores
    if not stores:
        return 0
    broker = run.access.open()
    try:
        changelogs = _pin(run, broker, app, stores)
        read = {log.source: run.persist(state.newest(run.spark, run.access, log.places)) for log in changelogs}
        there = _contents_of(read)  # computes and persists all frames, before the look whether the application goes on
        has_gone_on = _has_gone_on(run, broker)
    finally:
        broker.close()
    keys = sum(found.keys for found in there.values())
    _judge_keys(run, changelogs, read, keys)
    _judge_partitions(run, read, there, moved)
    if has_gone_on:
        if expected is not None:
            raise AuditError(f"state: {app} went on committing while it was read; compare it when all is level")
        run.notes.append("the application went on committing: its state was not compared with its logs")
        return keys
    _judge_beacons(run, history, changelogs, there)
    if expected is not None:
        _judge_expected(run, expected(run.spark, done_records(run, records)), changelogs, read, keys, without)
    return keys


def _has_gone_on(run: AuditContext, broker: WitnessBroker) -> bool:
    """Whether a tile or a change of state stands behind the pins of the offset log by now."""
    now = broker.spans(run.pins.logs)
    broker.wait_decided(now)
    behind = {place: Span(span.end, now[place].end) for place, span in run.pins.logs.items()}
    if all(span.start >= span.end for span in behind.values()):
        return False
    events = run.read("keylanes_events", behind, "kind,item")
    return not events.where("kind = 'state_changed' or kind = 'committed' and item is not null").isEmpty()


def _pin(run: AuditContext, broker: WitnessBroker, app: str, stores: Mapping[str, StoreDeclared]) -> list[_Changelog]:
    found = []
    for source in sorted({store.topic for store in stores.values()}):
        partitions = sum(topic == source for topic, _ in run.pins.sources)
        numbers = {name: store.store for name, store in stores.items() if store.topic == source}
        places = state.pin_changelog(broker, app, source, partitions)
        begun = {partition for topic, partition in run.pins.grants.starts if topic == source}
        if lacking := sorted(begun - {partition for _, partition in places}):
            raise AuditError(f"the changelog of {source} has {len(places)} partitions, none for {source}{lacking}")
        found.append(_Changelog(source, places, numbers))
    return found


def _contents_of(read: Mapping[str, DataFrame]) -> dict[Source, _Found]:
    overviews = [state.overview(frame).select(F.lit(source).alias("topic"), "*") for source, frame in read.items()]
    rows = reduce(DataFrame.unionAll, overviews).collect()
    return {(topic, partition): _Found(keys, dict(found)) for topic, partition, keys, found in rows}


def _judge_keys(run: AuditContext, changelogs: list[_Changelog], read: Mapping[str, DataFrame], keys: int) -> None:
    statement = "every key of state lies at the point of its record's key, in a declared store"
    wrong = [
        state.entries_misplaced(state.entries(read[log.source]), list(log.stores.values())).select(
            F.lit(log.source).alias("topic"), "*"
        )
        for log in changelogs
    ]
    bad = reduce(DataFrame.unionAll, wrong)
    run.judge_rows("state-key", statement, keys, bad, ["topic", "partition", "point", "store", "raw"])


def _judge_partitions(
    run: AuditContext, read: Mapping[str, DataFrame], there: Mapping[Source, _Found], moved: Collection[str]
) -> None:
    left_out = sorted(read.keys() & {*moved})
    run.not_looked_at += [f"state-partition of {source}: left out by --accept-moved-keys" for source in left_out]
    split = [
        state.keys_in_several(state.entries(frame)).select(F.lit(source).alias("topic"), "*")
        for source, frame in read.items()
        if source not in left_out
    ]
    if not split:
        return
    keys = sum(found.keys for (source, _), found in there.items() if source not in left_out)
    bad = reduce(DataFrame.unionAll, split)
    run.judge_rows(SPLIT_KEYS, "every key of state lies in one partition", keys, bad, ["topic", "key", "partitions"])


def _judge_beacons(
    run: AuditContext, history: LogFold, changelogs: list[_Changelog], there: Mapping[Source, _Found]
) -> None:
    problems: list[Example] = []
    checked = 0
    for log in changelogs:
        for _, partition in log.places:
            source = (log.source, partition)
            last = history.changed.get(source, {})
            found = there.get(source, _Found(0, {}))
            checked += len(last)
            writers = {*last, *found.beacons} or ({None} if found.keys else set())
            for writer in sorted(writers, key=lambda incarnation: incarnation or 0):
                changed = None if writer is None else last.get(writer)
                beacon = found.beacons.get(writer)
                if changed is None or changed != beacon:
                    shown = {"incarnation": writer, "changed_last": changed, "beacon": beacon}
                    problems.append({"topic": log.source, "partition": partition, **shown})
    statement = "the beacons of each changelog are those of its writers: each names the last transaction in the log"
    run.judge("state-beacon", statement, checked, len(problems), problems)


def _judge_expected(
    run: AuditContext,
    wanted: DataFrame,
    changelogs: list[_Changelog],
    read: Mapping[str, DataFrame],
    keys: int,
    without: Sequence[str],
) -> None:
    if not set(COLUMNS_NEEDED) <= set(wanted.columns) <= set(COLUMNS_ALLOWED):
        raise AuditError(
            f"state: columns are {', '.join(COLUMNS_NEEDED)}, and where it matters map_key and deadline_ms; "
            f"seen {wanted.columns}"
        )
    # A function that does not give deadline_ms leaves the deadlines out of the comparison.
    values = ["value", "deadline_ms"] if "deadline_ms" in wanted.columns else ["value"]
    map_key = F.coalesce(F.col("map_key").cast("binary"), F.lit(b"")) if "map_key" in wanted.columns else F.lit(b"")
    plain = wanted.select(
        "store",
        F.col("partition").cast("int").alias("partition"),
        F.col("key").cast("binary").alias("key"),
        map_key.alias("map_key"),
        F.col("value").cast("binary").alias("value"),
        *(F.col(name).cast("bigint").alias(name) for name in values[1:]),
    )
    present = []
    for log in changelogs:
        names = F.create_map(*(F.lit(part) for name, number in log.stores.items() for part in (number, name)))
        named = F.coalesce(names[F.col("store")], F.col("store").cast("string"))
        found = state.entries(read[log.source]).where("is_whole").withColumn("store", named)
        present.append(found.select(*KEY_COLUMNS, *values))
    seen = reduce(DataFrame.unionAll, present)
    if without:
        keys -= seen.where(_is_of(without)).count()
        plain, seen = plain.where(~_is_of(without)), seen.where(~_is_of(without))
        run.not_looked_at += [f"state of store {name!r}: left out by --without-store" for name in without]
    unlike = run.persist(state.unlike_keys(plain, seen, KEY_COLUMNS, values))
    declared = {name for log in changelogs for name in log.stores}
    without_rows = [] if unlike.isEmpty() else _stores_without_rows(unlike, plain, declared)
    bad = unlike.where(~_is_of([example["store"] for example in without_rows]))
    shown = [*KEY_COLUMNS, "expected", "seen", *(f"{side}_{name}" for side in ("expected", "seen") for name in values)]
    run.judge_rows("state", "the state is what the sources give, key by key", keys, bad, shown, without_rows)


def _stores_without_rows(unlike: DataFrame, plain: DataFrame, declared: set[str]) -> list[Example]:
    """The stores with keys for which the function gives no row, an example for each store instead of each key."""
    given = {row["store"] for row in plain.select("store").distinct().collect()}
    counts = unlike.where(_is_of(declared - given)).groupBy("store").count().orderBy("store")
    problem = "the function gives no row of this store, which --without-store {} leaves out"
    return [{"store": name, "keys": n, "problem": problem.format(name)} for name, n in counts.collect()]


def _is_of(stores: Iterable[str]) -> Column:
    return F.coalesce(F.col("store").isin([*stores]), F.lit(False))
