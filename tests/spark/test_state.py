"""The witness of state: what the changelog holds, against the log's word and against what the sources give."""

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from keylanes.keyrange.hashing import point_of_key
from keylanes.offsets.codec import encode
from keylanes.offsets.event_values import Tile, Writer
from keylanes.offsets.events import (
    Committed,
    Event,
    SnapshotTaken,
    StateChanged,
    WorkersCut,
    WorkersMerged,
    WorkerSplit,
)
from keylanes.state.changelog import Beacon, beacon_key, changelog_topic, encode_beacon, encode_stored
from keylanes.state.keys import encode_map_key, state_key
from keylanes.state.tables import TABLE_CONFIG
from keylanes.state.topics import NewRecord, TopicStore

from ..stage.log_events import member_joined, store_declared
from ..tiers.brokers import SharedKafka
from .honest import APP, DEAD, SOURCE, Planner, Run
from .test_kafka import create, producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from keylanes.spark.audit import AuditSpec
    from keylanes.spark.pins import Pins
    from keylanes.spark.report import Report

    AtRest = tuple[AuditSpec, Pins, Callable[..., None]]

pytestmark = pytest.mark.spark

CHANGELOG = changelog_topic(APP, SOURCE)
SEEN, PARITIES = 0, 1
ROUND = 7
LASTS_MS = 1_000

planner = partial(Planner, keys_apart=True)

Change = tuple[int, bytes, bytes | None]
"""Partition, state key, stored value."""


def term_of(run: Run) -> int:
    """The newest."""
    return max(getattr(event, "term", 0) for event in run.control)


def stateful(run: Run) -> list[Change]:
    """Let the plan keep state, and name the changes.

    How often a key was seen, up to ``ROUND``, where it is deleted; by parity the last value, with a deadline.
    """
    run.control += [
        store_declared(term_of(run), SEEN, "seen", SOURCE, "value", "", "int", "json"),
        store_declared(term_of(run), PARITIES, "parities", SOURCE, "map", "str", "int", "json"),
    ]
    writers: dict[int, int] = {}
    for p, events in enumerate(run.events):
        own: list[Event] = []
        for event in events:
            own.append(event)
            if isinstance(event, Committed):
                writer, place = event.incarnation, event.partition
                succeeded = {writers.get(place, writer)} - {writer}
                own.append(StateChanged(writer, event.transaction, event.topic, place, 3, (*succeeded,)))
                writers[place] = writer
        run.events[p] = own
    changes: list[Change] = []
    counts: dict[tuple[int, bytes], int] = {}
    for p, records in enumerate(run.records):
        for key, value in records:
            if key is None:
                continue
            count = counts[p, key] = (counts.get((p, key), 0) + 1) % ROUND
            stored = encode_stored(b"%d" % count) if count else None
            changes.append((p, state_key(point_of_key(key), SEEN, key), stored))
            parity = encode_map_key("odd" if int(value) % 2 else "even", "str")
            stored = encode_stored(value, 1 + LASTS_MS)
            changes.append((p, state_key(point_of_key(key), PARITIES, key, parity), stored))
    return changes


def beacons(run: Run) -> list[Change]:
    """The beacons of all changes: each transaction has its own, and deletes those that it succeeds."""
    found: list[Change] = []
    for event in (event for log in run.events for event in log if isinstance(event, StateChanged)):
        found += [(event.partition, beacon_key(other), None) for other in event.succeeded]
        found.append(beacon(event.partition, event.incarnation, event.transaction))
    return found


def beacon(partition: int, incarnation: int, transaction: int) -> Change:
    """The beacon of a transaction."""
    return (partition, *encode_beacon(Beacon(incarnation, transaction)))


def last_of(run: Run, partition: int) -> StateChanged:
    """The last change of a partition in the log."""
    found = [event for log in run.events for event in log if isinstance(event, StateChanged)]
    return next(event for event in reversed(found) if event.partition == partition)


