"""``keylanes audit MODULE:APP`` where brokers ask who is there: the settings it uses, the least rights, mistakes."""

import json
import os
import stat
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from keylanes import Secret, Security
from keylanes.cli.audit import client_settings
from keylanes.devkafka.admin import Acl
from keylanes.devkafka.security import ADMIN, OTHER_CA
from keylanes.errors import SettingsError
from keylanes.spark.access import Access
from keylanes.spark.brokers import AuditError
from keylanes.spark.pins import pin

from ..stage.guarded import acls_named
from ..tiers.brokers import SharedKafka
from ..tiers.names import fresh

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]

MECHANISMS = ("PLAIN", "SCRAM-SHA-512")
RECORDS = 200
LIMIT_S, LOOK_S = 300.0, 0.2
APP, ORDERS, PACKED, DEAD = (fresh(name) for name in ("shop", "orders", "packed", "dead"))
APPLICATION = f"""
    from keylanes import App, DeadLetter, Settings, State

    app = App("{APP}", settings=Settings.from_env())

    @app.handler("{ORDERS}", to="{PACKED}", on_failure=DeadLetter("{DEAD}"))
    async def pack(value: int, seen: State[int]) -> int | None:
        if value % 17 == 3:
            raise ValueError(value)
        seen.put((seen.get() or 0) + 1)
        return value if value % 3 else None
"""
RIGHTS_OF_APP = (
    ("read", "topic", ORDERS, "literal"),
    ("describe_configs", "topic", ORDERS, "literal"),
    *((operation, "topic", name, "literal") for name in (PACKED, DEAD) for operation in ("write", "describe_configs")),
    *(
        (operation, "topic", f"{APP}.", "prefixed")
        for operation in ("read", "write", "create", "delete", "describe_configs")
    ),
    ("write", "transactional_id", f"{APP}.", "prefixed"),
)
RIGHTS_OF_AUDITOR = (
    *(("read", "topic", name, "literal") for name in (ORDERS, PACKED, DEAD)),
    ("read", "topic", f"{APP}.", "prefixed"),
)


@pytest.fixture(scope="module")
def cluster(guarded: SharedKafka) -> SharedKafka:
    """A Kafka that asks for a password over TLS, and allows no more than what is listed; with orders."""
    settings = {**guarded.access.librdkafka(ADMIN), "bootstrap.servers": guarded.bootstrap}
    admin = AdminClient(settings)
    for made in admin.create_topics([NewTopic(name, 2) for name in (ORDERS, PACKED, DEAD)]).values():
        made.result(60)
    orders = Producer(settings)
    for n in range(RECORDS):
        orders.produce(ORDERS, b"%d" % n, b"key %d" % (n % 8), n % 2)
    assert orders.flush(60) == 0
    for user, rights in (("app", RIGHTS_OF_APP), ("auditor", RIGHTS_OF_AUDITOR)):
        guarded.access.allow(*(Acl(user, *right) for right in rights))
    return guarded


def settings_of(cluster: SharedKafka, user: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
    """What librdkafka is given for a user, as ``audit MODULE:APP`` does it."""
    return client_settings(Security(**cluster.access.client(user, mechanism)))  # type: ignore[arg-type]  # checked by it


def told(folder: Path, cluster: SharedKafka, user: str, *arguments: str) -> tuple[str, list[str]]:
    """What the command says, run with a user's settings in its environment; and where the password was seen: in a
    command line, or in a file that others may read.
    """
    password, scratch = cluster.access.password(user), folder / "scratch"
    scratch.mkdir(exist_ok=True)
    own = {f"KEYLANES_{name.upper()}": value for name, value in cluster.access.client(user, "SCRAM-SHA-512").items()}
    places = {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch), "KEYLANES_STATE_FOLDER": str(folder / "state")}
    code = "import sys; from keylanes.cli.entry import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", code, *arguments]
    env = {**os.environ, **own, **places, "KEYLANES_BROKER": f"kafka://{cluster.bootstrap}"}
    shown: list[str] = []
    until = time.monotonic() + LIMIT_S
    with (folder / "said").open("w+") as said:
        running = subprocess.Popen(command, cwd=folder, env=env, stdout=said, stderr=subprocess.STDOUT)
        try:
            while running.poll() is None and time.monotonic() < until:
                shown += seen_by_others(password, scratch)
                time.sleep(LOOK_S)
        finally:
            running.kill()
            running.wait()
        said.seek(0)
        text = said.read()
    assert running.returncode == 0, text
    return text, shown


def seen_by_others(text: str, scratch: Path) -> list[str]:
    """Command lines and readable files that hold a text."""
    found = []
    files = [Path(folder, name) for folder, _, names in os.walk(scratch) for name in names]
    for path in (*Path("/proc").glob("[0-9]*/cmdline"), *files):
        try:
            is_open = path.parts[1] == "proc" or path.stat().st_mode & (stat.S_IROTH | stat.S_IRGRP)
            if is_open and text.encode() in path.read_bytes():
                found.append(str(path))
        except OSError:  # it is gone
            continue
    return found


