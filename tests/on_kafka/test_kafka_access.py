"""The development broker with TLS, passwords, certificates and access lists, seen by a client that is not ours."""

import shutil
import stat
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from keylanes import Security
from keylanes.devkafka.admin import Acl
from keylanes.devkafka.cluster import KafkaCluster
from keylanes.devkafka.jars import KafkaServerError
from keylanes.devkafka.security import ADMIN, BAD, ClusterSecurity, ClusterUsers

from ..tiers.brokers import MECHANISMS, SharedKafka
from ..tiers.marks import tier
from ..tiers.names import fresh

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300), tier("proof", "refusals")]

ORDERS = fresh("orders")
ANSWER_S, REFUSED_S = 60.0, 4.0


@pytest.fixture(scope="module")
def cluster(guarded: SharedKafka) -> SharedKafka:
    """The one of this run, with a topic."""
    create(guarded)
    return guarded


def create(cluster: KafkaCluster | SharedKafka) -> None:
    """Make the topic of these tests."""
    admin = client(cluster, ADMIN)  # it must live until the answer is there
    admin.create_topics([NewTopic(ORDERS, 1)])[ORDERS].result(ANSWER_S)


def client(cluster: KafkaCluster | SharedKafka, user: str, mechanism: str = "", **changed: str) -> AdminClient:
    """A client of a user; names of changed settings have underscores for dots."""
    settings = cluster.access.librdkafka(user, mechanism) | {"bootstrap.servers": cluster.bootstrap, "log_level": "0"}
    return AdminClient(settings | {name.replace("_", "."): value for name, value in changed.items()})


def is_let_in(admin: AdminClient) -> bool:
    """Whether the broker answers; a client that is refused tries on until we have waited long enough."""
    try:
        admin.list_topics(timeout=REFUSED_S)
    except KafkaException:
        return False
    return True


def write(cluster: KafkaCluster | SharedKafka, user: str) -> KafkaError | None:
    """Write a record to the topic; the error."""
    heard: list[KafkaError | None] = []
    producer = Producer(cluster.access.librdkafka(user) | {"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    producer.produce(ORDERS, b"x", on_delivery=lambda error, _: heard.append(error))
    producer.flush(ANSWER_S)
    return heard[0]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_passwords(cluster: SharedKafka, mechanism: str) -> None:
    """Each mechanism lets a user in by the password, and nobody by another."""
    client(cluster, "app", mechanism).list_topics(timeout=ANSWER_S)
    assert not is_let_in(client(cluster, "app", mechanism, sasl_password="nope"))


def test_the_settings_are_those_of_an_application(cluster: SharedKafka) -> None:
    """What a user needs is what ``Security`` takes."""
    security = Security(**cluster.access.client("app", "SCRAM-SHA-256"))  # type: ignore[arg-type]  # checked by it
    assert (security.security_protocol, security.sasl_mechanism) == ("SASL_SSL", "SCRAM-SHA-256")
    assert security.sasl_plain_password is not None
    assert security.sasl_plain_password.reveal() == cluster.access.password("app")


@pytest.mark.parametrize("listener", BAD)
def test_certificates_that_must_be_refused(cluster: SharedKafka, listener: str) -> None:
    """Expired, for another host, of another authority: a client that looks at them does not go on."""
    assert not is_let_in(client(cluster, "app", bootstrap_servers=cluster.bootstrap_at(listener)))


def test_another_password_while_it_runs(cluster: SharedKafka) -> None:
    """A user of SCRAM is made, and gets another password; the old one is of no use then."""
    first = cluster.access.set_password("late")
    client(cluster, "late", "SCRAM-SHA-512").list_topics(timeout=ANSWER_S)
    assert cluster.access.set_password("late", "second") == "second"
    client(cluster, "late", "SCRAM-SHA-512").list_topics(timeout=ANSWER_S)
    assert not is_let_in(client(cluster, "late", "SCRAM-SHA-512", sasl_password=first))


def test_rights_are_given_and_taken(cluster: SharedKafka) -> None:
    """What is not on the list is refused, what is put there works at once, and no longer when it is taken away."""
    right = Acl("app", "write", "topic", ORDERS[:-1], "prefixed")
    refused = write(cluster, "app")
    assert refused is not None
    assert refused.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART)
    cluster.access.allow(right)
    assert write(cluster, "app") is None
    assert write(cluster, "other") is not None
    cluster.access.remove(right)
    assert write(cluster, "app") is not None
    with pytest.raises(ValueError, match="operation is one of all, read, write"):
        cluster.access.allow(Acl("app", "look", "topic", ORDERS))


def test_certificates_of_clients(tmp_path: Path) -> None:
    """With mutual TLS the certificate says who it is; none, an expired one and one of others are refused. Only the
    owner may look at keys, passwords and the settings of nodes; a new start knows the same users.
    """
    security = ClusterSecurity(tls=True, mutual=True, acl=True)
    with KafkaCluster(tmp_path / "kafka", 1, security=security) as cluster:
        access = cluster.access
        create(cluster)
        access.allow(Acl("app", "write", "topic", ORDERS))
        assert write(cluster, "app") is None
        locked = access.certificate("app", password="secret")
        assert is_let_in(
            client(cluster, "app", ssl_certificate_location=str(locked), ssl_key_location=str(locked),
                   ssl_key_password="secret")
        )  # fmt: skip
        for wrong in (access.certificate("app", is_expired=True), access.certificate("app", is_other=True)):
            shown = {"ssl_certificate_location": str(wrong), "ssl_key_location": str(wrong)}
            assert not is_let_in(client(cluster, "app", **shown))
        assert not is_let_in(AdminClient({"bootstrap.servers": cluster.bootstrap, "security.protocol": "SSL",
                                          "ssl.ca.location": str(access.ca), "log_level": 0}))  # fmt: skip
        private = {*access.folder.glob("*.key"), access.passwords, cluster.folder / "server.properties"}
        assert len(private) >= 3
        assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
        assert stat.S_IMODE(access.folder.stat().st_mode) == 0o700
        before = access.client("app"), access.password(ADMIN)
        cluster.stop()
        cluster.start()
        assert (access.client("app"), access.password(ADMIN)) == before
        assert write(cluster, "app") is None


def test_three_nodes_ask_who_is_there(tmp_path: Path) -> None:
    """A cluster fails over with its passwords, and every node knows of a right before ``allow`` returns."""
    security = ClusterSecurity(tls=True, sasl=("SCRAM-SHA-512",), acl=True)
    with KafkaCluster(tmp_path / "kafka", 3, security=security) as cluster:
        create(cluster)
        cluster.access.allow(Acl("app", "write", "topic", ORDERS))
        cluster.nodes[0].kill()
        began = time.monotonic()
        assert write(cluster, "app") is None
        assert time.monotonic() - began < ANSWER_S
        cluster.nodes[0].start()
        assert write(cluster, "app") is None


def test_what_does_not_go_together_is_refused() -> None:
    """Each mistake is named."""
    for settings, said in (
        ({"sasl": "SCRAM-SHA-1"}, "SCRAM-SHA-1"),
        ({"mutual": True}, "over TLS only"),
        ({"acl": True}, "needs users"),
        ({"sasl": "PLAIN", "users": ("a b",)}, "seen 'a b'"),
    ):
        with pytest.raises(ValueError, match=said):
            ClusterSecurity(**settings)


def test_without_openssl_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS needs a program that may not be there."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    access = ClusterUsers(tmp_path / "security", ClusterSecurity(tls=True), list)
    with pytest.raises(KafkaServerError, match="openssl to make certificates, which is not on the path: install it"):
        access.prepare()
