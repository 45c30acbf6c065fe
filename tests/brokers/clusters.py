"""A simulated cluster with two topics, for tests: what is sent to it, and what is there then."""

from keylanes.brokers.producer import TransactionalProducer
from keylanes.brokers.protocol import Outgoing, TopicPartition
from keylanes.brokers.simulated.broker import Faults, Latency, SimulatedBroker, SimulatedConnection
from keylanes.brokers.simulated.requests import Numbered

SOURCE, OTHER = TopicPartition("a", 0), TopicPartition("b", 0)


def cluster_of(
    seed: int = 0,
    faults: Faults | None = None,
    latency: Latency = Latency(),  # noqa: B008  # frozen
    brokers: int = 1,
) -> SimulatedBroker:
    """A cluster, of one broker unless said, with the topics a and b of one partition."""
    cluster = SimulatedBroker(seed, faults=faults, latency=latency, brokers=brokers)
    cluster.create_topic("a", 1)
    cluster.create_topic("b", 1)
    return cluster


def of(*values: int, topic: str = "a") -> list[Outgoing]:
    """Records with these values."""
    return [Outgoing(topic, 0, b"k", b"%d" % value) for value in values]


def both(*values: int) -> list[Outgoing]:
    """The same records for both topics."""
    return of(*values) + of(*values, topic="b")


def committed(cluster: SimulatedBroker, topic: str = "a") -> list[int]:
    """The committed values of a topic."""
    return [int(record.value or b"") for record in cluster.committed_records(topic)]


async def producer_of(
    connection: SimulatedConnection, name: str = "id", timeout_ms: int = 30_000
) -> TransactionalProducer[Numbered]:
    """A new producer."""
    return await connection.producer(name, transaction_timeout_ms=timeout_ms)