def expected_state(_spark: "SparkSession", done: "DataFrame") -> "DataFrame":
    """The same in SQL."""
    from pyspark.sql import functions as F

    keyed = done.where("key is not null").withColumn("number", F.col("value").cast("string").cast("int"))
    seen = (
        keyed.groupBy("partition", "key")
        .agg((F.count("*") % ROUND).alias("count"))
        .where("count > 0")
        .select(F.lit("seen").alias("store"), "partition", "key", F.lit("").alias("map_key"), "count")
    )
    last = keyed.groupBy("partition", "key", F.when(F.col("number") % 2 == 1, "odd").otherwise("even").alias("map_key"))
    parities = last.agg(F.max_by("number", "offset").alias("count"), (F.max("timestamp") + LASTS_MS).alias("deadline"))
    parities = parities.select(F.lit("parities").alias("store"), "partition", "key", "map_key", "count", "deadline")
    both = seen.withColumn("deadline", F.lit(None).cast("bigint")).unionByName(parities)
    value = F.col("count").cast("string").alias("value")
    return both.select("store", "partition", "key", "map_key", value, F.col("deadline").alias("deadline_ms"))


@pytest.fixture
def judged(audited: "Callable[..., Report]", tmp_path: Path) -> "Callable[..., Report]":
    """Stores a run with its changelog, by key or as a log, and audits it."""

    def judge(
        run: Run, changes: Sequence[Change], *, by_key: bool = False, changelog_partitions: int = 0, **spec: Any
    ) -> "Report":
        write(tmp_path / "topics", changes, by_key=by_key, partitions=changelog_partitions or run.partitions)
        return audited(run, **{"state": expected_state, **spec})

    return judge


def write(folder: Path, changes: Sequence[Change], *, by_key: bool = False, partitions: int = 2) -> None:
    """Write a changelog at the embedded broker."""
    store = TopicStore.open(folder)
    store.create(CHANGELOG, partitions, TABLE_CONFIG if by_key else {})
    store.append([NewRecord(CHANGELOG, p, key, value, (), 1) for p, key, value in changes])
    store.close()


def keys_of(changes: Sequence[Change]) -> int:
    """How many keys are left."""
    return sum(value is not None for value in {(p, key): value for p, key, value in changes}.values())


@pytest.mark.parametrize("by_key", [False, True])
def test_an_honest_state_is_proven(judged: "Callable[..., Report]", by_key: bool) -> None:
    """Values, maps, deadlines and deletions, from a log with every version and from a table."""
    run = planner(restarts=1).run()
    changes = stateful(run)
    report = judged(run, [*changes, *beacons(run)], by_key=by_key)
    assert report.violated_checks() == [], report.to_text()
    assert report.figures["state_keys"] == keys_of(changes)
    assert report.check("state-key").checked == report.check("state").checked == keys_of(changes)
    assert report.check("state-beacon").checked == 2
    assert report.notes == ()


def test_every_planted_fault_is_found(judged: "Callable[..., Report]") -> None:
    """Of many right keys exactly the wrong ones are named, each by the statement that it contradicts."""
    run = planner(restarts=0, records=300).run()
    changes = stateful(run)
    there = {change[:2]: change for change in changes}
    seen = [(p, key, value) for p, key, value in there.values() if value and key[5] == SEEN]
    lost, changed, moved, torn = seen[:4]
    (_, lasting, value) = next(each for each in there.values() if each[0] == 0 and each[1][5] == PARITIES)
    back = next(key for p, key, value in there.values() if p == 1 and value is None)
    assert value is not None
    short, strange = b"\x01\x02", state_key(point_of_key(b"key 0"), 2, b"key 0")
    astray = state_key(5, SEEN, b"key 0")
    faulty = [
        *changes,
        (*lost[:2], None),
        (*changed[:2], encode_stored(b"77")),
        (*moved[:2], None),
        (1 - moved[0], moved[1] + b"moved", moved[2]),
        (*torn[:2], b"\x01\x02"),
        (0, lasting, encode_stored(value[9:], 5)),
        (1, back, encode_stored(b"7")),
        (0, short, encode_stored(b"1")),
        (0, strange, encode_stored(b"1")),
        (0, astray, encode_stored(b"1")),
    ]
    report = judged(run, [*faulty, *beacons(run)], examples_max=50)
    assert set(report.violated_checks()) == {"state-key", "state-partition", "state"}
    assert [bytes(e["key"]) for e in report.check("state-partition").examples] == [moved[1][10:]]
    assert sorted((example["partition"], example["raw"]) for example in report.check("state-key").examples) == sorted(
        [torn[:2], (0, short), (0, strange), (0, astray)]
    )
    found = {
        (example["partition"], example["store"], example["key"], example["map_key"]): example
        for example in report.check("state").examples
    }
    wrong = (
        {
            (p, "seen", key[10:], b"")
            for p, key, _ in (lost, changed, moved, torn)  # missing, different, missing, missing
        }
        | {(1 - moved[0], "seen", moved[1][10:], b"moved"), (1, "seen", back[10:], b"")}
    )
    split = 10 + int.from_bytes(lasting[6:10], "big")
    wrong |= {(0, "parities", lasting[10:split], lasting[split:]), (0, "2", b"key 0", b""), (0, "seen", b"key 0", b"")}
    assert set(found) == wrong
    assert found[changed[0], "seen", changed[1][10:], b""]["seen_value"] == b"77"
    assert found[lost[0], "seen", lost[1][10:], b""]["seen"] == 0
    assert "state" in report.to_text()


