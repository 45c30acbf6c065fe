"""The development cluster: three nodes that fail over, come back, keep what was written, and are never left behind."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from keylanes import App
from keylanes.brokers.kafka.broker import KafkaBroker
from keylanes.brokers.protocol import TopicSpec
from keylanes.devkafka.cluster import SESSION_MS, KafkaCluster
from keylanes.devkafka.guard import process_start
from keylanes.devkafka.node import KafkaNode
from keylanes.devkafka.server import KafkaServer
from keylanes.errors import StoreError

from ..tiers.marks import tier

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300), tier("proof", "brokers")]

LIMIT_S = 90.0
# A client that gives a silent node three seconds: the test is about the cluster, not about a client's patience.
PATIENCE = {
    "api.version.request.timeout.ms": 3_000,
    "log_level": 0,
    "request.timeout.ms": 3_000,
    "socket.timeout.ms": 3_000,
}
OWNER = """
import sys, threading
from keylanes.devkafka.cluster import KafkaCluster
cluster = KafkaCluster(sys.argv[1])
cluster.start()
print(*[node.pid for node in cluster.nodes], flush=True)
threading.Event().wait()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three nodes with a topic ``log`` of one partition."""
    with KafkaCluster(tmp_path_factory.mktemp("cluster") / "kafka") as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for made in admin.create_topics([NewTopic("log", 1)]).values():
            made.result(60)
        yield cluster


def writer(cluster: KafkaCluster) -> Producer:
    """What writes each value once."""
    return Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, **PATIENCE})


def write(producer: Producer, value: str) -> float:
    """Write a value to the log; after how many seconds it was there."""
    failed: list[object] = []
    began = time.monotonic()
    producer.produce("log", value, partition=0, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(LIMIT_S) == 0
    assert failed == [None]
    return time.monotonic() - began


def written(cluster: KafkaCluster, last: str) -> list[str]:
    """All values in the log up to this one. No end is asked for: a node that was away may answer with an older one."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "x", "log_level": 0})
    try:
        consumer.assign([TopicPartition("log", 0, 0)])
        found: list[str] = []
        until = time.monotonic() + LIMIT_S
        while last not in found:
            assert time.monotonic() < until, found
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                found.append(message.value().decode())
        return found
    finally:
        consumer.close()


def leader(cluster: KafkaCluster) -> KafkaNode:
    """The node that leads the log, as soon as all three are in sync: otherwise two in sync are not left without it."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        log = admin.list_topics("log", timeout=LIMIT_S).topics["log"].partitions[0]
        if log.leader > 0 and len(log.isrs) == len(cluster.nodes):
            return cluster.nodes[int(log.leader) - 1]
    raise AssertionError("the log has no leader, or not all nodes are in sync")


FAULTS: dict[str, Callable[[KafkaNode], None]] = {
    "killed": KafkaNode.kill,
    "suspended": KafkaNode.suspend,
    "stopped": KafkaNode.stop,
}


async def test_an_application_is_told_where_commits_can_be_lost(
    cluster: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Topics are made as told, or as the cluster has it; one that a single broker keeps is warned about by name."""
    broker = KafkaBroker(cluster.bootstrap)
    await broker.open()
    await broker.create([TopicSpec("in", 1, {}), TopicSpec("alone", 1, {}, replicas=1)])
    await broker.close()
    app = App("told", broker=f"kafka://{cluster.bootstrap}")
    app.handler("in", to="alone")(lambda value: value)
    with caplog.at_level(logging.INFO, "keylanes"):
        async with app:
            pass
    (line,) = [r.getMessage() for r in caplog.records if "replication: " in r.getMessage()]
    assert "told.control, told.offsets: 3 replicas, min.insync.replicas 2, unclean election off" in line
    assert "alone: 1 replica, " in line
    (warned,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "told: alone on a cluster of 3 brokers: kept by one of them alone (replication factor 1)" in warned


@pytest.mark.parametrize("fault", FAULTS)
def test_another_node_leads(cluster: KafkaCluster, fault: str) -> None:
    """Without its leader the log can be written again after the session, and the node comes back by itself."""
    producer = writer(cluster)
    write(producer, f"before {fault}")
    led = leader(cluster)
    FAULTS[fault](led)
    try:
        assert write(producer, f"while {fault}") < 4 * SESSION_MS / 1000
    finally:
        led.resume()
        led.start()
    assert led.is_running()
    write(producer, f"after {fault}")
    assert written(cluster, f"after {fault}")[-3:] == [f"before {fault}", f"while {fault}", f"after {fault}"]


def test_the_whole_cluster_is_killed(cluster: KafkaCluster) -> None:
    """After a power cut all is there again, at the same addresses."""
    producer = writer(cluster)
    write(producer, "the last")
    before, addresses = written(cluster, "the last"), cluster.bootstrap
    cluster.kill()
    assert not cluster.is_running()
    cluster.start()
    assert cluster.bootstrap == addresses
    assert written(cluster, "the last") == before
    write(producer, "the next")
    assert written(cluster, "the next") == [*before, "the next"]


def test_a_folder_has_one_user_and_one_number_of_nodes(cluster: KafkaCluster, tmp_path: Path) -> None:
    """Another program, another number of nodes and the single server are refused in words."""
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        KafkaCluster(cluster.folder).start()
    with pytest.raises(StoreError, match="holds a cluster of 3 nodes, asked for were 1"):
        KafkaServer(cluster.folder).start()
    (tmp_path / "data").mkdir()
    with pytest.raises(StoreError, match="holds a cluster of 1 node, asked for were 3"):
        KafkaCluster(tmp_path).start()
    with pytest.raises(ValueError, match="nodes: seen 0; allowed are 1 to 9"):
        KafkaCluster(tmp_path, 0)


def test_all_nodes_end_with_their_program(tmp_path: Path) -> None:
    """When the program that started them is killed no node is left, not even a suspended one."""
    program = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "kafka")], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    pids = [int(pid) for pid in program.stdout.readline().split()]
    assert len(pids) == 3
    os.kill(pids[0], signal.SIGSTOP)
    program.kill()
    program.communicate()
    until = time.monotonic() + LIMIT_S
    while any(process_start(pid) for pid in pids):
        assert time.monotonic() < until, "a node outlives its program"
        time.sleep(0.05)
