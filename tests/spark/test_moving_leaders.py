"""The witness while leaders move and a broker hangs: three nodes, two applications over one source into one topic."""

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

import pytest

from keylanes.devkafka.cluster import KafkaCluster
from keylanes.spark.access import Access

from ..stage.leaders import Leaders
from ..tiers.marks import tier
from .honest import APP, AUDITED, DEAD, LATE, SOURCE, Planner, Run
from .test_kafka import create, producer, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from keylanes.spark.report import Report

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(600), tier("proof", "moving-leaders")]

OTHER = "sights"
READ = "read"
TOPICS = (f"{APP}.control", f"{APP}.offsets", SOURCE, LATE, AUDITED, DEAD)
MOVES_MIN, PAUSE_S = 3, 0.5


@pytest.fixture(scope="module")
def runs() -> tuple[Run, Run]:
    """What the applications do."""
    return Planner(restarts=1).run(), Planner(app=OTHER, process="another process", workers=5, step=30).run()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, runs: tuple[Run, Run]) -> Iterator[KafkaCluster]:
    """Three nodes, which hold all that both applications wrote, the one's outputs between the other's."""
    one, other = runs
    with KafkaCluster(tmp_path_factory.mktemp("leaders") / "kafka") as cluster:
        names = {f"{run.app}.{log}": parts for run in runs for log, parts in (("control", 1), ("offsets", 2))}
        create(cluster.bootstrap, {**names, SOURCE: 2, LATE: 2, AUDITED: 2, DEAD: 2, READ: 1}, replicas=3)
        writing = {run.app: producer(cluster.bootstrap, run.app) for run in runs}
        for made in writing.values():
            made.begin_transaction()
        send(writing[APP], one, outputs=False)
        send(writing[OTHER], other, sources=False, outputs=False)
        for pair in zip(one.outputs, other.outputs, strict=True):
            for app, output in zip((APP, OTHER), pair, strict=True):
                record = output.record(2)
                writing[app].produce(
                    record.topic, record.value, record.key, record.partition, headers=list(record.headers)
                )
        for made in writing.values():
            made.commit_transaction(60)
        yield cluster


def audited(spark: "SparkSession", cluster: KafkaCluster, app: str) -> "Report":
    """The audit of one of them."""
    from keylanes.spark.audit import AuditSpec, audit

    broker = f"kafka://{cluster.bootstrap}"
    return audit(spark, AuditSpec(app=app, broker=broker, outputs=[LATE, AUDITED], dead_letters=[DEAD], level=True))


class Unrest:
    """Moves the leaders of all topics, again and again, until it is left."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.moves = 0
        self._leaders, self._over = Leaders(cluster), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.is_set():
            self._leaders.move(TOPICS)
            self.moves += 1
            self._over.wait(PAUSE_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def check(report: "Report", run: Run) -> None:
    """All of it is proven, although another application's outputs lie in the same partitions."""
    assert report.violated_checks() == []
    assert report.figures["outputs"] + report.figures["dead_letters"] == len(run.outputs)
    assert report.figures["outputs_of_others"] == len(run.outputs)


def test_an_application_is_proven_while_leaders_move(
    spark: "SparkSession", cluster: KafkaCluster, runs: tuple[Run, Run]
) -> None:
    """Whoever is asked for an end, or read from in a Spark worker, may lead no more."""
    with Unrest(cluster) as unrest:
        report = audited(spark, cluster, OTHER)
    assert unrest.moves >= MOVES_MIN
    check(report, runs[1])


def test_questions_are_answered_after_a_move(cluster: KafkaCluster) -> None:
    """A client that knew the leaders of before asks for ends, and whether they are decided."""
    witness = Access(f"kafka://{cluster.bootstrap}").open()
    places = [(SOURCE, 0), (SOURCE, 1), (LATE, 0), (LATE, 1)]
    before = witness.spans(places)
    for _ in range(2):
        Leaders(cluster).move([SOURCE, LATE])
        assert witness.spans(places) == before
        witness.wait_decided(before)
    witness.close()


def test_a_read_goes_on_after_a_move(cluster: KafkaCluster) -> None:
    """The reader stands at the end of the partition when the leader moves; what comes then is read from the next."""
    leaders = Leaders(cluster)
    write(cluster, range(100))
    reading = Access(f"kafka://{cluster.bootstrap}").open().read((READ, 0), 0, 200)
    seen: list[bytes | None] = []
    while len(seen) < 100:
        seen += next(reading).values
    leaders.move([READ])
    write(cluster, range(100, 200))
    for chunk in reading:
        seen += chunk.values
    assert seen == [b"%d" % number for number in range(200)]


def write(cluster: KafkaCluster, numbers: range) -> None:
    """Records of the topic ``read``."""
    from confluent_kafka import Producer

    plain: Any = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0})
    for number in numbers:
        plain.produce(READ, b"%d" % number, b"k", 0)
    assert plain.flush(60) == 0


def test_an_application_is_proven_while_one_of_three_brokers_hangs(
    spark: "SparkSession", cluster: KafkaCluster, runs: tuple[Run, Run]
) -> None:
    """It accepts connections and says nothing. No end is made up for what it led: who leads there next is asked."""
    witness = Access(f"kafka://{cluster.bootstrap}").open()
    places = [(f"{APP}.offsets", 0), (f"{APP}.offsets", 1), *((topic, p) for topic in (SOURCE, LATE) for p in (0, 1))]
    before = witness.spans(places)
    hung = Leaders(cluster).of(f"{APP}.offsets", 0)
    hung.suspend()
    try:
        assert witness.spans(places) == before
        check(audited(spark, cluster, APP), runs[0])
    finally:
        hung.resume()
        witness.close()