@pytest.mark.parametrize("by_key", [False, True])
def test_a_source_that_has_grown_is_proven_where_it_was_worked_on(
    judged: "Callable[..., Report]", tmp_path: Path, by_key: bool
) -> None:
    """The application is refused since then, and its changelog has as many partitions as the topic had."""
    run = planner(restarts=0, records=120).run()
    store = TopicStore.open(tmp_path / "topics")
    store.create(SOURCE, 4, {})
    store.append([NewRecord(SOURCE, 3, b"key 1", b"1", (), 1)])
    store.close()
    report = judged(run, [*stateful(run), *beacons(run)], by_key=by_key)
    assert report.violated_checks() == [], report.to_text()
    assert report.check("state").checked == report.figures["state_keys"] > 0
    assert [(source.topic, source.partition) for source in report.sources] == [(SOURCE, 0), (SOURCE, 1)]
    assert report.figures["records"] == 240
    (line,) = report.not_looked_at
    assert line.startswith(f"{SOURCE}[2, 3], 1 offsets: the application has never worked on these partitions")
    assert "docs/partitioners.md" in line
    assert f"  not looked at: {line}\n" in report.to_text()
    assert report.to_text().endswith("exactly once: proven, of all that was looked at")
    assert report.to_dict()["not_looked_at"] == [line]


def test_a_key_in_two_partitions_is_found(judged: "Callable[..., Report]") -> None:
    """Two writers of the source chose different partitions for a key: each record was processed once, its state is
    split. The verdict says so in words of its own, and the exit code is not that of a proof.
    """
    run = planner(restarts=0, records=120, lag=0.0).run()
    own = next(key for key, _ in run.records[0] if key is not None)
    changes = [*stateful(run), (1, state_key(point_of_key(own), SEEN, own), encode_stored(b"1"))]
    report = judged(run, [*changes, *beacons(run)], state=None)
    assert report.violated_checks() == ["state-partition"]
    assert report.exit_code == 1
    (example,) = report.check("state-partition").examples
    assert (bytes(example["key"]), list(example["partitions"]), example["topic"]) == (own, [0, 1], SOURCE)
    assert "exactly once, but STATE IS SPLIT" in report.to_text()
    assert "docs/partitioners.md" in report.to_text()
    assert f"key={own.decode()} partitions=[0, 1]" in report.to_text()


def test_keys_that_moved_are_not_looked_at_where_that_is_accepted(judged: "Callable[..., Report]") -> None:
    """Of the topic that is named; everything else is judged."""
    run = planner(restarts=0, records=120, lag=0.0).run()
    own = next(key for key, _ in run.records[0] if key is not None)
    changes = [*stateful(run), (1, state_key(point_of_key(own), SEEN, own), encode_stored(b"1"))]
    report = judged(run, [*changes, *beacons(run)], state=None, accept_moved_keys=[SOURCE, "another"])
    assert report.violated_checks() == [], report.to_text()
    assert report.not_looked_at == (f"state-partition of {SOURCE}: left out by --accept-moved-keys",)
    assert [check.name for check in report.checks if check.name.startswith("state")] == ["state-key", "state-beacon"]


