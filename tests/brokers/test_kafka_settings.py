"""The Kafka adapter before it connects: what it refuses, and that it keeps secrets to itself. No broker is needed."""

import pytest

from keylanes.brokers.kafka.broker import KafkaBroker
from keylanes.brokers.kafka.link import LinkSettings
from keylanes.brokers.protocol import BrokerError, TopicPartition
from keylanes.brokers.security import Secret, Security
from keylanes.errors import SettingsError


@pytest.mark.parametrize("bootstrap", ["broker.example:9092", "127.0.0.1:9092,10.1.2.3:9092", "[2001:db8::1]:9092"])
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_plain_text_to_another_machine_is_refused(bootstrap: str, protocol: str) -> None:
    """An unencrypted connection that leaves the machine is refused unless it is allowed by name."""
    with pytest.raises(SettingsError, match="not encrypted"):
        KafkaBroker(bootstrap, security=Security(security_protocol=protocol))
    KafkaBroker(bootstrap, security=Security(security_protocol=protocol, allow_plaintext=True))
    KafkaBroker(bootstrap, security=Security(security_protocol="SASL_SSL"))


@pytest.mark.parametrize("bootstrap", ["localhost:9092", "127.0.0.1:9092", "127.0.0.2:9092,localhost:1", "[::1]:9092"])
def test_plain_text_on_this_machine_is_allowed(bootstrap: str) -> None:
    """Loopback addresses need no encryption."""
    KafkaBroker(bootstrap)


def test_an_unknown_codec_is_refused() -> None:
    """The error names the codecs there are."""
    with pytest.raises(SettingsError, match=r"'brotli'.*'zstd'"):
        KafkaBroker("localhost:9092", compression_type="brotli")


def test_secrets_do_not_show(capsys: pytest.CaptureFixture[str]) -> None:
    """Passwords reach the client library and nothing that prints the settings."""
    security = Security(
        security_protocol="SASL_PLAINTEXT", sasl_plain_username="user", sasl_plain_password=Secret("hunter2")
    )
    settings = LinkSettings("localhost:9092", "test", security, 1_000, 1_000)
    assert settings.client_arguments()["sasl_plain_password"] == "hunter2"
    assert "hunter2" not in f"{settings!r} {settings} {KafkaBroker('localhost:9092', security=security)!r}"


async def test_a_broker_that_is_not_open_says_so() -> None:
    """Calls before ``open`` raise BrokerError, and ``close`` does no harm."""
    broker = KafkaBroker("localhost:9092")
    with pytest.raises(BrokerError):
        await broker.watermarks([TopicPartition("topic", 0)])
    await broker.close()
