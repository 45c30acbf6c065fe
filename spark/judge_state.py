"""Stage beside the others: the state, against the logs and against what the sources give.

State is as it is now, the rest as it was pinned. So it is compared only if no tile and no change of state was committed
in between: while an application works the keys alone are judged, and a hook is refused. What else its log says
meanwhile, of ranges and workers, changes no state.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ..offsets.control_events import StoreDeclared
from . import state
from .brokers import AuditError, Place, Span, WitnessBroker
from .history import Source
from .judge_logs import History
from .judge_records import Records, done_records
from .report import SPLIT_KEYS, Example
from .run import Run

ExpectedState: TypeAlias = Callable[[SparkSession, DataFrame], DataFrame]
"""From the source records that are done (topic, partition, offset, timestamp, key, value) to the state that they give:
``store`` (its name), ``partition``, ``key``, ``value`` (bytes, or text), and where it matters ``map_key`` and
``deadline_ms``."""

KEY_COLUMNS = ("store", "partition", "key", "map_key")
COLUMNS_NEEDED = ("store", "partition", "key", "value")
COLUMNS_ALLOWED = (*COLUMNS_NEEDED, "map_key", "deadline_ms")


@dataclass(frozen=True, slots=True)
class _Changelog:
    source: str
    places: Mapping[Place, Span | None]
    stores: Mapping[str, int]


class _Found(NamedTuple):
    """What one partition of a changelog holds. ``beacons``: transactions by incarnation, None if not whole."""

    keys: int
    beacons: Mapping[int | None, int | None]


def judge_state(
    run: Run,
    history: History,
    records: Records,
    *,
    app: str,
    expected: ExpectedState | None,
) -> int:
    """Judge all statements about state; returns how many keys there are. Without stores there is nothing to judge."""
    stores = run.pins.grants.stores
    if not stores:
        if expected is not None:
            raise AuditError(f"state: the application {app!r} has declared no store")
        return 0
    broker = run.access.open()
    try:
        changelogs = _pin(run, broker, app, stores)
        read = {log.source: run.keep(state.newest(run.spark, run.access, log.places)) for log in changelogs}
        there = _looked_at(read)  # reading is through: the frames are kept
        has_gone_on = _has_gone_on(run, broker)
    finally:
        broker.close()
    keys = sum(found.keys for found in there.values())
    _judge_keys(run, changelogs, read, keys)
    _judge_partitions(run, changelogs, read, keys)
    if has_gone_on:
        if expected is not None:
            raise AuditError(f"state: {app} went on committing while it was read; compare it when all is level")
        run.notes.append("the application went on committing: its state was not compared with its logs")
        return keys
    _judge_beacons(run, history, changelogs, there)
    if expected is not None:
        _judge_expected(run, records, changelogs, read, keys, expected)
    return keys


def _has_gone_on(run: Run, broker: WitnessBroker) -> bool:
    """Whether a tile or a change of state stands behind the pins of the offset log by now."""
    now = broker.spans(run.pins.logs)
    broker.wait_decided(now)
    behind = {place: Span(span.end, now[place].end) for place, span in run.pins.logs.items()}
    if all(span.start >= span.end for span in behind.values()):
        return False
    events = run.read("keylanes_events", behind, "kind,item")
    return not events.where("kind = 'state_changed' or kind = 'committed' and item is not null").isEmpty()


def _pin(run: Run, broker: WitnessBroker, app: str, stores: Mapping[str, StoreDeclared]) -> list[_Changelog]:
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


def _looked_at(read: Mapping[str, DataFrame]) -> dict[Source, _Found]:
    looked = [state.overview(frame).select(F.lit(source).alias("topic"), "*") for source, frame in read.items()]
    rows = reduce(DataFrame.unionAll, looked).collect()
    return {(topic, partition): _Found(keys, _by_writer(found)) for topic, partition, keys, found in rows}


def _by_writer(found: Iterable[tuple[int | None, int | None]]) -> dict[int | None, int | None]:
    """Of a writer with a beacon of each kind the newer transaction; None if one of them is not whole."""
    beacons: dict[int | None, int | None] = {}
    for incarnation, transaction in found:
        known = beacons.get(incarnation, -1)
        beacons[incarnation] = None if transaction is None or known is None else max(known, transaction)
    return beacons


def _judge_keys(run: Run, changelogs: list[_Changelog], read: Mapping[str, DataFrame], keys: int) -> None:
    statement = "every key of state lies at the point of its record's key, in a declared store"
    wrong = [
        state.misplaced(state.entries(read[log.source]), list(log.stores.values())).select(
            F.lit(log.source).alias("topic"), "*"
        )
        for log in changelogs
    ]
    bad = reduce(DataFrame.unionAll, wrong)
    run.judge_rows("state-key", statement, keys, bad, ["topic", "partition", "point", "store", "raw"])


def _judge_partitions(run: Run, changelogs: list[_Changelog], read: Mapping[str, DataFrame], keys: int) -> None:
    split = [
        state.in_several(state.entries(read[log.source])).select(F.lit(log.source).alias("topic"), "*")
        for log in changelogs
    ]
    bad = reduce(DataFrame.unionAll, split)
    run.judge_rows(SPLIT_KEYS, "every key of state lies in one partition", keys, bad, ["topic", "key", "partitions"])


def _judge_beacons(run: Run, history: History, changelogs: list[_Changelog], there: Mapping[Source, _Found]) -> None:
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
    run: Run,
    records: Records,
    changelogs: list[_Changelog],
    read: Mapping[str, DataFrame],
    keys: int,
    expected: ExpectedState,
) -> None:
    wanted = expected(run.spark, done_records(run, records))
    if not set(COLUMNS_NEEDED) <= set(wanted.columns) <= set(COLUMNS_ALLOWED):
        raise AuditError(
            f"state: columns are {', '.join(COLUMNS_NEEDED)}, and where it matters map_key and deadline_ms; "
            f"seen {wanted.columns}"
        )
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
    seen = []
    for log in changelogs:
        names = F.create_map(*(F.lit(part) for name, number in log.stores.items() for part in (number, name)))
        named = F.coalesce(names[F.col("store")], F.col("store").cast("string"))
        found = state.entries(read[log.source]).where("is_whole").withColumn("store", named)
        seen.append(found.select(*KEY_COLUMNS, *values))
    unlike = state.unlike(plain, reduce(DataFrame.unionAll, seen), KEY_COLUMNS, values)
    shown = [*KEY_COLUMNS, "expected", "seen", *(f"{side}_{name}" for side in ("expected", "seen") for name in values)]
    run.judge_rows("state", "the state is what the sources give, key by key", keys, unlike, shown)
