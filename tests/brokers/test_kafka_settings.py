"""The Kafka adapter before it connects: what it refuses, and that it keeps secrets to itself. No broker is needed."""

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

from ..tiers.marks import tier

pytestmark = tier("check")


def secured(protocol: str, **more: Any) -> Security:
    """With the user that SASL needs."""
    return Security(
        security_protocol=protocol, sasl_plain_username="user", sasl_plain_password=Secret("hunter2"), **more
    )


@pytest.mark.parametrize("bootstrap", ["10.1.2.3:9092", "127.0.0.1:9092,10.1.2.3:9092", "[2001:db8::1]:9092"])
@pytest.mark.parametrize("protocol", ["", "SASL_"])
def test_plain_text_to_another_machine_is_refused(bootstrap: str, protocol: str) -> None:
    """An unencrypted connection that leaves the machine is refused unless it is allowed by name."""
    with pytest.raises(SettingsError, match="not encrypted"):
        KafkaBroker(bootstrap, security=secured(f"{protocol}PLAINTEXT"))
    KafkaBroker(bootstrap, security=secured(f"{protocol}PLAINTEXT", allow_plaintext=True))
    KafkaBroker(bootstrap, security=secured(f"{protocol}SSL"))


@pytest.mark.parametrize(
    "bootstrap", ["localhost:9092", "broker.example:9092", "127.0.0.1:9092", "127.0.0.2:9092,localhost:1", "[::1]:9092"]
)
def test_plain_text_on_this_machine_is_allowed(bootstrap: str) -> None:
    """Loopback addresses need no encryption. Of a name it is looked at where its connections lead."""
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


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``a.pem`` and ``b.pem`` with ``a.key`` and ``b.key``, that of b encrypted; ``none.pem`` holds no PEM."""
    folder = tmp_path_factory.mktemp("files")
    for name, locked in (("a", ["-nodes"]), ("b", ["-passout", "pass:hunter2"])):
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", *locked, "-subj", "/CN=keylanes"]
        files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
        subprocess.run([*make, *files], check=True, capture_output=True)
    (folder / "none.pem").write_text("none")
    return folder


needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="makes the keys")


@needs_openssl
@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ssl_cafile": "gone.pem"}, "ssl_cafile .*/gone.pem': No such file or directory"),
        ({"ssl_cafile": "none.pem"}, "ssl_cafile holds certificates in PEM .*seen '.*/none.pem'"),
        ({"ssl_certfile": "gone.pem"}, "ssl_certfile .*/gone.pem': No such file or directory"),
        ({"ssl_certfile": "none.pem"}, "ssl_certfile='.*/none.pem', which can't be used"),
        ({"ssl_certfile": "a.pem"}, "ssl_certfile='.*/a.pem', which can't be used"),
        ({"ssl_certfile": "a.pem", "ssl_keyfile": "gone.key"}, "ssl_keyfile .*/gone.key': No such file or directory"),
        ({"ssl_certfile": "a.pem", "ssl_keyfile": "none.pem"}, "ssl_keyfile='.*/none.pem', which can't be used"),
        (
            {"ssl_certfile": "b.pem", "ssl_keyfile": "a.key"},
            "the key is not that of the certificate; seen ssl_certfile='.*/b.pem', ssl_keyfile='.*/a.key'",
        ),
        (
            {"ssl_certfile": "b.pem", "ssl_keyfile": "b.key"},
            "ssl_keyfile '.*/b.key' is encrypted, and no ssl_password is given",
        ),
        (
            {"ssl_certfile": "b.pem", "ssl_keyfile": "b.key", "ssl_password": "hunter3"},
            "ssl_keyfile '.*/b.key' is encrypted, and ssl_password does not open it",
        ),
    ],
)
def test_a_file_that_can_not_be_used_is_named(files: Path, protocol: str, given: dict[str, str], says: str) -> None:
    """When the settings are made, with the setting and the file; OpenSSL asks for no passphrase on the terminal."""
    there = {name: value if name == "ssl_password" else str(files / value) for name, value in given.items()}
    with pytest.raises(SettingsError, match=says) as wrong:
        secured(protocol, **there)
    assert "hunter" not in str(wrong.value)


@needs_openssl
def test_files_are_taken_as_they_are_when_a_connection_is_made(files: Path, tmp_path: Path) -> None:
    """So that a certificate that was renewed is shown without a restart; one that is broken by then is named."""
    certificate, key = tmp_path / "c.pem", tmp_path / "c.key"
    shutil.copy(files / "b.pem", certificate)
    shutil.copy(files / "b.key", key)
    security = Security(
        security_protocol="SSL",
        ssl_cafile=str(files / "a.pem"),
        ssl_certfile=str(certificate),
        ssl_keyfile=str(key),
        ssl_password=Secret("hunter2"),
    )
    settings = LinkSettings("localhost:1", "test", security, 1_000, 1_000, 1_000)
    assert settings.client_arguments()["ssl_context"] is not settings.client_arguments()["ssl_context"]
    shutil.copy(files / "a.pem", certificate)
    with pytest.raises(SettingsError, match="the key is not that of the certificate"):
        settings.client_arguments()


def test_files_of_a_protocol_that_needs_none_are_not_looked_at() -> None:
    """Settings for several places may name them."""
    assert Security(ssl_cafile="/nowhere/ca.pem").security_protocol == "PLAINTEXT"


def test_kerberos_needs_its_package() -> None:
    """Which no extra of ours brings."""
    with pytest.raises(SettingsError, match="pip install gssapi"):
        Security(security_protocol="SASL_PLAINTEXT", sasl_mechanism="GSSAPI")


async def gives_token() -> str:
    """Somebody's token."""
    return "token"


@pytest.mark.parametrize(("provider", "seen"), [(None, "None"), (lambda: "token", "a function")])
def test_tokens_need_an_async_provider(provider: Any, seen: str) -> None:
    """What else is given is named."""
    with pytest.raises(SettingsError, match=f"seen sasl_oauth_token_provider={seen}: give"):
        Security(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=provider)


@pytest.mark.parametrize(
    ("protocol", "more", "principal"),
    [
        ("PLAINTEXT", {}, "User:ANONYMOUS"),
        ("SSL", {}, "User:ANONYMOUS"),
        ("SASL_SSL", {}, "User:user"),
        ("SASL_SSL", {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": gives_token}, None),
    ],
)
def test_who_a_client_is_to_the_cluster(protocol: str, more: dict[str, Any], principal: str | None) -> None:
    """As far as it can know; what is in a token or a certificate the cluster reads as it likes."""
    assert secured(protocol, **more).principal == principal


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
