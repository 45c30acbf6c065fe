"""Records sent outside of handlers: with the topic's codec and partitioner, acknowledged, and nobody's outputs."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.msgpack import decode

from keylanes import (
    App,
    Context,
    JsonCodec,
    KeylanesError,
    MsgpackCodec,
    OutputRefused,
    Record,
    SendUnknown,
    Settings,
    State,
    StoreError,
)
from keylanes.brokers.embedded import EmbeddedAppender, EmbeddedBroker
from keylanes.brokers.partitioner import partition_by_crc32, partition_of_key
from keylanes.brokers.protocol import Appender, BrokerError, Outgoing, TopicPartition, TopicSpec
from keylanes.brokers.simulated.broker import SimulatedBroker, SimulatedConnection
from keylanes.brokers.simulated.network import Fault, RequestKind
from keylanes.group.signals_fold import PARTITIONS
from keylanes.offsets.provenance import HEADER
from keylanes.runtime.sender import Sender
from keylanes.state.topics import TopicStore

from ..stage.ground import Ground
from ..stage.virtual import virtual

KEYS = [b"c%d" % i for i in range(20)]


def shop(broker: Any = "embedded:never-opened") -> App:
    """Counts orders, which are msgpack, by key."""
    app = App("shop", broker=broker, partitioners={"orders": "crc32"})

    @app.handler("orders", to="totals", codec=MsgpackCodec())
    async def count(pieces: int, total: State[int], ctx: Context) -> int:
        total.put((total.get() or 0) + pieces)
        return total.get() or 0

    return app


async def test_what_is_sent_has_the_codec_and_the_partition_of_its_topic() -> None:
    """Of its reader, else of its writer; as a source record: without the header that outputs have."""
    app = shop()
    async with app.test() as broker:
        for key in KEYS:
            await app.send("orders", 2, key=key, headers=[("color", b"red"), (HEADER, b"forged")], timestamp=12_345)
        await app.send("totals", 17, key="k")
        records = await broker.records("orders")
        assert {record.key: record.partition for record in records} == {k: partition_by_crc32(k, 2) for k in KEYS}
        assert {(r.value, r.timestamp, tuple(r.headers)) for r in records} == {(b"\x02", 12_345, (("color", b"red"),))}
        (direct,) = [record for record in await broker.records("totals") if record.key == b"k"]
        assert (direct.value, direct.partition) == (b"\x11", partition_of_key(b"k", 2))
        assert [app.store("total").get(key) for key in KEYS] == [2] * len(KEYS)
        await app.send("totals", None, key="k", partition=1)
        for _ in range(4):
            await app.send("totals", 1)
        found = await broker.visible("totals")
        assert [record.value for record in found if record.key == b"k"][-1] is None
        assert sorted(record.partition for record in found if record.key is None) == [0, 0, 1, 1], "they take turns"


@pytest.mark.parametrize(
    ("topic", "value", "given", "says"),
    [
        ("nowhere", 1, {}, r"topic 'nowhere' does not exist, and nothing was sent.*keylanes topics"),
        ("shop.offsets", 1, {}, "is a log of this application"),
        ("orders", object(), {}, "can't be encoded"),
        ("orders", 1, {"key": 5}, "a key is bytes, str or None; seen int"),
        ("orders", 1, {"partition": 2}, "has partitions 0 to 1; seen 2"),
        ("orders", "x" * 2_000_000, {"key": b"k"}, "takes at most 1048588"),
        ("orders", 1, {"timestamp": "now"}, "a timestamp is in ms"),
    ],
)
async def test_what_can_not_be_written_is_refused_at_once(topic: str, value: Any, given: Any, says: str) -> None:
    """Before anything is sent."""
    app = shop()
    async with app.test() as broker:
        with pytest.raises(OutputRefused, match=says):
            await app.send(topic, value, **given)
        assert topic in ("nowhere", "shop.offsets") or await broker.visible(topic) == []


async def test_an_application_under_test_that_crashed_is_not_sent_to() -> None:
    """It would go to the broker that the test shall not touch."""
    app = shop()
    async with app.test() as broker:
        await broker.crash()
        with pytest.raises(KeylanesError, match=r"restart\(\) it first"):
            await app.send("orders", 1, key="a")
        await broker.restart()
        await app.send("orders", 1, key="a")


def create(ground: Ground) -> None:
    """The topics of the shop."""
    ground.create("orders", 2)


def test_an_application_is_fed_before_and_while_it_runs(ground: Ground) -> None:
    """On the embedded broker, in the process of the application: each record is acknowledged, and handled."""
    create(ground)
    app = shop(ground.address)
    asyncio.run(app.send("orders", 1, key="before"))
    app.run(until="level")

    async def serve() -> None:
        async with app:
            for _ in range(3):
                await app.send("orders", 1, key="while")
        await app.send("orders", 1, key="after")

    asyncio.run(serve())
    app.run(until="level")
    totals = [record.value or b"" for partition in range(2) for record in ground.read("totals", partition)]
    assert sorted(totals) == [b"\x01", b"\x01", b"\x01", b"\x02", b"\x03"]


def test_a_folder_that_another_process_holds_is_said(ground: Ground) -> None:
    """Nothing was sent."""
    create(ground)
    code = "import sys, asyncio; from keylanes.brokers.embedded import EmbeddedBroker as E; "
    code += "asyncio.run(E(sys.argv[1]).open()); print('open', flush=True); sys.stdin.read()"
    folder = ground.address.removeprefix("embedded:")
    command = [sys.executable, "-P", "-c", code, folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match="in use by another process"):
            asyncio.run(shop(ground.address).send("orders", 1, key="a"))
        other.communicate()
    asyncio.run(shop(ground.address).send("orders", 1, key="a"))


@pytest.mark.parametrize("lost", ["the request", "the answer"])
@virtual
async def test_a_lost_answer_is_not_taken_for_anything(lost: str) -> None:
    """SendUnknown: it may be there, or not; the next one is sent in a session of its own."""
    cluster = SimulatedBroker(3)
    cluster.create_topic("orders", 2)
    app = shop(cluster.connect("sender"))
    await app.send("orders", 1, key="a")
    whole = cluster.network.send

    def send(client: str, kind: RequestKind, step: Any, *rest: Any) -> Any:
        if kind is RequestKind.PRODUCE:
            name = "request_lost" if lost == "the request" else "reply_lost"
            setattr(cluster.faults, name, 1.0)
        try:
            return whole(client, kind, step, *rest)
        finally:
            cluster.faults.heal()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster.network, "send", send)
        with pytest.raises(SendUnknown, match=r"not known: .*Look for it in the topic, or send it again"):
            await app.send("orders", 2, key="b")
    await app.send("orders", 3, key="c")
    there = sorted(record.value or b"" for record in cluster.committed_records("orders"))
    assert there == ([b"\x01", b"\x03"] if lost == "the request" else [b"\x01", b"\x02", b"\x03"])


async def test_a_connection_that_is_opened_while_the_run_ends_is_closed(tmp_path: Path) -> None:
    """The record is written; nothing stays open that nobody would close, and a later run would take for its own."""
    owner, sender = EmbeddedBroker(tmp_path / "data"), EmbeddedBroker(tmp_path / "data")
    await owner.open()
    await owner.create([TopicSpec("orders", 2, {})])
    app = shop()
    sending = Sender("shop", app.handlers, app.settings, {}, lambda _: (sender, True))
    sent = asyncio.create_task(sending.send(Record(1, topic="orders", key="a")))
    await asyncio.sleep(0)  # it is being opened
    await sending.close()
    await sent
    with pytest.raises(BrokerError, match="is not open"):
        await sender.describe(["orders"])
    marks = await owner.watermarks([TopicPartition("orders", partition) for partition in range(2)])
    assert sum(mark.high for mark in marks.values()) == 1
    await owner.close()


async def test_a_time_before_1970_is_no_time_of_a_record() -> None:
    """-1 is what a record without one has; as in what a handler returns, it becomes the time of now."""
    app = shop()
    async with app.test() as broker:
        await app.send("totals", 1, key="a", timestamp=-1)
        assert [record.timestamp > 0 for record in await broker.visible("totals")] == [True]


async def test_a_broker_that_is_the_users_own_stays_open(tmp_path: Path) -> None:
    """It is opened where it is not, and its owner closes it."""
    broker = EmbeddedBroker(tmp_path / "data")
    await broker.open()
    await broker.create([TopicSpec("orders", 2, {})])
    app = shop(broker)
    await app.send("orders", 1, key="a")
    assert "orders" in await broker.describe(["orders"])
    await broker.close()


class Noting(EmbeddedBroker):
    """Knows the appenders that were made of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.appenders: list[Appender] = []

    def appender(self) -> EmbeddedAppender:
        """See the protocol."""
        made = super().appender()
        self.appenders.append(made)
        return made


