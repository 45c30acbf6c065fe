"""A log-in or a certificate that is refused ends an application at once, after one try, and its last line says why."""

import contextlib
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from keylanes import App, Security, Settings
from keylanes.devkafka.cluster import KafkaCluster
from keylanes.devkafka.security import BAD, EXPIRED, OTHER_CA, OTHER_HOST, ClusterSecurity

from ..tiers.marks import tier

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300), tier("proof", "refusals")]

AT_ONCE_S, SHORT_MS = 20.0, 2_000
WRONG = "not-the-password"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One node with passwords over TLS, and listeners that show certificates which must be refused."""
    security = ClusterSecurity(tls=True, sasl=("PLAIN", "SCRAM-SHA-256"), bad_certificates=True)
    with KafkaCluster(tmp_path_factory.mktemp("secured") / "kafka", 1, security=security) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One node that asks clients for certificates."""
    security = ClusterSecurity(tls=True, mutual=True)
    with KafkaCluster(tmp_path_factory.mktemp("mutual") / "kafka", 1, security=security) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One node without any of it."""
    with KafkaCluster(tmp_path_factory.mktemp("plain") / "kafka", 1) as cluster:
        yield cluster


class End:
    """How a start ended: exit code, last line, seconds."""

    def __init__(self, bootstrap: str, caplog: pytest.LogCaptureFixture, values: dict[str, Any]) -> None:
        limits = {"request_timeout_ms": SHORT_MS, "default_api_timeout_ms": SHORT_MS, "start_timeout_ms": 2 * SHORT_MS}
        settings = Settings.of(**limits, security=Security(**values))
        app = App("refused", broker=f"kafka://{bootstrap}", settings=settings)
        app.handler("orders")(lambda value: None)
        caplog.clear()
        began = time.monotonic()
        with caplog.at_level(logging.INFO), pytest.raises(SystemExit) as ended:
            app.run()
        self.seconds, self.code = time.monotonic() - began, ended.value.code
        self.last = [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL][-1]


class Door(socketserver.ThreadingTCPServer):
    """Stands in front of a broker and counts who comes: each connection is a log-in."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self.came, self.target = 0, port

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Hand everything on, both ways."""
        self.came += 1
        with socket.create_connection(("127.0.0.1", self.target)) as there:
            back = threading.Thread(target=self._hand_on, args=(there, request), daemon=True)
            back.start()
            self._hand_on(request, there)
            back.join()

    def _hand_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65_536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def address(self) -> str:
        """For clients."""
        return f"127.0.0.1:{self.server_address[1]}"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password(secured: KafkaCluster, caplog: pytest.LogCaptureFixture, mechanism: str) -> None:
    """One log-in, no more: an account may be locked after some."""
    values = secured.access.client("app", mechanism) | {"sasl_plain_password": WRONG}
    with Door(secured.nodes[0].port) as door:
        end = End(door.address, caplog, values)
    assert (end.code, door.came) == (2, 1)
    assert end.seconds < AT_ONCE_S
    assert "refuses the log-in: " in end.last
    assert "sasl_plain_username" in end.last
    assert WRONG not in caplog.text


def test_two_addresses_are_one_log_in_each_at_most(secured: KafkaCluster, caplog: pytest.LogCaptureFixture) -> None:
    """Servers are tried side by side; what one refuses is not tried at the others again and again."""
    values = secured.access.client("app", "PLAIN") | {"sasl_plain_password": WRONG}
    with Door(secured.nodes[0].port) as one, Door(secured.nodes[0].port) as other:
        end = End(f"{one.address},{other.address}", caplog, values)
    assert end.code == 2
    assert max(one.came, other.came) == 1


def test_a_mechanism_that_the_broker_does_not_offer(secured: KafkaCluster, caplog: pytest.LogCaptureFixture) -> None:
    """That is said, and no password is sent."""
    values = secured.access.client("app", "SCRAM-SHA-256") | {"sasl_mechanism": "SCRAM-SHA-512"}
    end = End(secured.bootstrap, caplog, values)
    assert end.code == 2
    assert "does not offer this sasl_mechanism" in end.last


@pytest.mark.parametrize(
    ("listener", "says"),
    [
        (EXPIRED, "certificate has expired"),
        (OTHER_HOST, "mismatch"),
        (OTHER_CA, "unable to get local issuer certificate"),
    ],
)
def test_a_certificate_that_is_not_trusted(
    secured: KafkaCluster, caplog: pytest.LogCaptureFixture, listener: str, says: str
) -> None:
    """Expired, for another host, of another authority: said at once, and the password is not sent."""
    assert listener in BAD
    end = End(secured.bootstrap_at(listener), caplog, secured.access.client("app", "PLAIN"))
    assert end.code == 2
    assert end.seconds < AT_ONCE_S
    assert "is not trusted: " in end.last
    assert says in end.last
    assert "ssl_cafile" in end.last


def test_no_certificate_where_one_is_asked_for(mutual: KafkaCluster, caplog: pytest.LogCaptureFixture) -> None:
    """The broker's alert is named."""
    values = {"security_protocol": "SSL", "ssl_cafile": str(mutual.access.ca)}
    end = End(mutual.bootstrap, caplog, values)
    assert end.code == 2
    assert "ssl_certfile" in end.last


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"security_protocol": "PLAINTEXT"}, "is this port one with TLS"),
        (
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": "app",
                "sasl_plain_password": WRONG,
            },
            "is this port one with TLS",
        ),
    ],
)
def test_plain_text_to_a_port_with_tls(
    secured: KafkaCluster, caplog: pytest.LogCaptureFixture, values: dict[str, str], says: str
) -> None:
    """It may be a broker that is just starting, so it is tried again; at the end the likely cause is said."""
    end = End(secured.bootstrap, caplog, values)
    assert end.code == 6
    assert says in end.last
    assert WRONG not in caplog.text


def test_tls_to_a_port_without(plain: KafkaCluster, secured: KafkaCluster, caplog: pytest.LogCaptureFixture) -> None:
    """The same, the other way round."""
    end = End(plain.bootstrap, caplog, {"security_protocol": "SSL", "ssl_cafile": str(secured.access.ca)})
    assert end.code == 6
    assert "is this port one without TLS" in end.last


def test_a_log_in_to_a_port_without(plain: KafkaCluster, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """A broker that takes no log-in says so, and is not asked again."""
    values = {
        "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": "app",
        "sasl_plain_password": WRONG,
    }  # fmt: skip
    end = End(plain.bootstrap, caplog, values)
    assert end.code == 2
    assert "takes no log-in" in end.last
