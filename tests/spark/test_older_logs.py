"""The audit of logs that older versions wrote, as they are and after today's application went on with them.

The golden logs are those of tests/offsets/golden_logs.py. Their last process died: orders wait.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from keylanes.state.changelog import OLD_BEACON_KEY
from keylanes.state.topics import NewRecord, TopicStore

from ..offsets import golden_logs
from ..offsets.golden_logs import APP, CHANGELOG, DEAD, OUTPUT, PARTITIONS, application, expected, order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from keylanes.spark.judge_state import ExpectedState
    from keylanes.spark.report import Report

pytestmark = [pytest.mark.spark]

GOLDEN = Path(golden_logs.__file__).parent / "golden"
ORDERS = golden_logs.LIVES * golden_logs.ORDERS_EACH
MORE = 30

VERSIONS = ["0.1", "level-0"]


def state_of_orders(spark: "SparkSession", done: "DataFrame") -> "DataFrame":
    """The state that the orders give that are done."""
    values = sorted(int(row.value) for row in done.select("value").collect())
    gives = expected(values)
    rows = [("total", order(int(key[4:])).partition, key, b"", b"%d" % held) for key, held in gives.total.items()]
    rows += [
        ("last", order(int(key[4:])).partition, key, parity.encode(), b"%d" % held)
        for (key, parity), held in gives.last.items()
    ]
    columns = "store string, partition int, key binary, map_key binary, value binary"
    return spark.createDataFrame([(s, p, bytearray(k), bytearray(m), bytearray(v)) for s, p, k, m, v in rows], columns)


class Logs:
    """Golden logs on an embedded broker, and their audit."""

    def __init__(self, spark: "SparkSession", of: str, folder: Path, *, by_key: bool) -> None:
        self.spark, self.topics, self.state = spark, folder / "topics", folder / "state"
        golden_logs.load(GOLDEN / f"logs-{of}.txt", self.topics, by_key=by_key)

    def audit(self, *, level: bool, state: "ExpectedState | None" = state_of_orders) -> "Report":
        """All statements."""
        from keylanes.spark.audit import AuditSpec, audit

        broker = f"embedded:{self.topics}"
        spec = AuditSpec(app=APP, broker=broker, outputs=[OUTPUT], dead_letters=[DEAD], level=level, state=state)
        return audit(self.spark, spec)

    def run(self) -> None:
        """Today's application handles what waits."""
        broker = f"embedded:{self.topics}"
        app, _ = application(broker, state_folder=str(self.state), snapshot_every_commits=3)
        app.run(until="level")

    def write(self, change: Callable[[TopicStore], object]) -> None:
        """Change the topics."""
        store = TopicStore.open(self.topics)
        change(store)
        store.close()


@pytest.mark.parametrize(("version", "by_key"), [("0.1", True), ("level-0", False)])
def test_the_logs_of_an_older_version_are_proven(
    spark: "SparkSession", version: str, by_key: bool, tmp_path: Path
) -> None:
    """As they are, with records that wait; then with those and more done, by two processes of today's version."""
    logs = Logs(spark, version, tmp_path, by_key=by_key)
    report = logs.audit(level=False)
    assert report.violated() == [], report.to_text()
    assert report.figures["records"] == ORDERS
    assert 0 < report.figures["records_waiting"] < golden_logs.ORDERS_EACH
    assert report.check("state-beacon").checked == PARTITIONS
    for name in ("state", "state-key", "output-once", "commit-digest", "tile-cover", "key-order"):
        assert report.check(name).checked > 0, name
    logs.run()
    logs.write(lambda store: store.append([order(value) for value in range(ORDERS, ORDERS + MORE)]))
    logs.run()
    report = logs.audit(level=True)
    assert report.violated() == [], report.to_text()
    gives = expected(range(ORDERS + MORE))
    assert report.figures["records_done"] == report.figures["records"] == ORDERS + MORE
    assert report.figures["outputs"] == sum(map(len, gives.outputs.values()))
    assert report.figures["dead_letters"] == len(gives.dead)
    assert report.figures["state_keys"] == len(gives.total) + len(gives.last)
    assert report.check("state-beacon").checked >= PARTITIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_older_logs_that_were_trimmed_are_proven(spark: "SparkSession", version: str, tmp_path: Path) -> None:
    """Below an older snapshot, as the older version trims them itself: the audit starts from what that one says."""
    logs = Logs(spark, version, tmp_path, by_key=False)
    positions = second_newest_snapshots(version)
    assert min(positions) > 0
    for partition, before in enumerate(positions):
        logs.write(partial(TopicStore.trim, topic=f"{APP}.offsets", partition=partition, before=before))
    logs.run()
    report = logs.audit(level=True, state=None)
    assert report.violated() == [], report.to_text()
    assert len([note for note in report.notes if "can't be proven any more" in note]) == PARTITIONS
    assert report.figures["records_done"] == ORDERS
    assert report.check("state-key").checked > 0
    assert report.check("state-beacon").checked >= PARTITIONS


def records_of(version: str) -> dict[str, list[NewRecord]]:
    """The records of a golden file by topic."""
    return {topic.name: topic.records for topic in golden_logs.read(GOLDEN / f"logs-{version}.txt")}


def second_newest_snapshots(version: str) -> list[int]:
    """The positions that they cover, by log partition."""
    topics = records_of(version)
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for record in topics[f"{APP}.offsets"]:
        event = msgspec.msgpack.decode(record.value or b"")
        if event[0] == "snapshot_taken/2":
            found[record.partition].append(event[6])
    return [positions[-2] for positions in found]


def test_faults_in_older_logs_are_found(spark: "SparkSession", tmp_path: Path) -> None:
    """An output that is there twice, and a beacon that names an earlier transaction, beside what is proven."""
    logs = Logs(spark, "level-0", tmp_path, by_key=True)
    topics = records_of("level-0")
    beacon = next(r for r in topics[CHANGELOG] if r.key == OLD_BEACON_KEY and r.partition == 0)
    logs.write(lambda store: store.append([topics[OUTPUT][0], beacon]))
    report = logs.audit(level=False)
    assert set(report.violated()) == {"output-once", "commit-outputs", "commit-digest", "key-order", "state-beacon"}
    assert {example["partition"] for example in report.check("state-beacon").examples} == {0}
