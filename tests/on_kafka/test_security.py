"""Log-ins and certificates, good and bad: how an application ends, what it says last, and how often it tried.

What it says nowhere, down to DEBUG: a password, or the passphrase of a key.
"""

import asyncio
import base64
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from keylanes import App, Security
from keylanes.brokers.kafka.broker import KafkaBroker
from keylanes.brokers.protocol import AuthenticationRefused, TopicPartition
from keylanes.brokers.security import TokenProvider
from keylanes.devkafka.admin import Acl
from keylanes.devkafka.properties import CLIENTS
from keylanes.devkafka.security import EXPIRED, INTERNAL, MUTUAL, OTHER_CA, OTHER_HOST
from keylanes.errors import AccessRefused, BrokerUnavailable

from ..stage.guarded import LIMITS, Ended, Place, everything_said, run, security_of
from ..stage.waiting import reached
from ..tiers.brokers import MECHANISMS, SESSION_MS, SharedKafka
from ..tiers.marks import tier
from ..tiers.names import PROCESS

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

WRONG = "wrong-sesame-4711"
PASSPHRASE = "sesame-of-the-key-0815"
SHORT = {"start_timeout_ms": 6_000, "default_api_timeout_ms": 4_000}
LOGGERS = ("keylanes", "aiokafka", "asyncio", "")


@pytest.fixture(autouse=True)
def everything_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Every logger there is, down to DEBUG."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.DEBUG)
    with caplog.at_level(logging.DEBUG):
        yield
    for one, level in zip(loggers, levels, strict=True):
        one.setLevel(level)


@pytest.fixture
def place(guarded: SharedKafka, tmp_path: Path) -> Place:
    """An application with its rights and three records, which says by a password who it is."""
    return prepared(Place(guarded, tmp_path / "state"))


@pytest.fixture
def certified(guarded: SharedKafka, tmp_path: Path) -> Place:
    """The same by a certificate."""
    return prepared(Place(guarded, tmp_path / "state", by_certificate=True))


def prepared(place: Place) -> Place:
    """With records and rights."""
    place.fill([b"1", b"2", b"3"])
    place.cluster.access.allow(*place.rights())
    return place


