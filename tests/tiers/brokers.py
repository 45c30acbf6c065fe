"""One Kafka, and one that asks who is there, for all processes of a run.

Whoever calls the run keeps them: run.py, or the pytest that was called. A test process asks the keeper by a socket; the
first one that asks makes the keeper start what it wants. All are ended with the run. Where the keeper is killed, so are
they (``devkafka/guard.py``): nothing is left that the next run could meet.
"""

import contextlib
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Final, Self

import msgspec
import pytest

from keylanes.devkafka.cluster import KafkaCluster
from keylanes.devkafka.ports import HOST
from keylanes.devkafka.properties import CLIENTS, PROXIED
from keylanes.devkafka.security import INTERNAL, ClusterSecurity, ClusterUsers
from keylanes.devkafka.server import KafkaServer
from keylanes.errors import KeylanesError

KEEPER: Final = "TEST_BROKERS"
"""In the environment: where a test process asks."""
OPEN, SECURED = "open", "secured"
LIMIT_S: Final = 150.0
"""So long a test process waits for an answer. Two brokers may have to be started, and fetched before."""
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
SECURITY: Final = ClusterSecurity(
    tls=True,
    sasl=MECHANISMS,
    acl=True,
    by_certificate=True,
    users=("shop", "app", "other", "auditor", "nobody"),
    bad_certificates=True,
)
_LISTENER: Final = f"listener.name.{CLIENTS.lower()}"
SESSION_MS: Final = 1_000
"""So long a log-in by PLAIN counts."""
LOG_INS: Final = {
    f"{_LISTENER}.sasl.enabled.mechanisms": ",".join([*MECHANISMS, "OAUTHBEARER"]),
    f"{_LISTENER}.oauthbearer.sasl.jaas.config": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="broker";'
    ),
    f"{_LISTENER}.plain.connections.max.reauth.ms": str(SESSION_MS),
}
"""Have a listener take tokens that nobody signed, beside passwords, and limit the sessions of one mechanism."""


class SharedKafka(msgspec.Struct, frozen=True, dict=True):
    """A Kafka of one node that all processes of a run use. ``ports``: of its listeners, by name.

    A proxy may stand at ``proxied_port``, of one process at a time: clients that come through it are told to come back.
    """

    at: str
    ports: Mapping[str, int]
    proxied_port: int

    @classmethod
    def of(cls, cluster: KafkaCluster) -> Self:
        """What other processes have to know."""
        (node,) = cluster.nodes
        return cls(str(cluster.folder), {CLIENTS: node.port, **node.ports}, node.proxied_port)

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return Path(self.at)

    @property
    def bootstrap(self) -> str:
        """Its address for clients."""
        return self.bootstrap_at(CLIENTS)

    def bootstrap_at(self, listener: str) -> str:
        """Its address at another listener."""
        return f"{HOST}:{self.ports[listener]}"

    @property
    def proxied_listener_port(self) -> int:
        """Where the proxy connects to."""
        return self.ports[PROXIED]

    @cached_property
    def access(self) -> ClusterUsers:
        """Users, passwords, certificates and access lists of the secured one."""
        access = ClusterUsers(self.folder / "security", SECURITY, lambda: [self.ports[INTERNAL]])
        access.join()
        return access


def open_kafka(folder: Path) -> KafkaCluster:
    """Everybody may do everything."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        proxied_port = probe.getsockname()[1]
    return KafkaServer(folder, proxied_port=proxied_port)


def secured_kafka(folder: Path) -> KafkaCluster:
    """TLS, passwords, tokens, certificates of clients at a listener of their own, and access lists."""
    return KafkaCluster(folder, 1, security=SECURITY, properties=LOG_INS)


Kind = Callable[[Path], KafkaCluster]
KINDS: Final[Mapping[str, Kind]] = {OPEN: open_kafka, SECURED: secured_kafka}


class Keeper:
    """Starts a Kafka when it is asked for one, and ends all when it is closed. ``address``: where to ask. ``kinds``:
    how each is made.
    """

    def __init__(self, kinds: Mapping[str, Kind] = KINDS) -> None:
        self._kinds = kinds
        self._folder = Path(tempfile.mkdtemp(prefix="keylanes-brokers-"))
        self.address = str(self._folder / "ask")
        self._listener = Listener(self.address, "AF_UNIX")
        self._running: list[KafkaCluster] = []
        self._answers: dict[str, SharedKafka | str] = {}
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all that was started. What is just being started ends with this process."""
        self._listener.close()
        for cluster in self._running:
            cluster.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self) -> None:
        while True:
            try:
                asking = self._listener.accept()
            except OSError:  # the listener is closed
                return
            with contextlib.suppress(EOFError, OSError), asking:  # who asked may be gone
                asking.send_bytes(msgspec.json.encode(self._answer(asking.recv_bytes().decode())))

    def _answer(self, kind: str) -> SharedKafka | str:
        """The Kafka, or why there is none: that is not tried again."""
        if kind not in self._answers:
            cluster = self._kinds[kind](self._folder / kind)
            self._running.append(cluster)
            try:
                cluster.start()
                self._answers[kind] = SharedKafka.of(cluster)
            except (KeylanesError, OSError) as error:
                self._answers[kind] = str(error)
        return self._answers[kind]


def shared(kind: str) -> SharedKafka:
    """The Kafka of this run, ``OPEN`` or ``SECURED``. The test fails, with the reason, where there is none."""
    answer: SharedKafka | str = f"it was not ready within {LIMIT_S:.0f} s"
    try:
        with Client(os.environ[KEEPER], "AF_UNIX") as keeper:
            keeper.send_bytes(kind.encode())
            if keeper.poll(LIMIT_S):
                answer = msgspec.json.decode(keeper.recv_bytes(), type=SharedKafka | str)
    except (EOFError, OSError) as error:
        answer = f"who keeps it does not answer: {error!r}"
    if not isinstance(answer, SharedKafka):
        pytest.fail(f"this run has no {kind} Kafka: {answer}", pytrace=False)
    return answer
