"""What is pinned, and that the order of pinning makes an audit of a running application right."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keylanes.offsets.codec import encode
from keylanes.offsets.control_events import AppCreated
from keylanes.spark.access import Access
from keylanes.spark.brokers import AuditError, EmbeddedWitness, Place, Span
from keylanes.spark.pins import pin
from keylanes.state.topics import NewRecord, TopicStore

from ..tiers.marks import tier
from .honest import APP, AUDITED, DEAD, LATE, SOURCE, TABLE, Planner, Run, records_of

pytestmark = tier("check")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Running(EmbeddedWitness):
    """A folder whose application commits a transaction before and after whatever is pinned."""

    def __init__(self, folder: Path, run: Run) -> None:
        """Stores what there is before the first transaction, and goes on as the folder's writer."""
        later = [event for events, _ in run.transactions for _, event in events]
        opening = Run(run.partitions, run.log_partitions, run.records, run.control)
        opening.events = [[event for event in log if event not in later] for log in run.events]
        self.url = opening.store(folder)
        self._writer = TopicStore.open(folder)
        self._waiting = list(run.transactions)
        super().__init__(folder)

    def work(self, transactions: int = 1) -> None:
        """The next transactions, if there are any."""
        for transaction in self._waiting[:transactions]:
            self._writer.append(records_of(transaction))
        del self._waiting[:transactions]

    def spans(self, places: Iterable[Place]) -> dict[Place, Span]:
        self.work()
        spans = super().spans(places)
        self.work()
        return spans

    def close(self) -> None:
        self._writer.close()
        super().close()


def test_a_topic_kept_by_key_is_not_audited(tmp_path: Path) -> None:
    """It is neither listed nor pinned as an output, and asking for it by name is an error in words."""
    Planner(restarts=0, records=100).run().store(tmp_path / "topics")
    broker = EmbeddedWitness(tmp_path / "topics")
    assert TABLE not in broker.topics()
    assert {topic for topic, _ in pin(broker, APP, None).outputs} == {SOURCE, LATE, AUDITED, DEAD}
    with pytest.raises(AuditError, match="no such topic"):
        pin(broker, APP, (LATE, TABLE))
    with pytest.raises(AuditError, match="does not exist"):
        broker.spans([(TABLE, 0)])
    broker.close()


@pytest.mark.spark
def test_a_running_application_is_proven_up_to_the_pins(spark: "SparkSession", tmp_path: Path) -> None:
    """Between any two pins it commits; what is promised is in view, and what is in view was promised."""
    from keylanes.spark.audit import AuditSpec, audit

    broker = Running(tmp_path / "topics", Planner(restarts=0, records=1_000, step=40).run())
    try:
        broker.work(3)
        pins = pin(broker, APP, None)
        assert pins.judged != {partition: span.end for (_, partition), span in pins.logs.items()}
        broker.work(1_000)
        report = audit(spark, AuditSpec(app=APP, broker=broker.url, dead_letters=[DEAD]), pins)
    finally:
        broker.close()
    assert report.violated_checks() == []
    assert 0 < report.figures["records_done"] < 2_000


def test_what_pins_rest_on_without_proof_is_noted(tmp_path: Path) -> None:
    """A broker may not be able to say who leads; the report says it with the verdict."""

    class Doubtful(EmbeddedWitness):
        def doubts(self) -> list[str]:
            return ["WARNING: late: whoever says that it leads is believed"]

    url = Planner(restarts=0, records=100).run().store(tmp_path)
    pins = pin(Doubtful(tmp_path), APP, None)
    assert pins.doubts == ["WARNING: late: whoever says that it leads is believed"]
    runs = pytest.importorskip("keylanes.spark.run", reason="needs pyarrow", exc_type=ModuleNotFoundError)
    assert runs.AuditContext(None, Access(url), pins, 10).notes == pins.doubts


def stored(tmp_path: Path) -> EmbeddedWitness:
    """An honest run in a folder."""
    Planner(restarts=0).run().store(tmp_path)
    return EmbeddedWitness(tmp_path)


def test_all_topics_but_logs_are_searched_for_outputs_unless_they_are_named(tmp_path: Path) -> None:
    """The sources too: an application may write into one. Named topics must exist."""
    broker = stored(tmp_path)
    assert {topic for topic, _ in pin(broker, APP, None).outputs} == {LATE, "audit", DEAD, SOURCE}
    assert {topic for topic, _ in pin(broker, APP, (LATE,)).outputs} == {LATE}
    with pytest.raises(AuditError, match="nowhere"):
        pin(broker, APP, ("nowhere",))


def test_an_application_without_logs_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    """A misspelt name is the usual cause."""
    with pytest.raises(AuditError, match="applications seen: flights"):
        pin(stored(tmp_path), "flight", None)


def test_logs_that_are_all_empty_are_nothing_to_audit(tmp_path: Path) -> None:
    """The topics were made, the application never started."""
    store = TopicStore.open(tmp_path)
    store.create("new.control", 1, {})
    store.create("new.offsets", 1, {})
    store.close()
    with pytest.raises(AuditError, match="has not run yet"):
        pin(EmbeddedWitness(tmp_path), "new", None)


def test_the_control_log_of_another_application_is_a_problem(tmp_path: Path) -> None:
    """Its first event names whose it is."""
    store = TopicStore.open(tmp_path)
    store.create("new.control", 1, {})
    store.create("new.offsets", 1, {})
    store.append([NewRecord("new.control", 0, None, encode(AppCreated("old", "xxh64-seed42-high32", 1)))])
    store.close()
    (problem,) = pin(EmbeddedWitness(tmp_path), "new", None).problems
    assert "another application: old" in str(problem["problem"])


@pytest.mark.spark
def test_outputs_deleted_while_they_are_judged_end_the_audit(spark: "SparkSession", tmp_path: Path) -> None:
    """Not as outputs that were never there: it says that it has to be run again; deleted before, it is noted."""
    from keylanes.spark.audit import AuditSpec, audit, pin_now
    from keylanes.spark.brokers import AuditError

    url = Planner(restarts=0).run().store(tmp_path / "topics")
    spec = AuditSpec(app=APP, broker=url, dead_letters=[DEAD])
    pins = pin_now(spec)
    store = TopicStore.open(tmp_path / "topics")
    store.trim(LATE, 0, 3)
    store.close()
    with pytest.raises(AuditError, match=r"deleted from the head of .*late.*run it again"):
        audit(spark, spec, pins)
    assert any("late[0] begins at offset 3" in note for note in audit(spark, spec).notes)