def test_the_audit_uses_the_settings_of_the_application_and_needs_to_read_only(
    cluster: SharedKafka, tmp_path: Path
) -> None:
    """A user that may read the sources, the declared topics and the logs proves a run; no secret shows itself."""
    (tmp_path / "shop.py").write_text(textwrap.dedent(APPLICATION))
    told(tmp_path, cluster, "app", "run", "shop:app", "--until", "level")
    said, shown = told(tmp_path, cluster, "auditor", "audit", "shop:app", "--level", "--json")
    report = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    assert report["proven"]
    assert report["figures"]["records_done"] == RECORDS
    assert 0 < report["figures"]["dead_letters"] < RECORDS // 4
    assert report["figures"]["state_keys"] > 0
    assert report["destinations"].keys() == {PACKED, DEAD}
    assert shown == []
    assert cluster.access.password("auditor") not in said


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_questions_and_records_need_no_right_but_to_read(cluster: SharedKafka, mechanism: str) -> None:
    """No group is joined, so none has to be allowed."""
    witness = Access(f"kafka://{cluster.bootstrap}", settings_of(cluster, "auditor", mechanism)).open()
    spans = witness.spans([(ORDERS, 0), (ORDERS, 1)])
    assert [span.end for span in spans.values()] == [RECORDS // 2] * 2
    assert sum(len(chunk.offsets) for chunk in witness.read((ORDERS, 0), 0, RECORDS // 2)) == RECORDS // 2


def test_what_is_refused_is_said_at_once_and_with_its_cause(cluster: SharedKafka) -> None:
    """Not when all patience is used up: another attempt does not help."""
    url, good = f"kafka://{cluster.bootstrap}", settings_of(cluster, "auditor")
    other_ca = f"kafka://{cluster.bootstrap_at(OTHER_CA)}"
    began = time.monotonic()
    with pytest.raises(AuditError, match=r"Authentication failed .*invalid credentials"):
        Access(url, {**good, "sasl.password": "nope"}, 300_000).open().topics()
    with pytest.raises(AuditError, match="certificate verify failed"):
        Access(other_ca, good, 300_000).open().topics()
    with pytest.raises(AuditError, match=r"ssl.ca.location: no such file on this machine: /no/ca.pem"):
        Access(url, {**good, "ssl.ca.location": "/no/ca.pem"}, 300_000).open()
    cluster.access.allow(Acl("nobody", "describe", "topic", ORDERS))
    witness = Access(url, settings_of(cluster, "nobody"), 300_000).open()
    assert witness.topics().keys() == {ORDERS}
    with pytest.raises(AuditError, match=rf"{ORDERS}\[0\] from offset 0: .*Topic authorization failed"):
        list(witness.read((ORDERS, 0), 0, 1))
    assert time.monotonic() - began < 150


def test_what_may_not_be_read_is_named(cluster: SharedKafka, tmp_path: Path) -> None:
    """Also a topic that is hidden: all that is known to be missing at once, the sources when the logs are read. To
    allow what was named is enough.
    """
    (tmp_path / "shop.py").write_text(textwrap.dedent(APPLICATION))
    told(tmp_path, cluster, "app", "run", "shop:app", "--until", "level")
    access, url = cluster.access, f"kafka://{cluster.bootstrap}"

    def missing() -> list[Acl]:
        with closing(Access(url, settings_of(cluster, "other"), 60_000).open()) as broker:
            with pytest.raises(AuditError, match=r"^User:other has no right to READ on ") as refused:
                pin(broker, APP, (PACKED, DEAD))
            return acls_named(str(refused.value))

    logs = Acl("other", "read", "topic", f"{APP}.", "prefixed")
    orders, packed, dead = (Acl("other", "read", "topic", name) for name in (ORDERS, PACKED, DEAD))
    assert missing() == sorted([logs, packed, dead])
    access.allow(logs, packed, dead)
    access.allow(*missing())
    for acl in (logs, orders, packed, dead):
        access.remove(acl)
        assert missing() == [acl]
        access.allow(acl._replace(operation="describe"))  # it is seen, and may not be read
        assert missing() == [acl]
        access.remove(acl._replace(operation="describe"))
        access.allow(acl)
    with closing(Access(url, settings_of(cluster, "other"), 60_000).open()) as broker:
        assert pin(broker, APP, (PACKED, DEAD)).sources
    access.remove(logs, orders, packed, dead)


def test_settings_are_put_in_librdkafkas_words(cluster: SharedKafka) -> None:
    """A file that holds a certificate and its key is named twice; a provider of tokens can't be handed on."""
    assert client_settings(Security()) == {}
    shown = str(cluster.access.certificate("app", password="hush"))
    assert client_settings(Security(security_protocol="SSL", ssl_certfile=shown, ssl_password=Secret("hush"))) == {
        "security.protocol": "SSL",
        "ssl.certificate.location": shown,
        "ssl.key.location": shown,
        "ssl.key.password": "hush",
    }

    async def token() -> str:
        """Nobody asks for it."""
        return ""

    by_token = Security(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=token)
    with pytest.raises(SettingsError, match=r"a provider of tokens can't be handed to Spark's workers.*oidc"):
        client_settings(by_token)
