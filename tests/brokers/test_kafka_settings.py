"""The Kafka adapter before it connects: what it refuses, and that it keeps secrets to itself. No broker is needed."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from keylanes.brokers.kafka.broker import KafkaBroker
from keylanes.brokers.kafka.link import LinkSettings
from keylanes.brokers.protocol import BrokerError, TopicPartition
from keylanes.brokers.security import Secret, Security
from keylanes.errors import SettingsError


def secured(protocol: str, **more: Any) -> Security:
    """With the user that SASL needs."""
    return Security(
        security_protocol=protocol, sasl_plain_username="user", sasl_plain_password=Secret("hunter2"), **more
    )


@pytest.mark.parametrize("bootstrap", ["broker.example:9092", "127.0.0.1:9092,10.1.2.3:9092", "[2001:db8::1]:9092"])
@pytest.mark.parametrize("protocol", ["", "SASL_"])
def test_plain_text_to_another_machine_is_refused(bootstrap: str, protocol: str) -> None:
    """An unencrypted connection that leaves the machine is refused unless it is allowed by name."""
    with pytest.raises(SettingsError, match="not encrypted"):
        KafkaBroker(bootstrap, security=secured(f"{protocol}PLAINTEXT"))
    KafkaBroker(bootstrap, security=secured(f"{protocol}PLAINTEXT", allow_plaintext=True))
    KafkaBroker(bootstrap, security=secured(f"{protocol}SSL"))


@pytest.mark.parametrize("bootstrap", ["localhost:9092", "127.0.0.1:9092", "127.0.0.2:9092,localhost:1", "[::1]:9092"])
def test_plain_text_on_this_machine_is_allowed(bootstrap: str) -> None:
    """Loopback addresses need no encryption."""
    KafkaBroker(bootstrap)


@pytest.mark.parametrize(
    ("bootstrap", "says"),
    [
        ("localhost", "seen 'localhost', which has no port: .* as in localhost:9092; none is guessed"),
        ("localhost:9092,[::1]", r"seen '\[::1\]', which has no port"),
        (":9092", "which has no host"),
        ("localhost:abc", "from 1 to 65535; seen 'abc' in 'localhost:abc'"),
        ("localhost:0", "seen '0'"),
        ("localhost:99999", "seen '99999'"),
        ("localhost:", "seen ''"),
        ("a:1,kafka://b:2", "name the scheme once"),
    ],
)
def test_an_address_without_a_port_is_refused(bootstrap: str, says: str) -> None:
    """What is missing, or is no port, is named; no port is guessed, nor is the connection called unencrypted."""
    with pytest.raises(SettingsError, match=says) as refused:
        KafkaBroker(bootstrap, security=Security(allow_plaintext=True))
    assert "encrypted" not in str(refused.value)


@pytest.mark.parametrize("field", ["ssl_cafile", "ssl_certfile", "ssl_keyfile"])
@pytest.mark.parametrize(("text", "says"), [(None, "No such file"), ("none", "PEM")], ids=["missing", "no PEM"])
async def test_a_file_that_can_not_be_used_is_named(tmp_path: Path, field: str, text: str | None, says: str) -> None:
    """When the application connects, with the setting and the file, as a wrong setting."""
    path = tmp_path / "file.pem"
    if text is not None:
        path.write_text(text)
    (tmp_path / "certificate.pem").write_text("none")
    files: dict[str, Any] = {"ssl_certfile": str(tmp_path / "certificate.pem")} if field == "ssl_keyfile" else {}
    broker = KafkaBroker("localhost:1", security=Security(security_protocol="SSL", **{**files, field: str(path)}))
    with pytest.raises(SettingsError, match=f"{field}.*{re.escape(str(path))}.*{says}"):
        await broker.open()
    await broker.close()


@pytest.mark.skipif(not shutil.which("openssl"), reason="makes the key")
def test_a_key_with_a_password_does_not_ask_for_it(tmp_path: Path) -> None:
    """OpenSSL would ask on the terminal, where nobody sits."""
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    make = ["openssl", "req", "-x509", "-newkey", "rsa:1024", "-passout", "pass:hunter2", "-subj", "/CN=keylanes"]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    security = Security(security_protocol="SSL", ssl_certfile=certificate, ssl_keyfile=key)
    with pytest.raises(SettingsError, match=r"the certificates can't be used: .*ssl_password"):
        LinkSettings("localhost:1", "test", security, 1_000, 1_000, 1_000).client_arguments()


async def test_kerberos_needs_its_package() -> None:
    """Which no extra of ours brings."""
    broker = KafkaBroker("localhost:1", security=Security(security_protocol="SASL_PLAINTEXT", sasl_mechanism="GSSAPI"))
    with pytest.raises(SettingsError, match="pip install gssapi"):
        await broker.open()


def test_an_unknown_codec_is_refused() -> None:
    """The error names the codecs there are."""
    with pytest.raises(SettingsError, match=r"'brotli'.*'zstd'"):
        KafkaBroker("localhost:9092", compression_type="brotli")


def test_secrets_do_not_show(capsys: pytest.CaptureFixture[str]) -> None:
    """Passwords reach the client library and nothing that prints the settings."""
    security = Security(
        security_protocol="SASL_PLAINTEXT", sasl_plain_username="user", sasl_plain_password=Secret("hunter2")
    )
    settings = LinkSettings("localhost:9092", "test", security, 1_000, 1_000, 1_000)
    assert settings.client_arguments()["sasl_plain_password"] == "hunter2"
    assert "hunter2" not in f"{settings!r} {settings} {KafkaBroker('localhost:9092', security=security)!r}"


async def test_a_broker_that_is_not_open_says_so() -> None:
    """Calls before ``open`` raise BrokerError, and ``close`` does no harm."""
    broker = KafkaBroker("localhost:9092")
    with pytest.raises(BrokerError):
        await broker.watermarks([TopicPartition("topic", 0)])
    await broker.close()
