"""A real Kafka, straight (``broker``) and through a proxy that breaks things on demand (``through``, ``proxy``)."""

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from keylanes.brokers.kafka.broker import KafkaBroker
from keylanes.brokers.protocol import TopicPartition, TopicSpec
from keylanes.devkafka.cluster import KafkaCluster
from keylanes.devkafka.security import CLIENTS, ClusterSecurity
from keylanes.devkafka.server import KafkaServer

from ..stage.ground import Ground
from ..stage.proxy import Proxy

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
_LISTENER = f"listener.name.{CLIENTS.lower()}"
UNSECURED_TOKENS = {
    f"{_LISTENER}.sasl.enabled.mechanisms": ",".join([*MECHANISMS, "OAUTHBEARER"]),
    f"{_LISTENER}.oauthbearer.sasl.jaas.config": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="broker";'
    ),
}
"""Have a listener take tokens that nobody signed, beside passwords."""
REQUEST_TIMEOUT_MS = 5_000
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A Kafka with TLS, passwords and access lists; it also listens with certificates that are to be refused."""
    security = ClusterSecurity(tls=True, sasl=MECHANISMS, acl=True, users=("shop", "other"), bad_certificates=True)
    folder = tmp_path_factory.mktemp("guarded") / "kafka"
    with KafkaCluster(folder, 1, security=security, properties=UNSECURED_TOKENS) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A Kafka that knows its clients by their certificates."""
    security = ClusterSecurity(tls=True, mutual=True, users=("shop",))
    with KafkaCluster(tmp_path_factory.mktemp("mutual") / "kafka", 1, security=security) as cluster:
        yield cluster


@pytest.fixture
async def broker(kafka_server: KafkaServer) -> AsyncIterator[KafkaBroker]:
    """A connection straight to the broker."""
    broker = KafkaBroker(kafka_server.bootstrap)
    await broker.open()
    yield broker
    await broker.close()


@pytest.fixture
async def proxy(kafka_server: KafkaServer) -> AsyncIterator[Proxy]:
    """The proxy in front of the broker."""
    proxy = Proxy(kafka_server.proxied_port, kafka_server.proxied_listener_port)
    await proxy.start()
    yield proxy
    await proxy.close()


@pytest.fixture
async def through(proxy: Proxy, kafka_server: KafkaServer) -> AsyncIterator[KafkaBroker]:
    """A connection through the proxy; whatever it makes goes that way, too."""
    broker = KafkaBroker(
        f"127.0.0.1:{kafka_server.proxied_port}",
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        default_api_timeout_ms=REQUEST_TIMEOUT_MS,
    )
    await broker.open()
    yield broker
    await broker.close()


@pytest.fixture
def name() -> str:
    """A name that no other test uses, for a transactional id or a topic."""
    return f"trap-{next(_numbers)}"


@pytest.fixture
async def place(broker: KafkaBroker, name: str) -> TopicPartition:
    """The only partition of a new topic."""
    await broker.create([TopicSpec(name, 1, {})])
    return TopicPartition(name, 0)


@pytest.fixture
def kafka(kafka_server: KafkaServer, tmp_path: Path) -> Ground:
    """A real Kafka, a folder for the state, and a name: one that ended with an error is waited for but two beats."""
    return Ground(f"kafka://{kafka_server.bootstrap}", tmp_path / "state", "one")


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.broker)])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    """Both brokers, one after the other, with a folder for the state."""
    if request.param == "embedded":
        return Ground(f"embedded:{tmp_path / 'data'}")
    found: Ground = request.getfixturevalue("kafka")
    return found
