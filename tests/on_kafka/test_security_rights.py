"""The access list: the table of docs/security.md is enough, and each right of it that is missing is named."""

import asyncio
import logging
from pathlib import Path

import pytest

from keylanes import App, Context
from keylanes.brokers.kafka.broker import KafkaBroker
from keylanes.brokers.protocol import NotAuthorized, Outgoing
from keylanes.devkafka.admin import Acl
from keylanes.errors import AccessRefused
from keylanes.offsets.codec import decode
from keylanes.offsets.events import SnapshotTaken

from ..stage.guarded import Ended, Place, acls_named, run, security_of
from ..stage.waiting import reached
from ..tiers.brokers import SharedKafka
from ..tiers.names import fresh

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]


@pytest.fixture
def place(guarded: SharedKafka, tmp_path: Path) -> Place:
    """An application that has no rights yet."""
    return Place(guarded, tmp_path / "state")


def check_named(ended: Ended, *acls: Acl) -> None:
    """Exit code 2 and, in the last line, how to allow these and no others."""
    assert ended.code == 2, ended
    assert isinstance(ended.cause, AccessRefused)
    assert acls_named(ended.last) == sorted(acls), ended.last


@pytest.mark.parametrize("creates", [True, False])
def test_the_table_is_enough(place: Place, creates: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Outputs, state and dead letters; a second start, too, which fences the first. CREATE is for missing topics."""
    place.fill([b"1", b"2", b"oops"])
    if not creates:  # as an administrator makes them
        place.cluster.access.allow(*place.rights())
        assert run(place.app(), caplog).code == 0
        place.cluster.access.remove(*(acl for acl in place.rights() if acl.operation == "create"))
    else:
        place.cluster.access.allow(*place.rights())
    assert run(place.app(create_topics=creates), caplog) == Ended(0, "", None)
    place.fill([b"3"])
    assert run(place.app(create_topics=creates), caplog).code == 0
    assert place.read(place.out) == [b"1", b"2", b"3"]
    assert len(place.read(place.dead)) == 1


def test_all_that_is_missing_is_named_at_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """An application that nobody has allowed anything; nothing of it is made."""
    place.fill([b"1"])
    check_named(run(place.app(), caplog), *place.rights())
    check_named(run(place.app(create_topics=False), caplog), *place.rights(creates=False))
    assert not place.made()


@pytest.mark.parametrize("is_first", [True, False])
def test_each_right_that_is_missing_is_named(place: Place, is_first: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Row for row of the table; at the first start before anything is made."""
    place.fill([b"1"])
    access = place.cluster.access
    access.allow(*place.rights())
    if not is_first:
        assert run(place.app(), caplog).code == 0
    for acl in [acl for acl in place.rights() if is_first or acl.operation != "create"]:
        access.remove(acl)
        check_named(run(place.app(), caplog), acl)
        access.allow(acl)
    assert bool(place.made()) is not is_first
    assert run(place.app(), caplog).code == 0


def test_each_log_may_be_allowed_by_its_name(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """In place of the beginning of the names. The one that was forgotten is missing: here that of the signals."""
    place.fill([b"1"])
    access, own = place.cluster.access, [acl for acl in place.rights() if acl.name == f"{place.name}."]
    on_logs = [acl for acl in own if acl.resource == "topic"]
    access.allow(*(acl for acl in place.rights() if acl not in on_logs))
    operations = ["read", "write", "describe_configs", "create"]
    for log in ("control", "offsets", f"changelog.{place.source}"):
        access.allow(*place.acls("topic", f"{place.name}.{log}", operations))
    access.allow(*place.acls("topic", f"{place.name}.offsets", ["delete"]))
    check_named(run(place.app(), caplog), *(acl for acl in on_logs if acl.operation != "delete"))
    access.allow(*place.acls("topic", f"{place.name}.signals", operations))
    assert run(place.app(), caplog).code == 0
    assert place.read(place.out) == [b"1"]


def test_rights_of_a_group_and_of_what_is_sent_are_named(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """They are needed when they are used: at the first start from a group, and when a record is sent."""
    place.fill([b"1"], make=["elsewhere"])
    access = place.cluster.access
    access.allow(*place.rights())
    app = App(place.name, broker=f"kafka://{place.cluster.bootstrap}", settings=place.app().settings)

    @app.handler(place.source, start="group:old")
    async def look(value: bytes) -> None:
        """Nothing."""

    group = Acl("shop", "describe", "group", "old")
    ended = run(app, caplog)
    assert ended.code == 2
    assert "no right to DESCRIBE on group 'old' (literal ACL)" in ended.last
    assert not place.made()
    access.allow(group)
    assert "the group has committed no offset" in run(app, caplog).last
    with pytest.raises(AccessRefused, match="no right to WRITE and DESCRIBE_CONFIGS on topic 'elsewhere'"):
        asyncio.run(place.app().send("elsewhere", b"x"))
    access.allow(*place.acls("topic", "elsewhere", ["write", "describe_configs"]))
    asyncio.run(place.app().send("elsewhere", 1))
    assert place.read("elsewhere") == [b"1"]
    access.remove(group)


def test_rights_on_a_topic_that_nobody_declared_are_named_at_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that an output needs; nothing makes it."""
    access, topic = place.cluster.access, fresh("undeclared")
    place.fill([b"1"], make=[topic])
    access.allow(*place.rights())
    app = App(place.name, broker=f"kafka://{place.cluster.bootstrap}", settings=place.app().settings)

    @app.handler(place.source)
    async def look(value: bytes, ctx: Context) -> None:
        ctx.send(topic, value)

    check_named(run(app, caplog), *place.acls("topic", topic, ["write", "describe_configs"]))
    access.allow(*place.acls("topic", topic, ["write", "describe_configs"]))
    assert run(app, caplog).code == 0
    assert place.read(topic) == [b"1"]


async def test_who_may_write_nowhere_is_told_of_the_topic(place: Place) -> None:
    """Kafka speaks of the cluster then. To allow the topic is enough."""
    await asyncio.to_thread(place.fill, [b"1"])
    access, record = place.cluster.access, Outgoing(place.source, 0, None, b"x")
    broker = KafkaBroker(place.cluster.bootstrap, security=security_of(access.client("nobody")))
    await broker.open()
    with pytest.raises(NotAuthorized) as refused:
        await broker.appender().append([record])
    right = Acl("nobody", "write", "topic", place.source)
    assert acls_named(str(refused.value)) == [right]
    await asyncio.to_thread(access.allow, right)
    await broker.appender().append([record])
    await broker.close()
    await asyncio.to_thread(access.remove, right)


# --- while it runs ---------------------------------------------------------------------------------------------------


def committed(app: App) -> int:
    """Of the source's only partition."""
    return sum(partition.offset_least for partition in app.statistics().partitions)


def warnings(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    """What was said of it."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and words in r.getMessage()]


TAKEN = ["write topic out", "write topic own", "write transactional_id own", "read topic in", "read topic own"]


def taken(place: Place, which: str) -> Acl:
    """A right by a short name of it."""
    operation, resource, name = which.split()
    name = {"out": place.out, "own": f"{place.name}.", "in": place.source}[name]
    (acl,) = [a for a in place.rights() if (a.operation, a.resource, a.name) == (operation, resource, name)]
    return acl


@pytest.mark.parametrize("which", TAKEN)
async def test_a_right_that_is_taken_away_and_given_back(
    place: Place, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once of a topic, and nothing is lost or doubled; what was waited for goes on."""
    access, acl = place.cluster.access, taken(place, which)
    await asyncio.to_thread(place.fill, [b"1"])
    await asyncio.to_thread(access.allow, *place.rights())
    async with place.app(broker_retry_ms=60_000) as app:
        await reached(lambda: committed(app) == 1)
        await asyncio.to_thread(access.remove, acl)
        await asyncio.to_thread(place.fill, [b"2"])
        await reached(lambda: bool(warnings(caplog, "has no right")))
        await asyncio.sleep(1.0)  # so long it is said no more
        await asyncio.to_thread(access.allow, acl)
        await reached(lambda: committed(app) == 2)
        await asyncio.to_thread(place.fill, [b"3"])
        await reached(lambda: app.statistics().records_done == 3)
    said = warnings(caplog, "has no right")
    assert len(said) == (2 if which == "write topic own" else 1)  # signals, too
    assert all(acls_named(line) == [acl] for line in said), said
    assert await asyncio.to_thread(place.read, place.out) == [b"1", b"2", b"3"]


async def test_a_right_that_stays_away_ends_it(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """After ``broker_retry_ms``, naming the ACL; a start is refused with the same words."""
    access, acl = place.cluster.access, taken(place, "write topic out")
    await asyncio.to_thread(place.fill, [b"1"])
    await asyncio.to_thread(access.allow, *place.rights())
    app = place.app()

    async def work() -> None:
        async with app:
            await reached(lambda: committed(app) == 1)
            await asyncio.to_thread(access.remove, acl)
            await asyncio.to_thread(place.fill, [b"2"])
            await asyncio.sleep(60)

    with pytest.raises(AccessRefused) as ended:
        await work()
    assert f"User:shop has no right to WRITE on topic '{place.out}' (literal ACL)" in str(ended.value)
    assert len(warnings(caplog, "has no right")) == 2, "once, and in the last line"
    check_named(await asyncio.to_thread(run, place.app(), caplog), acl)
    assert await asyncio.to_thread(place.read, place.out) == [b"1"]


async def test_without_delete_snapshots_are_taken(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The log grows, and is told once; a start refuses to go on like that."""
    access = place.cluster.access
    await asyncio.to_thread(place.fill, [b"1"])
    await asyncio.to_thread(access.allow, *place.rights())
    (delete,) = [acl for acl in place.rights() if acl.operation == "delete"]
    app = place.app(snapshot_every_commits=2, history_ms=0)
    async with app:
        await asyncio.to_thread(access.remove, delete)
        for number in range(2, 30):  # several may be in one commit
            await asyncio.to_thread(place.fill, [b"%d" % number])
            await reached(lambda number=number: app.statistics().records_done == number)  # type: ignore[misc]  # one argument has a default
        assert app.statistics().trims_failed == 1
    log = f"{place.name}.offsets"
    events = [decode(value) for value in await asyncio.to_thread(place.read, log)]
    assert sum(isinstance(event, SnapshotTaken) for event in events) >= 4
    (line,) = warnings(caplog, "can't be trimmed")
    assert acls_named(line) == [delete]
    check_named(await asyncio.to_thread(run, place.app(), caplog), delete)
