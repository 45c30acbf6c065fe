"""The two data sources by themselves, as somebody with a notebook uses them."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from keylanes.state.topics import NewRecord, TopicStore

from .honest import APP, LATE, SOURCE, Planner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_records_are_read_in_splits_with_their_provenance(spark: "SparkSession", tmp_path: Path) -> None:
    """Every record once, however the offsets are split, and the header as columns."""
    from keylanes.spark.source import register

    run = Planner(restarts=0).run()
    url = run.store(tmp_path / "topics")
    register(spark)
    read = spark.read.format("keylanes_records").option("broker", url).option("split_records", "37")
    source = read.option("topics", SOURCE).load()
    assert source.rdd.getNumPartitions() == 22
    rows = {(row["partition"], row["offset"]): (row["key"], row["value"]) for row in source.collect()}
    assert rows == {(p, i): record for p, own in enumerate(run.records) for i, record in enumerate(own)}
    late = read.option("topics", LATE).option("columns", "kl_topic,kl_partition,kl_offset,kl_i,kl_n").load()
    assert sorted(map(tuple, late.collect())) == sorted(
        (SOURCE, o.partition, o.offset, o.i, o.n) for o in run.outputs if o.destination == LATE
    )
    assert read.option("topics", SOURCE).option("headed", "true").load().count() == 0


def test_events_are_flattened_to_rows(spark: "SparkSession", tmp_path: Path) -> None:
    """Tiles of commits, workers of cuts and bands of grants are rows of their own."""
    from keylanes.spark.source import register

    url = Planner(partitions=1, log_partitions=1, workers=4, restarts=1).run().store(tmp_path / "topics")
    register(spark)
    events = spark.read.format("keylanes_events").option("broker", url)
    progress = events.option("topics", f"{APP}.offsets").load()
    cuts = progress.where("kind = 'workers_cut'").orderBy("position", "item").collect()
    assert [(row["incarnation"], row["worker"], row["first"]) for row in cuts] == [
        (life, worker, worker << 30) for life in (1, 2) for worker in range(4)
    ]
    assert progress.where("kind = 'committed' and offset_to > offset_from").count() > 4
    grants = events.option("topics", f"{APP}.control").load().where("kind = 'ranges_granted'")
    assert {row["epoch"] for row in grants.collect()} == {1, 2}


@pytest.mark.parametrize(
    ("log", "tag", "says"),
    [
        ("offsets", "log_opened/9", "newer"),
        ("offsets", "state_changed/1", "was written before the first release"),
        ("control", "member_joined/1", "was written before the first release"),
    ],
)
def test_an_unknown_event_stops_the_audit_with_its_name(
    spark: "SparkSession", tmp_path: Path, log: str, tag: str, says: str
) -> None:
    """It is never skipped: the error names the kind and the version, and whether it is too new or too old."""
    from keylanes.spark.audit import AuditSpec, audit
    from keylanes.spark.brokers import AuditError

    url = Planner(restarts=0).run().store(tmp_path / "topics")
    store = TopicStore.open(tmp_path / "topics")
    store.append([NewRecord(f"{APP}.{log}", 0, None, msgspec.msgpack.encode([tag, 1]))])
    store.close()
    with pytest.raises(AuditError, match=f"{tag}.*{says}"):
        audit(spark, AuditSpec(app=APP, broker=url))


def test_client_settings_do_not_show_in_plans(
    spark: "SparkSession", tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A password given to the reader is in no plan that Spark prints."""
    from keylanes.spark.source import register

    url = Planner(restarts=0).run().store(tmp_path / "topics")
    register(spark)
    read = spark.read.format("keylanes_records").option("broker", url).option("topics", SOURCE)
    read.option("client_secrets", '{"sasl.password": "hunter2"}').load().explain("extended")
    assert "hunter2" not in capfd.readouterr().out
