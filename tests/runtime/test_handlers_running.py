"""What handlers see, and what becomes of what they return: values, outputs, threads, contexts."""

import asyncio
import dataclasses
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from keylanes import Context, ContextClosed, DeadLetter, MsgpackCodec, Record, Retry, SettingsError
from keylanes.brokers.partitioner import partition_of_key

from ..stage.ground import Ground

WAIT_S = 30.0


class Flight(msgspec.Struct):
    """A value as a struct."""

    number: int
    delay: float | None = None


@dataclasses.dataclass
class Gate:
    """A value as a dataclass."""

    name: str
    open: bool = False


def decoded(ground: Ground, annotation: Any, values: list[bytes | None]) -> list[Any]:
    """What a handler with this annotation gets; what can't be decoded goes to the dead letters."""
    ground.fill([(b"k", value) for value in values])
    seen: list[Any] = []

    async def note(value: Any) -> None:
        seen.append(value)

    note.__annotations__["value"] = annotation
    app = ground.app()
    declare = app.handler(ground.source, retry=Retry(attempts=1), on_failure=DeadLetter(ground.dead))
    declare(note)
    app.run(until="level")
    return seen


@pytest.mark.parametrize(
    ("annotation", "values", "expected"),
    [
        (Flight, [b'{"number":1,"delay":2.5}', b'{"number":2}'], [Flight(1, 2.5), Flight(2)]),
        (Gate, [b'{"name":"B7"}'], [Gate("B7")]),
        (dict[str, Any], [b'{"a":[1,null]}'], [{"a": [1, None]}]),
        (dict, [b'{"a":1}'], [{"a": 1}]),
        (tuple[int, ...], [b"[1,2]"], [(1, 2)]),
        (str, [b"gr\xc3\xbc\xc3\x9fe", b""], ["grüße", ""]),
        (bytes, [b"\x00\xff", b""], [b"\x00\xff", b""]),
        (bytearray, [b"\x00\xff"], [bytearray(b"\x00\xff")]),
        (int | None, [b"7", None, b"null"], [7, None, None]),
        (bytes | None, [b"7", None], [b"7", None]),
        (Flight | None, [b'{"number":1}', None], [Flight(1), None]),
        (float, [b"1.5"], [1.5]),
        (Any, [b'{"a":1}', None], [{"a": 1}, None]),
    ],
)
def test_values_are_decoded_by_annotation(
    ground: Ground, annotation: Any, values: list[bytes | None], expected: list[Any]
) -> None:
    """Structs, dataclasses, plain JSON, text and bytes; None only where the annotation allows it."""
    seen = decoded(ground, annotation, values)
    assert seen == expected
    assert [type(value) for value in seen] == [type(value) for value in expected]
    assert ground.values(ground.dead) == []


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Flight, b'{"number":"x"}'),
        (Gate, b"[]"),
        (dict, b"[1]"),
        (str, b"\xff\xfe"),
        (int, b"1.5"),
        (int, None),
        (bytes, None),
    ],
)
def test_what_does_not_fit_is_dead_lettered(ground: Ground, annotation: Any, value: bytes | None) -> None:
    """The annotation is the contract: what breaks it does not reach the handler."""
    assert decoded(ground, annotation, [value]) == []
    assert ground.values(ground.dead) == [value]


def test_values_without_an_annotation_are_bytes(ground: Ground) -> None:
    """A handler that says nothing gets what is there."""
    ground.fill([(b"k", b"as it is")])
    seen: list[Any] = []
    app = ground.app()

    @app.handler(ground.source)
    async def note(value):  # type: ignore[no-untyped-def]  # what is tested
        seen.append(value)

    app.run(until="level")
    assert seen == [b"as it is"]


def test_codec_of_ones_own(ground: Ground) -> None:
    """A codec reads and writes a handler's values; one that fails fails the record."""

    class Shout:
        def decoder(self, annotation: Any) -> Callable[[bytes], Any]:
            assert annotation is str
            return lambda data: data.decode().upper()

        def encode(self, value: Any) -> bytes:
            if value == "NO":
                raise ValueError("never")
            return f"{value}!".encode()

    ground.fill([(b"k", b"yes"), (b"k", b"no")])
    app = ground.app()

    @app.handler(
        ground.source, to=ground.late, codec=Shout(), retry=Retry(attempts=1), on_failure=DeadLetter(ground.dead)
    )
    async def shout(value: str) -> str:
        return value

    app.run(until="level")
    assert ground.values(ground.late) == [b"YES!"]
    (letter,) = ground.read(ground.dead)
    assert letter.value == b"no"
    assert dict(letter.headers)["kl-error"] == b"OutputRefused: output 1 of 1: str can't be encoded: never"


def test_msgpack(ground: Ground) -> None:
    """Values may be msgpack."""
    ground.fill([(b"k", msgspec.msgpack.encode({"number": 3}))])
    app = ground.app()

    @app.handler(ground.source, to=ground.late, codec=MsgpackCodec())
    async def same(flight: Flight) -> Flight:
        return flight

    app.run(until="level")
    (value,) = ground.values(ground.late)
    assert msgspec.msgpack.decode(value or b"", type=Flight) == Flight(3)


