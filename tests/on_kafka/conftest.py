"""A real Kafka, straight (``broker``) and through a proxy that breaks things on demand (``through``, ``proxy``)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keylanes.brokers.kafka.broker import KafkaBroker
from keylanes.brokers.protocol import TopicPartition, TopicSpec

from ..stage.ground import Ground
from ..stage.proxy import Proxy
from ..tiers.brokers import SharedKafka
from ..tiers.names import fresh

REQUEST_TIMEOUT_MS = 5_000
BOTH = ("embedded", pytest.param("kafka", marks=pytest.mark.broker))


@pytest.fixture
async def broker(kafka_server: SharedKafka) -> AsyncIterator[KafkaBroker]:
    """A connection straight to the broker."""
    broker = KafkaBroker(kafka_server.bootstrap)
    await broker.open()
    yield broker
    await broker.close()


@pytest.fixture
async def proxy(kafka_server: SharedKafka) -> AsyncIterator[Proxy]:
    """The proxy in front of the broker."""
    proxy = Proxy(kafka_server.proxied_port, kafka_server.proxied_listener_port)
    await proxy.start()
    yield proxy
    await proxy.close()


@pytest.fixture
async def through(proxy: Proxy, kafka_server: SharedKafka) -> AsyncIterator[KafkaBroker]:
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
    return fresh("trap")


@pytest.fixture
async def place(broker: KafkaBroker, name: str) -> TopicPartition:
    """The only partition of a new topic."""
    await broker.create([TopicSpec(name, 1, {})])
    return TopicPartition(name, 0)


@pytest.fixture
def kafka(kafka_server: SharedKafka, tmp_path: Path) -> Ground:
    """A real Kafka, a folder for the state, and a name: one that ended with an error is waited for but two beats."""
    return Ground(f"kafka://{kafka_server.bootstrap}", tmp_path / "state", "one")


def ground_of(request: pytest.FixtureRequest) -> Ground:
    """What a fixture stands on whose parameter is ``embedded`` or ``kafka``, with a folder for the state."""
    tmp_path, param = request.getfixturevalue("tmp_path"), request.param
    found: Ground = Ground(f"embedded:{tmp_path / 'data'}") if param == "embedded" else request.getfixturevalue(param)
    return found


@pytest.fixture(params=BOTH)
def either(request: pytest.FixtureRequest) -> Ground:
    """Both brokers, one after the other, with a folder for the state."""
    return ground_of(request)


@pytest.fixture(params=BOTH)
def ground(request: pytest.FixtureRequest) -> Ground:
    """The same without a folder and a name."""
    return Ground(ground_of(request).address)