async def test_what_writes_to_the_users_own_broker_is_closed(tmp_path: Path) -> None:
    """What sends, and what writes to the control log and the signals: no appender is left open when that is over."""
    broker = Noting(tmp_path / "data")
    await broker.open()
    await broker.create([TopicSpec("orders", 2, {})])
    app = shop(broker)
    await app.send("orders", 1, key="a")
    assert len(broker.appenders) == 1
    async with app:
        await app.send("orders", 1, key="a")
        used = 1 + 2 + PARTITIONS
        said = "decisions, ends of the control log, and each partition of the signals have one each"
        assert 3 <= len(broker.appenders) <= 1 + used, said
    for appender in broker.appenders:
        with pytest.raises(BrokerError, match="the appender was closed"):
            await appender.append([Outgoing("orders", 0, b"k", b"\x01")])
    await broker.close()


def produced(cluster: SimulatedBroker, patch: pytest.MonkeyPatch) -> Counter[RequestKind]:
    """Counts the requests from here on."""
    seen, whole = Counter[RequestKind](), cluster.network.send

    def send(client: str, kind: RequestKind, *rest: Any) -> Any:
        seen[kind] += 1
        return whole(client, kind, *rest)

    patch.setattr(cluster.network, "send", send)
    return seen


def numbers(cluster: SimulatedBroker, partition: int) -> list[int]:
    """What was written to a partition of the orders."""
    return [
        decode(record.value or b"") for record in cluster.committed_records("orders") if record.partition == partition
    ]