LAST = -1
"""The last transaction of the first writer, which has other numbers in other partitions."""
FIRST_GONE, SECOND_GONE = (beacon_key(1), None), (beacon_key(2), None)
BEACONS: list[tuple[str, list[tuple[bytes, bytes | None]], list[tuple[int | None, ...]]]] = [
    ("in order", [], []),
    ("missing", [SECOND_GONE], [(2, 1, None)]),
    ("older", [encode_beacon(Beacon(2, 0))], [(2, 1, 0)]),
    ("newer", [encode_beacon(Beacon(2, 2))], [(2, 1, 2)]),
    ("torn", [(beacon_key(2), b"torn")], [(2, 1, None)]),
    ("of nobody that the log knows", [encode_beacon(Beacon(5, 3))], [(5, None, 3)]),
    ("of another moment", [encode_beacon(Beacon(1, 1))], [(1, LAST, 1)]),
    ("none", [FIRST_GONE, SECOND_GONE], [(1, LAST, None), (2, 1, None)]),
    ("was succeeded, and came back", [FIRST_GONE, encode_beacon(Beacon(1, 3))], [(1, None, 3)]),
    ("the log knows of no change", [FIRST_GONE, SECOND_GONE], [(None, None, None)]),
]
"""What is written behind the right beacons of two writers, and (incarnation, last change, beacon) of those that are
wrong then; one after the other for each partition.
"""


@pytest.mark.parametrize("by_key", [False, True])
def test_wrong_beacons_are_found(judged: "Callable[..., Report]", by_key: bool) -> None:
    """Of two writers, of which each log has another one last: that in which they are in order is proven, the wrong
    ones of each other partition are named.
    """
    run = planner(restarts=0, records=60, partitions=len(BEACONS), log_partitions=len(BEACONS)).run()
    changes = [*stateful(run), *beacons(run)]
    last = [last_of(run, p).transaction for p in range(run.partitions)]
    assert 1 not in last
    run.control.append(member_joined(term_of(run), 2, "second", "id-2"))
    wrong: list[tuple[int | None, ...]] = []
    for p, (name, written, found) in enumerate(BEACONS):
        log = run.events[p]
        succeeds = name == "was succeeded, and came back"
        at = log.index(last_of(run, p)) + succeeds
        log.insert(at, StateChanged(2, 1, SOURCE, p, 1, (1,) if succeeds else ()))
        if name == "the log knows of no change":
            run.events[p] = [event for event in log if not isinstance(event, StateChanged)]
        changes += [beacon(p, 2, 1), *((p, key, value) for key, value in written)]
        wrong += [(p, *(last[p] if each == LAST else each for each in row)) for row in found]
    report = judged(run, changes, by_key=by_key, examples_max=50)
    assert report.violated_checks() == ["state-beacon"], report.to_text()
    names = ("partition", "incarnation", "changed_last", "beacon")
    assert [tuple(example[name] for name in names) for example in report.check("state-beacon").examples] == wrong


def test_a_snapshot_says_who_changed_last(judged: "Callable[..., Report]") -> None:
    """Where the log begins behind the last changes, its snapshot names their writers; one that was succeeded since is
    looked for no more.
    """
    plan = planner(restarts=0, records=120, log_partitions=1, partitions=1)
    run = plan.run()
    changes = stateful(run)
    end = len(run.events[0])
    last = last_of(run, 0)
    (taken,) = plan.snapshot(run, 0, end)
    taken = replace(taken, changed=(Writer(1, last.transaction), Writer(7, 5), Writer(8, 6)))
    run.events[0] += [taken, StateChanged(8, 9, SOURCE, 0, 1, (7,))]
    run.trims[f"{APP}.offsets", 0] = end
    report = judged(run, [*changes, beacon(0, 1, last.transaction), beacon(0, 8, 9)], state=None)
    assert report.check("state-beacon").holds
    assert report.check("state-beacon").checked == 2


@pytest.fixture
def at_rest(tmp_path: Path) -> "AtRest":
    """The pins of an honest run, with what compares its state by a hook, and what appends to its offset log."""
    from keylanes.spark.audit import AuditSpec, pin_now

    run = planner(restarts=0, records=120).run()
    changes = stateful(run)
    url = run.store(tmp_path / "topics")
    write(tmp_path / "topics", [*changes, *beacons(run)])
    spec = AuditSpec(app=APP, broker=url, dead_letters=[DEAD], state=expected_state)

    def append(*events: Event) -> None:
        store = TopicStore.open(tmp_path / "topics")
        store.append([NewRecord(f"{APP}.offsets", 0, None, encode(event), (), 1) for event in events])
        store.close()

    return spec, pin_now(spec), append