# --- outputs -------------------------------------------------------------------------------------------------------


def test_records_say_otherwise(ground: Ground) -> None:
    """A returned record names its key, topic, partition, headers and time; what it does not name comes from the source
    record; a list is several, None among them is nothing.
    """
    ground.create(ground.late, 3)
    ground.create(f"{ground.late}-elsewhere")
    ground.fill([(b"key", b"1")])
    source = ground.read(ground.source)[0]
    app = ground.app()

    @app.handler(ground.source, to=ground.late, parallelising_factor=2)
    async def many(value: int) -> list[Any]:
        return [
            value,
            None,
            Record("other key", key="another"),
            Record("no key", key=None, partition=2),
            Record(None, key=b"tombstone", headers=[("color", b"red")], timestamp=12_345),
            Record({"to": "elsewhere"}, topic=f"{ground.late}-elsewhere"),
        ]

    app.run(until="level")
    found = {
        record.key: (partition, record) for partition in range(3) for record in ground.read(ground.late, partition)
    }
    assert {key: record.value for key, (_, record) in found.items()} == {
        b"key": b"1",
        b"another": b"other key",
        None: b"no key",
        b"tombstone": None,
    }
    for key in (b"key", b"another", b"tombstone"):
        assert found[key][0] == partition_of_key(key, 3), "where Kafka's own clients would send it"
    assert found[None][0] == 2
    assert found[b"key"][1].timestamp == source.timestamp
    assert found[b"tombstone"][1].timestamp == 12_345
    assert dict(found[b"tombstone"][1].headers)["color"] == b"red"
    (elsewhere,) = ground.read(f"{ground.late}-elsewhere")
    assert (elsewhere.key, elsewhere.value) == (b"key", b'{"to":"elsewhere"}')


def test_sent_and_returned_in_order(ground: Ground) -> None:
    """What is sent comes before what is returned; a topic that is only sent to is made like the source."""
    ground.create(ground.source, 2)
    ground.fill([(b"k", b"1")])
    app = ground.app()
    seen: list[Any] = []

    @app.handler(ground.source, to=ground.late, sends=(f"{ground.late}-beside",), parallelising_factor=2)
    def both(value: int, ctx: Context) -> list[int]:
        place = (ctx.topic, ctx.partition, ctx.offset)
        seen.append((*place, ctx.key, ctx.attempt, tuple(ctx.headers), ctx.timestamp > 0))
        ctx.send(ground.late, "first", key=ctx.key, headers=[("h", b"1")])
        ctx.send(f"{ground.late}-beside", {"offset": ctx.offset}, key="text", partition=1)
        ctx.send(ground.late, "second", key=ctx.key)
        return [3, 4]

    app.run(until="level")
    (place,) = [partition for partition in range(2) if ground.read(ground.late, partition)]
    assert [record.value for record in ground.read(ground.late, place)] == [b"first", b"second", b"3", b"4"]
    (made,) = ground.read(f"{ground.late}-beside", 1)
    assert (made.key, made.value) == (b"text", b'{"offset":0}')
    assert seen == [(ground.source, 0, 0, b"k", 1, (), True)]


@pytest.mark.parametrize(
    ("value", "fields", "cause"),
    [
        (object(), {}, "object can't be encoded"),
        (1, {"partition": 7}, "has partitions 0 to 0; seen 7"),
        (1, {"partition": -1}, "has partitions 0 to 0; seen -1"),
        (1, {"partition": "0"}, "has partitions 0 to 0; seen '0'"),
        (1, {"key": 5}, "a key is bytes, str or None; seen int"),
        (1, {"topic": "no such topic"}, "a topic name has"),
        (1, {"topic": b"late"}, "a topic name has"),
        (1, {"headers": [("h", "text")]}, "a header is a pair of str and bytes (or None); seen (str, str)"),
        (1, {"headers": [(1, b"x")]}, "a header is a pair of str and bytes"),
        (1, {"headers": ["hx"]}, "a header is a pair of str and bytes"),
        (1, {"timestamp": "now"}, "a timestamp is in ms since the epoch; seen 'now'"),
        (1, {"timestamp": 1 << 63}, "a timestamp is in ms since the epoch"),
    ],
)
def test_impossible_outputs_fail_their_record(ground: Ground, value: Any, fields: dict[str, Any], cause: str) -> None:
    """What can't be written is found out when the handler returns: its record is dead-lettered, the next one is not."""
    output = Record(value, **fields)
    ground.fill([(b"k", b"1"), (b"k", b"2")])
    app = ground.app()

    @app.handler(ground.source, to=ground.late, retry=Retry(attempts=1), on_failure=DeadLetter(ground.dead))
    async def odd(number: int) -> Any:
        return output if number == 1 else number

    app.run(until="level")
    assert ground.values(ground.late) == [b"2"]
    (letter,) = ground.read(ground.dead)
    assert letter.value == b"1"
    assert cause in (dict(letter.headers)["kl-error"] or b"").decode()