@virtual
async def test_an_unknown_outcome_is_that_of_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those behind it wait for that, go together then, and stay in order; those beside it do not wait."""
    cluster = SimulatedBroker(3)
    cluster.create_topic("orders", 2)
    app = shop(cluster.connect("sender"))
    await app.send("orders", 0, partition=0)
    cluster.network.arm(RequestKind.PRODUCE, Fault.HOLD_REQUEST)
    held = asyncio.create_task(app.send("orders", 1, partition=0))
    await cluster.network.caught()
    seen = produced(cluster, monkeypatch)
    behind = asyncio.gather(*(app.send("orders", number, partition=0) for number in range(2, 40)))
    await asyncio.gather(*(app.send("orders", number, partition=1) for number in range(3)))
    assert not held.done()
    assert numbers(cluster, 0) == [0]
    with pytest.raises(SendUnknown):
        await held
    assert not behind.done()
    await behind
    assert seen[RequestKind.PRODUCE] == 2, "one for each partition"
    cluster.network.release()
    await asyncio.sleep(1)
    written = numbers(cluster, 0)
    assert written.pop() == 1, "it comes late"
    assert sorted(written) == [0, *range(2, 40)]
    assert sorted(numbers(cluster, 1)) == [0, 1, 2]


@virtual
async def test_one_record_that_is_refused_is_refused_alone() -> None:
    """A broker refuses whole batches: the others are sent apart, in the order of their calls."""
    cluster = SimulatedBroker(3)
    cluster.create_topic("orders", 1)
    app = shop(cluster.connect("sender"))
    await app.send("orders", "first")
    cluster.state.configure("orders", {"max.message.bytes": "300"})
    records = [Record("x" * 400 if number in (17, 30) else number) for number in range(40)]
    with pytest.raises(OutputRefused, match="refuses the record"):
        await app.send_many("orders", records)
    assert [decode(r.value or b"") for r in cluster.committed_records("orders")] == [
        "first",
        *(number for number in range(40) if number not in (17, 30)),
    ]


@virtual
async def test_a_connection_is_kept_until_it_is_closed_or_was_idle() -> None:
    """For five minutes. What is under way when it is closed ends before; what comes then goes over the next one."""
    cluster, made = SimulatedBroker(3), list[SimulatedConnection]()
    cluster.create_topic("orders", 1)
    app = shop()

    def make(client_id: str) -> tuple[SimulatedConnection, bool]:
        made.append(cluster.connect(client_id))
        return made[-1], True

    sending = Sender("shop", app.handlers, app.settings, {}, make)
    order = Record(1, topic="orders", key="k")
    for pause_s, count in ((0, 1), (290, 1), (290, 1), (310, 2)):
        await asyncio.sleep(pause_s)
        await asyncio.gather(sending.send(order), sending.send(order))
        assert len(made) == count
    cluster.network.arm(RequestKind.PRODUCE, Fault.HOLD_REQUEST)
    sent = [asyncio.create_task(sending.send(order))]
    await cluster.network.caught()
    closing = [asyncio.create_task(sending.close()) for _ in range(2)]
    await asyncio.sleep(1)
    sent.append(asyncio.create_task(sending.send(Record(2, topic="orders", key="k"))))
    await asyncio.sleep(1)
    assert len(cluster.committed_records("orders")) == 8, "what comes meanwhile waits for the end of the one before"
    cluster.network.release()
    await asyncio.gather(*sent, *closing)
    assert numbers(cluster, 0)[8:] == [1, 2]
    assert len(made) == 3
    for old in made[:2]:
        with pytest.raises(BrokerError, match="closed"):
            await old.describe(["orders"])
    cluster.network.arm(RequestKind.PRODUCE, Fault.HOLD_REQUEST)
    sent = [asyncio.create_task(sending.send(order)) for _ in range(2)]
    await cluster.network.caught()
    sent.append(asyncio.create_task(sending.send(order)))
    await asyncio.sleep(1)
    await sending.close(1_000)
    ended = await asyncio.gather(*sent, return_exceptions=True)
    assert {type(error) for error in ended} == {SendUnknown, KeylanesError}
    assert "was not sent: the application was closed" in str(ended[-1])
    assert len(cluster.committed_records("orders")) == 10


@virtual
async def test_many_records_are_taken_as_there_is_room() -> None:
    """No more of the iterator is taken; each record is tried, and the first error is raised."""
    cluster, taken = SimulatedBroker(3), list[int]()
    cluster.create_topic("orders", 1)
    app = App("shop", broker=cluster.connect("sender"), settings=Settings(send_bytes_max=3_000))
    encoded = list[int]()

    class Noting:
        def encode(self, value: Any) -> bytes:
            encoded.append(value)
            return JsonCodec().encode(value)

        def decoder(self, annotation: Any) -> Any:
            return JsonCodec().decoder(annotation)

    @app.handler("orders", codec=Noting())
    async def handle(value: int) -> None: ...

    def records() -> Iterator[Any]:
        for number in range(1_000):
            taken.append(number)
            yield Record(object() if number in (3, 5) else number, key="k")
        yield 17

    await app.send("orders", -1)
    cluster.network.arm(RequestKind.PRODUCE, Fault.HOLD_REQUEST)
    sending = asyncio.create_task(app.send_many("orders", records()))
    await cluster.network.caught()
    await asyncio.sleep(1)
    assert len(taken) < 300
    assert 5 < len(encoded) <= 3_000 // 256 + 4, "a record counts 256 bytes beside its own; one was first, two failed"
    cluster.network.release()
    with pytest.raises(OutputRefused, match="object can't be encoded"):
        await sending
    written = [json.loads(record.value or b"") for record in cluster.committed_records("orders")]
    assert written == [-1, *(number for number in range(1_000) if number not in (3, 5))]
    wrong: Any
    for wrong, says in ((17, "seen int as record 1"), (Record(1, topic="totals"), "names the topic 'totals'")):
        with pytest.raises(OutputRefused, match=says):
            await app.send_many("orders", [wrong])


def test_a_loop_that_ends_leaves_nothing_open(ground: Ground) -> None:
    """Without a close: the folder is free then, and another loop sends again."""
    create(ground)
    app, folder = shop(ground.address), Path(ground.address.removeprefix("embedded:"))
    for _ in range(2):
        asyncio.run(app.send("orders", 1, key="a"))
        TopicStore.open(folder).close()