TILE = Tile(0, 1, 0, 1 << 28, 120, 130)
AT_WORK: list[Event] = [StateChanged(1, 99, SOURCE, 0, 1, ()), Committed(1, 99, 0, 1, 1, SOURCE, 0, (TILE,), 0, 0, 0)]
IDLE: list[Event] = [
    WorkersCut(1, 99, 1, SOURCE, 0, 99, (0, 1 << 32)),
    WorkerSplit(1, 99, 1, SOURCE, 0, 99, 1 << 31, 100),
    WorkersMerged(1, 99, 1, SOURCE, 0, 100, 101, 102),
    SnapshotTaken(1, 99, 0, 1, APP, 0, SOURCE, 0, (), (), (), (), ()),
    Committed(1, 99, 0, 1, 1, SOURCE, 0, (), 0, 0, 0),
]


@pytest.mark.parametrize("event", AT_WORK, ids=["state", "tile"])
def test_state_can_be_compared_only_at_rest(spark: "SparkSession", at_rest: "AtRest", event: Event) -> None:
    """When the application has committed since the logs were pinned, a hook is refused and beacons are not judged."""
    from keylanes.spark.audit import audit
    from keylanes.spark.brokers import AuditError

    spec, pins, append = at_rest
    append(event)
    with pytest.raises(AuditError, match="went on committing"):
        audit(spark, spec, pins)
    report = audit(spark, dataclasses.replace(spec, state=None), pins)
    assert report.violated_checks() == []
    assert [check.name for check in report.checks if check.name.startswith("state")] == ["state-key", "state-partition"]
    assert any("went on committing" in note for note in report.notes)


def test_what_workers_do_meanwhile_changes_no_state(spark: "SparkSession", at_rest: "AtRest") -> None:
    """Ranges are cut, split and merged, and a snapshot is taken, with nothing left to do: state is compared."""
    from keylanes.spark.audit import audit

    spec, pins, append = at_rest
    append(*IDLE)
    report = audit(spark, spec, pins)
    assert report.violated_checks() == [], report.to_text()
    assert report.check("state-beacon").holds
    assert report.check("state").checked == report.figures["state_keys"] > 0
    assert report.notes == ()


def test_a_hook_needs_state(audited: "Callable[..., Report]", judged: "Callable[..., Report]", tmp_path: Path) -> None:
    """An application without a store, a missing changelog and a hook of other columns are errors in words."""
    from keylanes.spark.brokers import AuditError

    run = planner(restarts=0, records=60).run()
    with pytest.raises(AuditError, match="declared no store"):
        audited(run, state=expected_state)
    shutil.rmtree(tmp_path / "topics")
    changes = stateful(run)
    with pytest.raises(AuditError, match=r"flights\.changelog\.flights\.in.*missing"):
        audited(run)
    shutil.rmtree(tmp_path / "topics")
    with pytest.raises(AuditError, match="map_key and deadline_ms; seen"):
        judged(run, changes + beacons(run), state=lambda spark, done: expected_state(spark, done).drop("key"))


def test_a_store_that_the_function_leaves_out(judged: "Callable[..., Report]", tmp_path: Path) -> None:
    """It is one violation, which names the option, beside what else is wrong. Left out by name it is not compared,
    whatever the function gives of it.
    """
    run = planner(restarts=0, records=60).run()
    of_both = stateful(run)
    of_seen = [change for change in of_both if change[1][5] == SEEN]
    changes = [*of_both, *beacons(run)]
    wrong = [*changes, (*of_seen[0][:2], encode_stored(b"77"))]

    lost = next(key for key, _ in run.records[0] if key is not None)

    def parities(spark: "SparkSession", done: "DataFrame") -> "DataFrame":
        return expected_state(spark, done).where(f"store = 'parities' and cast(key as string) <> '{lost.decode()}'")

    report = judged(run, changes, state=parities)
    assert report.violated_checks() == ["state"]
    silent, *others = report.check("state").examples
    assert (silent["store"], silent["keys"]) == ("seen", keys_of(of_seen))
    assert "the function gives no row of this store, which --without-store seen leaves out" in report.to_text()
    assert {(other["store"], bytes(other["key"])) for other in others} == {("parities", lost)}
    assert report.check("state").violations == 1 + len(others)
    shutil.rmtree(tmp_path / "topics")
    report = judged(run, wrong, without_stores=["seen"])
    assert report.violated_checks() == [], report.to_text()
    assert report.not_looked_at == ("state of store 'seen': left out by --without-store",)
    assert report.check("state").checked == report.figures["state_keys"] - silent["keys"]