class Gate:
    """Stands before a broker, lets everybody through, and counts who came."""

    def __init__(self, port: int) -> None:
        self.port_behind = port
        self.came = 0
        self.passed_from: list[int] = []
        """The ports from which it passed on what came."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def log_ins_refused(self, cluster: SharedKafka) -> int:
        """How many of those who came failed to log in, as the broker's log has it."""
        failed = re.findall(r"Failed authentication with .*:(\d+)-", (cluster.folder / "broker.log").read_text("utf-8"))
        return sum(int(port) in self.passed_from for port in failed)

    def close(self) -> None:
        """Let nobody through any more."""
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.came += 1
            broker = socket.create_connection(("127.0.0.1", self.port_behind))
            self.passed_from.append(broker.getsockname()[1])
            for one, other in ((client, broker), (broker, client)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass_on(one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65_536):
                other.sendall(data)
        except OSError:
            pass
        finally:
            for end in (one, other):
                end.close()


@pytest.fixture
def gate(guarded: SharedKafka) -> Iterator[Gate]:
    """Before the listener that asks for passwords."""
    gate = Gate(guarded.ports[CLIENTS])
    yield gate
    gate.close()


def secrets_of(cluster: SharedKafka) -> list[str]:
    """All that may be written nowhere."""
    passwords: dict[str, str] = json.loads(cluster.access.passwords.read_text(encoding="utf-8"))
    return [WRONG, PASSPHRASE, *passwords.values()]


def check_silent(caplog: pytest.LogCaptureFixture, ended: Ended, cluster: SharedKafka, *more: str) -> None:
    """No secret shows, as it is or encoded."""
    said = everything_said(caplog, ended)
    assert said
    for secret in [*secrets_of(cluster), *more]:
        assert secret not in said
        assert base64.b64encode(secret.encode()).decode() not in said


# --- what works ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_passwords_let_in(place: Place, mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each mechanism, over TLS."""
    security = security_of(place.given, sasl_mechanism=mechanism)
    ended = run(place.app(security), caplog)
    assert ended.code == 0, ended.last
    assert place.read(place.out) == [b"1", b"2", b"3"]
    check_silent(caplog, ended, place.cluster)


@pytest.mark.parametrize("is_locked", [False, True], ids=["open", "locked"])
def test_certificates_let_in(certified: Place, is_locked: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A client's certificate, its key as it is or encrypted."""
    changed: dict[str, str] = {}
    if is_locked:
        changed = {
            "ssl_certfile": str(certified.cluster.access.certificate("shop", password=PASSPHRASE)),
            "ssl_password": PASSPHRASE,
        }
    ended = run(certified.app(security_of(certified.given, **changed)), caplog)
    assert ended.code == 0, ended.last
    assert certified.read(certified.out) == [b"1", b"2", b"3"]
    check_silent(caplog, ended, certified.cluster)


def test_a_password_that_is_changed_is_taken_at_the_next_start(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The old one is refused from then on; what is connected stays connected."""
    access, user = place.cluster.access, f"rotated_{PROCESS}"
    access.set_password(user)
    given = access.client(user, "SCRAM-SHA-512")
    access.allow(*(acl._replace(user=user) for acl in place.rights()))
    assert run(place.app(security_of(given)), caplog).code == 0
    access.set_password(user)
    assert run(place.app(security_of(given)), caplog).code == 2
    assert run(place.app(security_of(access.client(user, "SCRAM-SHA-512"))), caplog).code == 0


async def test_a_broker_that_refuses_a_log_in_is_not_silent(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """What is connected stays so, and nobody says that it answers again; the refusal is said by whoever met it."""
    access, user, source = place.cluster.access, f"changed_{PROCESS}", TopicPartition(place.source, 0)
    await asyncio.to_thread(access.set_password, user)
    await asyncio.to_thread(access.allow, Acl(user, "read", "topic", place.source))
    broker = KafkaBroker(place.cluster.bootstrap, security=security_of(access.client(user, "SCRAM-SHA-512")))
    await broker.open()
    assert (await broker.watermarks([source]))[source].high == 3
    await asyncio.to_thread(access.set_password, user)
    with pytest.raises(AuthenticationRefused, match="refuses the log-in"):
        await broker.producer("any", transaction_timeout_ms=1_000)
    assert (await broker.watermarks([source]))[source].high == 3
    await broker.close()
    assert [record.getMessage() for record in caplog.records if record.name == "keylanes"] == []


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_ends_it_at_once(
    place: Place, gate: Gate, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Exit code 2, one log-in, and the last line says what to look at; the account is not locked by tries."""
    security = security_of(place.given, sasl_mechanism=mechanism, sasl_plain_password=f"{WRONG}\n")
    began = time.monotonic()
    ended = run(place.app(security, gate.address), caplog)
    assert time.monotonic() - began < 20
    assert ended.code == 2, ended
    assert isinstance(ended.cause, AccessRefused)
    assert f"{gate.address} refuses the log-in: " in ended.last
    assert ended.last.endswith("sasl_plain_username and the password (ends with white space)")
    said = everything_said(caplog, ended)
    assert "without TLS" not in said
    assert "answers again" not in said
    assert gate.came == 1
    check_silent(caplog, ended, place.cluster)


@pytest.mark.parametrize("sends_first", [True, False])
async def test_who_sends_while_it_runs_does_not_log_in_once_more(
    place: Place, gate: Gate, guarded: SharedKafka, sends_first: bool
) -> None:
    """A service sends, too, over a connection of its own: the refusal of either holds for both."""
    app = place.app(security_of(place.given, sasl_plain_password=WRONG), gate.address)
    sending = asyncio.create_task(app.send(place.source, 1, key=b"k"))
    if sends_first:
        await asyncio.sleep(0)  # it begins
    with pytest.raises(AccessRefused):
        await app.__aenter__()
    with pytest.raises(AccessRefused):
        await sending
    assert gate.came == 2
    assert gate.log_ins_refused(guarded) == 1


def test_two_addresses_are_one_log_in_each_at_most(
    place: Place, gate: Gate, guarded: SharedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Servers are tried side by side; what one refuses is not tried at the others again and again."""
    other = Gate(guarded.ports[CLIENTS])
    security = security_of(place.given, sasl_plain_password=WRONG)
    ended = run(place.app(security, f"{gate.address},{other.address}"), caplog)
    other.close()
    assert (ended.code, max(gate.came, other.came)) == (2, 1), ended


def test_a_mechanism_that_the_broker_does_not_offer(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """That is said at once."""
    security = security_of(place.given, security_protocol="SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-512")
    ended = run(place.app(security, place.cluster.bootstrap_at(INTERNAL)), caplog)
    assert ended.code == 2, ended
    assert "does not offer this sasl_mechanism" in ended.last


def test_a_log_in_to_a_port_without(place: Place, kafka_server: SharedKafka, caplog: pytest.LogCaptureFixture) -> None:
    """A broker that takes no log-in says so, and is not asked again."""
    security = security_of(place.given, security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN")
    ended = run(place.app(security, kafka_server.bootstrap), caplog)
    assert ended.code == 2, ended
    assert "takes no log-in" in ended.last


@pytest.mark.parametrize(
    ("listener", "says"),
    [
        (EXPIRED, "certificate has expired"),
        (OTHER_HOST, "IP address mismatch"),
        (OTHER_CA, "unable to get local issuer certificate|self.signed certificate"),
    ],
)
def test_a_certificate_that_is_not_trusted_ends_it_at_once(
    place: Place, listener: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Exit code 2; the last line names the address and the reason."""
    gate = Gate(place.cluster.ports[listener])
    ended = run(place.app(bootstrap=gate.address), caplog)
    gate.close()
    assert (ended.code, gate.came) == (2, 1), ended
    assert re.search(f"the certificate of {gate.address} is not trusted: .*({says})", ended.last)
    check_silent(caplog, ended, place.cluster)


def test_without_the_ca_the_broker_is_not_trusted(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """What the system trusts did not sign for it."""
    ended = run(place.app(security_of(place.given, ssl_cafile=None)), caplog)
    assert ended.code == 2
    assert "is not trusted: " in ended.last
    assert "ssl_cafile names the CA" in ended.last


@pytest.mark.parametrize("is_other", [None, True, False], ids=["none", "of another CA", "expired"])
def test_a_client_without_a_good_certificate_is_refused(
    certified: Place, is_other: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Exit code 2, at once."""
    cluster, certfile = certified.cluster, None
    if is_other is not None:
        certfile = str(cluster.access.certificate("shop", is_other=is_other, is_expired=not is_other))
    gate = Gate(cluster.ports[MUTUAL])
    ended = run(certified.app(security_of(certified.given, ssl_certfile=certfile), gate.address), caplog)
    gate.close()
    assert ended.code == 2, ended
    assert f"{gate.address} refuses this client's certificate" in ended.last
    assert "ssl_certfile and ssl_keyfile" in ended.last
    assert gate.came == 1


@pytest.mark.parametrize(
    ("protocol", "listener", "hint"),
    [
        ("SASL_SSL", INTERNAL, "is this port one without TLS?"),
        ("SASL_PLAINTEXT", CLIENTS, "is this port one with TLS or SASL?"),
        ("PLAINTEXT", CLIENTS, "is this port one with TLS or SASL?"),
    ],
)
def test_another_protocol_than_the_port_s_is_named(
    place: Place, protocol: str, listener: str, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Exit code 6, as it may be a broker that is just starting; the last line says what it looks like."""
    security = security_of(place.given, security_protocol=protocol)
    ended = run(place.app(security, place.cluster.bootstrap_at(listener), **SHORT), caplog)
    assert ended.code == 6, ended
    assert isinstance(ended.cause, BrokerUnavailable)
    assert hint in ended.last
    check_silent(caplog, ended, place.cluster)


# --- tokens ----------------------------------------------------------------------------------------------------------


def token_for(user: str, seconds: float) -> str:
    """An unsecured token (RFC 7515, appendix A.5), which a development broker takes."""

    def part(value: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    now = time.time()  # a token that is dated later than the broker's clock, by a fraction of a ms, is refused
    return f"{part({'alg': 'none'})}.{part({'sub': user, 'iat': now - 1, 'exp': now + seconds})}."


def by_token(place: Place, provider: TokenProvider) -> Security:
    """Who the provider says that it is."""
    return Security(
        security_protocol="SASL_SSL",
        ssl_cafile=place.given["ssl_cafile"],
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=provider,
    )


def test_tokens_let_in(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """One token is enough for all connections of a run; it shows nowhere."""
    given: list[str] = []

    async def ask() -> str:
        await asyncio.sleep(0)
        given.append(token_for("shop", 600))
        return given[-1]

    ended = run(place.app(by_token(place, ask)), caplog)
    assert ended.code == 0, ended.last
    assert place.read(place.out) == [b"1", b"2", b"3"]
    assert len(given) == 1
    check_silent(caplog, ended, place.cluster, *given)


def stands_at(app: App, offset: int) -> bool:
    """Whether its only partition is done to there."""
    return app.statistics().partitions[0].offset_least == offset


async def check_renewed(place: Place, security: Security, seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    """An application works for a time, and nothing is to be said of it."""
    app, written = place.app(security), 3
    async with app:
        await reached(lambda: app.statistics().commits > 0)
        caplog.clear()
        over_s = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < over_s:
            await asyncio.to_thread(place.fill, [b"4"])
            written += 1
            await reached(partial(stands_at, app, written))
    assert [one.getMessage() for one in caplog.records if one.levelno > logging.INFO] == []
    assert await asyncio.to_thread(place.read, place.out) == [b"%d" % number for number in range(1, written + 1)]


async def test_log_ins_are_renewed_before_they_end(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The broker ends no connection of an application at work: none is used when its session is over."""
    await check_renewed(place, security_of(place.given, sasl_mechanism="PLAIN"), 4 * SESSION_MS / 1000, caplog)


@tier("proof", "sessions")
async def test_tokens_are_renewed_before_they_end(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Of tokens that count for 10 s."""

    async def ask() -> str:
        return token_for("shop", 10)

    await check_renewed(place, by_token(place, ask), 200, caplog)


def test_a_token_that_is_refused_ends_it_at_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """As a wrong password does."""

    async def ask() -> str:
        return token_for("shop", -600)

    ended = run(place.app(by_token(place, ask)), caplog)
    assert ended.code == 2, ended
    assert re.search("refuses the log-in: .* what sasl_oauth_token_provider returns", ended.last)


# --- as a program ----------------------------------------------------------------------------------------------------

PROGRAM = """
from keylanes import App, Settings
app = App("shop", settings=Settings.from_env())
@app.handler("orders")
async def look(value: bytes) -> None: ...
"""


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"KEYLANES_SASL_PLAIN_PASSWORD": WRONG}, "refuses the log-in"),
        ({"KEYLANES_SASL_MECHANISM": "SCRAM-SHA-1"}, "seen 'SCRAM-SHA-1'; did you mean SCRAM-SHA-"),
        ({"KEYLANES_SSL_CAFILE": "/nowhere/ca.pem"}, "'/nowhere/ca.pem': No such file or directory"),
    ],
    ids=["password", "mechanism", "file"],
)
def test_the_last_line_of_a_program_is_the_cause(
    place: Place, changed: dict[str, str], says: str, tmp_path: Path
) -> None:
    """`keylanes run` ends with exit code 2 and one sentence, no traceback, and no password."""
    (tmp_path / "m.py").write_text(PROGRAM)
    environment = {f"KEYLANES_{name.upper()}": value for name, value in place.given.items()}
    limits = {f"KEYLANES_{name.upper()}": str(value) for name, value in LIMITS.items()}
    answer = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            "import sys; from keylanes.cli.entry import main; sys.exit(main())",
            "run",
            "m:app",
        ],
        cwd=tmp_path,
        env={**os.environ, **environment, **limits, "KEYLANES_BROKER": f"kafka://{place.cluster.bootstrap}", **changed},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 2, answer.stderr
    assert says in answer.stderr.strip().splitlines()[-1]
    assert "Traceback" not in answer.stderr
    for secret in (WRONG, place.given["sasl_plain_password"]):
        assert secret not in answer.stdout + answer.stderr
