"""The witness on a real Kafka: aborted records and markers are not there, open transactions are waited for."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from keylanes.offsets.codec import encode
from keylanes.offsets.provenance import HEADER, encode_provenance

from ..tiers.brokers import SharedKafka
from .honest import APP, APP_ID, AUDITED, DEAD, LATE, SOURCE, Planner, Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = [pytest.mark.spark, pytest.mark.broker]


def create(bootstrap: str, partitions: dict[str, int], replicas: int = 1) -> None:
    """Create topics and wait for them."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, n, replicas) for name, n in partitions.items()]).values():
        future.result(30)


def producer(bootstrap: str, transactional_id: str) -> Any:
    """A transactional producer, ready."""
    from confluent_kafka import Producer

    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 5})
    made.init_transactions(30)
    return made


def send(into: Any, run: Run, *, sources: bool = True, outputs: bool = True) -> None:
    """All records of a run, in the open transaction."""
    for p, own in enumerate(run.records if sources else ()):
        for key, value in own:
            into.produce(SOURCE, value, key, p)
    for event in run.control_log():
        into.produce(f"{run.app}.control", encode(event), None, 0)
    for p, log in enumerate(run.events):
        for one in log:
            into.produce(f"{run.app}.offsets", encode(one), None, p)
    for output in run.outputs if outputs else ():
        record = output.record(2)
        into.produce(record.topic, record.value, record.key, record.partition, headers=list(record.headers))


def test_an_honest_run_on_kafka_is_proven(spark: "SparkSession", kafka_server: SharedKafka, tmp_path: Path) -> None:
    """Between its records lie aborted ones, at both ends too, and a transaction is still open when the audit begins."""
    from keylanes.spark.audit import AuditSpec, audit

    run = Planner(restarts=1).run()
    topics = {f"{APP}.control": 1, f"{APP}.offsets": 2, SOURCE: 2, LATE: 2, AUDITED: 2, DEAD: 2}
    create(kafka_server.bootstrap, topics)
    honest, other = producer(kafka_server.bootstrap, "honest"), producer(kafka_server.bootstrap, "other")
    other.begin_transaction()
    for p, log in enumerate(run.events):
        other.produce(f"{APP}.offsets", encode(log[0]), None, p)  # the opening of a process that did not come far
    other.flush(30)
    other.abort_transaction(30)
    honest.begin_transaction()
    send(honest, run)
    honest.commit_transaction(30)
    other.begin_transaction()
    for name in (SOURCE, LATE):
        header = [(HEADER, encode_provenance(APP_ID, SOURCE, 0, 3, 0, 1))]
        other.produce(name, b"3", b"aborted", 0, headers=header)
    other.flush(30)
    other.abort_transaction(30)
    other.begin_transaction()
    other.produce(LATE, b"open", b"aborted later", 1, headers=[(HEADER, encode_provenance(APP_ID, SOURCE, 0, 3, 0, 1))])
    other.flush(30)
    ending = threading.Timer(3.0, other.abort_transaction, (30,))
    ending.start()
    try:
        broker = f"kafka://{kafka_server.bootstrap}"
        spec = AuditSpec(app=APP, broker=broker, outputs=[LATE, AUDITED], dead_letters=[DEAD], level=True)
        report = audit(spark, spec)  # of these topics only: other tests leave damaged ones at this broker
    finally:
        ending.join()
    assert report.violated_checks() == []
    assert report.figures["records_done"] == 800
    assert report.figures["outputs"] + report.figures["dead_letters"] == len(run.outputs)
    assert all(source.source_end > 400 for source in report.sources if source.partition == 0)


def test_a_broker_that_does_not_answer_is_an_error_in_words() -> None:
    """The audit ends after its time limit, and says what it may be."""
    from keylanes.spark.access import Access
    from keylanes.spark.brokers import AuditError

    for security, hint in (({}, "want TLS or a log-in"), ({"security.protocol": "SSL"}, "Do the client settings")):
        with pytest.raises(AuditError, match=rf"no answer from 127.0.0.1:1 for 2 s: topics: .*{hint}"):
            Access("kafka://127.0.0.1:1", security, 2_000).open().topics()


def test_a_head_that_goes_while_it_is_read(kafka_server: SharedKafka) -> None:
    """Retention of somebody else's topic ends no audit; where every record counts it is an error."""
    from confluent_kafka import Producer, TopicPartition
    from confluent_kafka.admin import AdminClient

    from keylanes.spark.access import Access
    from keylanes.spark.brokers import AuditError

    topic = "head-that-goes"
    create(kafka_server.bootstrap, {topic: 1})
    plain = Producer({"bootstrap.servers": kafka_server.bootstrap})
    for i in range(10):
        plain.produce(topic, b"%d" % i, b"k", 0)
    assert plain.flush(30) == 0
    broker = Access(f"kafka://{kafka_server.bootstrap}").open()
    pinned = broker.spans([(topic, 0)])[topic, 0]
    assert pinned == (0, 10)
    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, 4)]).values():
        future.result()
    left = broker.read((topic, 0), *pinned, head_may_go=True)
    assert [offset for chunk in left for offset in chunk.offsets] == list(range(4, 10))
    with pytest.raises(AuditError, match="out of range"):
        list(broker.read((topic, 0), *pinned))
    assert not list(broker.read((topic, 0), 0, 3, head_may_go=True)), "all of it is gone"
    broker.close()