def test_the_frame_of_somebody_with_a_notebook(spark: "SparkSession", tmp_path: Path) -> None:
    """Every part of a key and of a value is a column; a record that is no state stops it when it is read."""
    from pyspark.errors import PySparkException

    from keylanes.spark.brokers import AuditError
    from keylanes.spark.state import state_frame

    run = planner(restarts=0, records=60).run()
    changes = stateful(run)
    url = run.store(tmp_path / "topics")
    with pytest.raises(AuditError, match="missing"):
        state_frame(spark, url, APP, SOURCE)
    with pytest.raises(AuditError, match="no topic"):
        state_frame(spark, url, APP, "nowhere")
    write(tmp_path / "topics", [*changes, *beacons(run)])
    found = state_frame(spark, url, APP, SOURCE)
    assert found.columns == ["partition", "point", "store", "key", "map_key", "value", "deadline_ms"]
    rows = {tuple(row) for row in found.collect()}
    assert len(rows) == keys_of(changes)
    p, key, value = next(change for change in reversed(changes) if change[1][5] == PARITIES)
    assert value is not None
    record_key = key[10:].removesuffix(b"odd").removesuffix(b"even")
    point = point_of_key(record_key)
    assert (p, point, PARITIES, record_key, key[10 + len(record_key) :], value[9:], 1 + LASTS_MS) in rows
    write(tmp_path / "topics", [(0, b"\x09\x09", b"\x00")])
    with pytest.raises(PySparkException, match=r"no state in the changelog of flights\.in: key 0909"):
        state_frame(spark, url, APP, SOURCE).collect()


def test_a_changelog_with_other_partitions_is_an_error(
    spark: "SparkSession", judged: "Callable[..., Report]", tmp_path: Path
) -> None:
    """It has no more than its source, and one for each partition that was worked on."""
    from keylanes.spark.brokers import AuditError
    from keylanes.spark.state import state_frame

    url = planner(restarts=0, records=60).run().store(tmp_path / "topics")
    write(tmp_path / "topics", [], partitions=3)
    with pytest.raises(AuditError, match=r"has 3 partitions; flights\.in has 2"):
        state_frame(spark, url, APP, SOURCE)
    shutil.rmtree(tmp_path / "topics")
    run = planner(restarts=0, records=60).run()
    with pytest.raises(AuditError, match=r"the changelog of flights\.in has 1 partitions, none for flights\.in\[1\]"):
        judged(run, [change for change in stateful(run) if change[0] == 0], changelog_partitions=1)


@pytest.mark.broker
def test_a_changelog_on_kafka(spark: "SparkSession", kafka_server: SharedKafka) -> None:
    """The newest committed version of each key counts; aborted ones, tombstones and the beacon are not there."""
    from keylanes.spark.state import state_frame

    app, source = "kafka-state", "kafka-state-source"
    topic = changelog_topic(app, source)
    create(kafka_server.bootstrap, {source: 1, topic: 1})

    def key(name: bytes) -> bytes:
        return state_key(point_of_key(name), 3, name)

    into = producer(kafka_server.bootstrap, "state")
    into.begin_transaction()
    for name, value in ((b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"a", b"2")):
        into.produce(topic, encode_stored(value), key(name), 0)
    key_of_beacon, value_of_beacon = encode_beacon(Beacon(1, 1))
    into.produce(topic, value_of_beacon, key_of_beacon, 0)
    into.commit_transaction(30)
    into.begin_transaction()
    into.produce(topic, encode_stored(b"aborted"), key(b"b"), 0)
    into.produce(topic, None, key(b"a"), 0)
    into.flush(30)
    into.abort_transaction(30)
    into.begin_transaction()
    into.produce(topic, None, key(b"c"), 0)
    into.commit_transaction(30)
    found = state_frame(spark, f"kafka://{kafka_server.bootstrap}", app, source)
    assert sorted((bytes(row["key"]), bytes(row["value"])) for row in found.collect()) == [(b"a", b"2"), (b"b", b"1")]