def test_own_logs_are_not_written_to(ground: Ground) -> None:
    """A handler that names a log of its own application is refused at the start, or its record fails."""
    ground.fill([(b"k", b"1")])
    for topic in (f"{ground.name}.offsets", f"{ground.name}.control"):
        app = ground.app()
        app.handler(ground.source, to=topic)(lambda value: value)
        with pytest.raises(SystemExit) as ended:
            app.run(until="level")
        assert isinstance(ended.value.__cause__, SettingsError)
        assert f"topic {topic!r} is a log of" in str(ended.value.__cause__)
    app = ground.app()

    @app.handler(ground.source, retry=Retry(attempts=1), on_failure=DeadLetter(ground.dead))
    async def send(value: int, ctx: Context) -> None:
        ctx.send(f"{ground.name}.offsets", value)

    app.run(until="level")
    assert b"is a log of this application" in (dict(ground.read(ground.dead)[0].headers)["kl-error"] or b"")


# --- threads and contexts ------------------------------------------------------------------------------------------


def test_sync_handlers_run_side_by_side_in_key_order(ground: Ground) -> None:
    """As many at once as there are threads, never two of one key, each key in order."""
    threads, keys, records = 4, 12, 240
    ground.fill([(b"k%d" % (i % keys), b"%d" % i) for i in range(records)])
    app = ground.app(threads=threads)
    changed = threading.Condition()
    running: set[bytes | None] = set()
    peak = 0
    seen: defaultdict[bytes | None, list[int]] = defaultdict(list)
    names: set[str] = set()

    @app.handler(ground.source, to=ground.late, parallelising_factor=256)
    def work(value: int, ctx: Context) -> int:
        nonlocal peak
        with changed:
            assert ctx.key not in running
            running.add(ctx.key)
            names.add(threading.current_thread().name)
            peak = max(peak, len(running))
            changed.notify_all()
            assert changed.wait_for(lambda: peak == threads, WAIT_S)
            running.discard(ctx.key)
            seen[ctx.key].append(value)
        return value

    app.run(until="level")
    assert len(names) == threads
    assert threading.main_thread().name not in names
    assert sum(map(len, seen.values())) == records
    for values in seen.values():
        assert values == sorted(values)


@pytest.mark.parametrize("is_async", [True, False])
def test_context_after_its_attempt(ground: Ground, is_async: bool) -> None:
    """Sending through a context that was kept raises, and nothing was sent."""
    ground.fill([(b"k", b"1"), (b"k", b"2")])
    kept: list[Context] = []
    errors: list[ContextClosed] = []
    app = ground.app()

    def on_thread(value: int, ctx: Context) -> None:
        for old in kept:
            with pytest.raises(ContextClosed, match="has ended; nothing was sent to") as closed:
                old.send(ground.late, "late", key=b"k")
            errors.append(closed.value)
        kept.append(ctx)
        ctx.send(ground.late, value, key=ctx.key)

    async def on_loop(value: int, ctx: Context) -> None:
        on_thread(value, ctx)

    app.handler(ground.source, sends=(ground.late,), parallelising_factor=2)(on_loop if is_async else on_thread)
    app.run(until="level")
    assert len(errors) == 1
    assert ground.values(ground.late) == [b"1", b"2"]


def test_timed_out_thread_writes_nothing(ground: Ground) -> None:
    """What a thread sends after its time was up is not seen, and it hears of that only by its own end."""
    ground.fill([(b"k", b"1"), (b"k", b"2")])
    app = ground.app(handler_timeout_ms=100)
    go = threading.Event()
    named = [0]

    @app.handler(
        ground.source,
        to=ground.late,
        parallelising_factor=1,
        retry=Retry(attempts=2, backoff_ms=1),
        on_failure=DeadLetter(ground.dead),
    )
    def slow(value: int, ctx: Context) -> int:
        ctx.send(ground.late, f"attempt {ctx.attempt}", key=ctx.key)
        if value == 1 and ctx.attempt == 1:
            go.wait(0.5)  # nobody sets it: longer than handler_timeout_ms
            named[0] += 1
        return value

    app.run(until="level")
    assert ground.values(ground.late) == [b"attempt 2", b"1", b"attempt 1", b"2"]
    assert named == [1]


async def test_concurrent_records_of_one_partition(ground: Ground) -> None:
    """A hundred records of a hundred keys wait at the same time."""
    await asyncio.to_thread(ground.fill, [(b"key-%d" % i, b"1") for i in range(100)])
    app = ground.app()
    waiting, enough, go = 0, asyncio.Event(), asyncio.Event()

    @app.handler(ground.source, parallelising_factor=16_384)
    async def wait(value: int) -> None:
        nonlocal waiting
        waiting += 1
        if waiting >= 95:  # some may share a range
            enough.set()
        await go.wait()

    async with app:
        async with asyncio.timeout(WAIT_S):
            await enough.wait()
        go.set()
