"""Odd records on a real Kafka: keys, values, headers, timestamps, codecs, damage. Rows of docs/bad-input.md."""

import random
import struct
import time
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from keylanes import App, DeadLetter, Retry, State
from keylanes.brokers.protocol import Headers
from keylanes.errors import HandlerFailed, SourceError
from keylanes.offsets.provenance import Provenance, decode_provenance, encode_provenance
from keylanes.state.changelog import decode_stored

from ..stage.feeding import FAIL, FOR_EVER, KEPT, feed, own_headers, passing_on, stops_with, trim
from ..stage.ground import Ground
from ..stage.raw import Raw, batch, flip_byte, log_file, old_message, send
from ..stage.stateful import configure
from ..tiers.brokers import SharedKafka

pytestmark = pytest.mark.broker


NOISE = random.Random(5).randbytes(3_000_000)
"""What no codec makes smaller."""


OTHERS = encode_provenance(b"an other", "other", 3, 4, 0, 1)


def provenance(headers: Headers) -> list[Provenance]:
    """The decoded headers of ours."""
    return [decode_provenance(data or b"") for name, data in headers if name == "kl"]


# --- keys and values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "wrong", "right", "says"),
    [
        (int, b"", b"1", b"DecodeFailed: the value (0 bytes) is no int"),
        (str, b"\xff\xfe\x00", "é".encode(), b"DecodeFailed: the value (3 bytes) is no str: 'utf-8'"),
    ],
    ids=["nothing that shall be JSON", "no UTF-8"],
)
def test_a_value_that_is_not_what_it_shall_be(
    kafka: Ground, kind: type, wrong: bytes, right: bytes, says: bytes
) -> None:
    """It is dead-lettered at once, byte for byte."""
    feed(kafka, Raw(value=wrong), Raw(value=right))
    app = kafka.app()

    async def publish(value: Any) -> Any:
        return value

    publish.__annotations__ = {"value": kind, "return": kind}
    app.handler(kafka.source, to=kafka.late, on_failure=DeadLetter(kafka.dead))(publish)
    app.run(until="level")
    assert kafka.values(kafka.late) == [right]
    (letter,) = kafka.read(kafka.dead)
    assert letter.value == wrong
    assert (dict(letter.headers)["kl-error"] or b"").startswith(says)


def test_a_huge_key(kafka: Ground) -> None:
    """Its order is kept as that of a small one."""
    key = bytes(range(256)) * 2_000
    for i in range(3):
        feed(kafka, Raw(key=key, value=b"%d" % i))
    passing_on(kafka).run(until="level")
    assert [(record.key == key, record.value) for record in kafka.read(kafka.late)] == [
        (True, b"%d" % i) for i in range(3)
    ]


def test_a_huge_value(kafka: Ground) -> None:
    """Records of 9 MB are read where the topic takes them, more than is asked for at once."""
    large = {"max_message_bytes": str(10_000_000), **KEPT}
    kafka.create(kafka.late, **large)
    values = [bytes([65 + i]) * 9_000_000 for i in range(3)]
    for value in values:
        feed(kafka, Raw(value=value), **large)
    passing_on(kafka).run(until="level")
    assert kafka.values(kafka.late) == values


def test_a_huge_value_that_is_passed_on_to_a_smaller_topic(kafka: Ground) -> None:
    """Neither the output nor the dead letter fits: stopped, naming the record; in a larger topic it goes on there."""
    feed(kafka, Raw(value=NOISE), max_message_bytes="4000000")
    error = stops_with(HandlerFailed, passing_on(kafka), f"{kafka.source}[0] offset 0: the broker refuses its output")
    assert "MESSAGE_TOO_LARGE" in error
    kafka.dead += "-large"
    kafka.create(kafka.dead, max_message_bytes="4000000")
    passing_on(kafka).run(until="level")
    assert kafka.values(kafka.late) == []
    assert kafka.values(kafka.dead) == [NOISE]


def test_tombstones_to_a_compacted_topic(kafka: Ground) -> None:
    """A null value comes in as None, and None goes out as a tombstone under its key."""
    kafka.create(kafka.late, cleanup_policy="compact")
    feed(kafka, Raw(b"a", b"1"), Raw(b"a", None), Raw(b"b", b"2"))
    passing_on(kafka).run(until="level")
    assert sorted((r.key, r.value or b"") for r in kafka.read(kafka.late)) == [(b"a", b""), (b"a", b"1"), (b"b", b"2")]
    assert [record.value for record in kafka.read(kafka.late) if record.key == b"a"] == [b"1", None]


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"k", b""), (b"\xff\x00\xfe", b"1"), (None, None)],
    ids=["empty value", "key that is no UTF-8", "nothing"],
)
def test_odd_keys_and_values(kafka: Ground, key: bytes | None, value: bytes | None) -> None:
    """Bytes are kept as they are, null is not empty: each record is passed on once; a dead letter has its key."""
    feed(kafka, *[Raw(key, value)] * 5, Raw(key, FAIL))
    passing_on(kafka).run(until="level")
    assert [(record.key, record.value) for record in kafka.read(kafka.late)] == [(key, value)] * 5
    assert [record.key for record in kafka.read(kafka.dead)] == [key]


# --- headers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "odd",
    [
        ((b"a", None), (b"b", b"")),
        ((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"", b"4")),
        tuple((b"h%d" % i, b"%d" % i) for i in range(10_000)),
    ],
    ids=["null and empty", "the same name", "ten thousand"],
)
def test_odd_headers(kafka: Ground, odd: tuple[tuple[bytes, bytes | None], ...]) -> None:
    """All arrive in their order, a handler may pass them on, and a dead letter keeps them; null is not empty."""
    feed(kafka, Raw(headers=odd), Raw(value=FAIL, headers=odd))
    passing_on(kafka).run(until="level")
    for topic in (kafka.late, kafka.dead):
        (record,) = kafka.read(topic)
        assert own_headers(record.headers) == [(name.decode(), data) for name, data in odd]


def test_a_huge_header(kafka: Ground) -> None:
    """It counts for the size of the output: passed on where it fits, refused with the record's size where not."""
    kafka.create(kafka.late, max_message_bytes="700000", **KEPT)
    feed(kafka, Raw(headers=((b"h", b"x" * 800_000),)))
    passing_on(kafka).run(until="level")
    assert kafka.values(kafka.late) == []
    (letter,) = kafka.read(kafka.dead)
    assert own_headers(letter.headers) == [("h", b"x" * 800_000)]
    error = dict(letter.headers)["kl-error"] or b""
    assert error.startswith(b"OutputRefused: output 1 of 1 has 800")
    assert error.endswith(b"takes at most 700000")


@pytest.mark.parametrize("value", [b"junk", None, msgspec.msgpack.encode((1, "other", 3, 4, 0, 1)), OTHERS])
def test_our_own_header_on_a_source_record(kafka: Ground, value: bytes | None) -> None:
    """Whatever stands in it: outputs and dead letters name the record that they were made of, once, and an output that
    the record's headers are passed on to says nothing that a letter says.
    """
    odd = ((b"kl", value), (b"kl-attempts", b"77"), (b"a", b"1"))
    feed(kafka, Raw(headers=odd), Raw(value=FAIL, headers=odd))
    passing_on(kafka).run(until="level")
    (output,), (letter,) = kafka.read(kafka.late), kafka.read(kafka.dead)
    assert [name for name, _ in output.headers] == ["a", "kl"]
    (of_output,), (of_letter,) = provenance(output.headers), provenance(letter.headers)
    assert of_output == Provenance(2, of_letter.app_id, kafka.source, 0, 0, 0, 1)
    assert of_letter == Provenance(2, of_output.app_id, kafka.source, 0, 1, 0, 1)
    assert [data for name, data in letter.headers if name == "kl-attempts"] == [b"1"]


def test_a_header_name_that_is_no_utf8(kafka: Ground) -> None:
    """Stopped, naming the record; all before it is processed. A new application begins behind what was deleted."""
    feed(kafka, Raw(value=b"0"), Raw(value=b"1"), Raw(headers=((b"\xff\xfe", b"1"),)))
    feed(kafka, Raw(value=b"3"))
    stops_with(SourceError, passing_on(kafka), f"{kafka.source}[0] can't be read at offset 2: UnicodeDecodeError")
    trim(kafka, 3)
    stops_with(SourceError, passing_on(kafka), "starts at offset 3, but records from 2 on were not processed yet")
    assert kafka.values(kafka.late) == [b"0", b"1"]
    kafka.name += "-new"
    passing_on(kafka).run(until="level")
    assert kafka.values(kafka.late) == [b"0", b"1", b"3"]


# --- timestamps ------------------------------------------------------------------------------------------------------


def stamps(ground: Ground, topic: str) -> list[int]:
    """The timestamps in a partition 0."""
    return [record.timestamp for record in ground.read(topic)]


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return int(time.time() * 1000)


@pytest.mark.parametrize("timestamp", [-1, -5])
def test_a_record_without_a_timestamp(kafka: Ground, timestamp: int) -> None:
    """-1 is Kafka's "none", and what is below counts as it: outputs and dead letters have the time they are written."""
    began = now_ms()
    feed(kafka, Raw(timestamp=timestamp), Raw(value=FAIL, timestamp=timestamp))
    passing_on(kafka).run(until="level")
    (published,), (letter,) = stamps(kafka, kafka.late), stamps(kafka, kafka.dead)
    assert began <= published <= now_ms()
    assert began <= letter <= now_ms()


def test_a_timestamp_of_zero(kafka: Ground) -> None:
    """1970 is a time: it is kept."""
    for topic in (kafka.late, kafka.dead):
        kafka.create(topic, **FOR_EVER)
    feed(kafka, Raw(timestamp=0), Raw(value=FAIL, timestamp=0))
    passing_on(kafka).run(until="level")
    assert stamps(kafka, kafka.late) == [0]
    assert [dict(letter.headers)["kl-timestamp"] for letter in kafka.read(kafka.dead)] == [b"0"]


def test_timestamps_that_go_backwards(kafka: Ground) -> None:
    """Order is that of offsets, whatever the clocks of the writers said."""
    kafka.create(kafka.late, **FOR_EVER)
    times = [5_000, 4_000, 9_000, 1, 4_000]
    feed(kafka, *(Raw(value=b"%d" % i, timestamp=at) for i, at in enumerate(times)))
    passing_on(kafka).run(until="level")
    assert kafka.values(kafka.late) == [b"%d" % i for i in range(5)]
    assert stamps(kafka, kafka.late) == times


def test_a_timestamp_in_the_far_future(kafka: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """Where the output topic refuses it (an hour ahead, by default), the record is dead-lettered with the time of now
    and its own in a header; so is one that failed anyway. Others of its transaction are published.
    """
    far = (1 << 62) + 1
    feed(kafka, Raw(value=b"1"), Raw(b"b", timestamp=far), Raw(b"c", FAIL, timestamp=far), Raw(value=b"4"))
    passing_on(kafka).run(until="level")
    assert f"INVALID_TIMESTAMP; it goes to {kafka.dead}" in caplog.text
    assert kafka.values(kafka.late) == [b"1", b"4"]
    letters = kafka.read(kafka.dead)
    assert sorted(letter.key or b"" for letter in letters) == [b"b", b"c"]
    for letter in letters:
        assert dict(letter.headers)["kl-timestamp"] == b"%d" % far
        assert letter.timestamp <= now_ms()


@pytest.mark.parametrize("timestamps", ["record", "now"])
def test_records_that_are_older_than_outputs_may_become(
    kafka: Ground, timestamps: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning says so at the start, with both numbers, unless outputs have the time of their sending."""
    kafka.create(kafka.late, retention_ms="86400000")
    feed(kafka, Raw(value=b"1", timestamp=now_ms() - 3 * 86_400_000))
    app = kafka.app()
    app.handler(kafka.source, to=kafka.late, timestamps=timestamps)(lambda value: value)
    began = now_ms()
    app.run(until="level")
    said = f"begins with records that are 3.0 days old, and {kafka.late} deletes what is older than 1.0 days"
    assert (said in caplog.text) == (timestamps == "record")
    if timestamps == "now":
        assert [began - 1_000 <= at <= now_ms() for at in stamps(kafka, kafka.late)] == [True]


def test_a_timestamp_in_the_far_future_where_it_is_taken(kafka: Ground) -> None:
    """An output topic that allows it (message.timestamp.after.max.ms) keeps it."""
    far = (1 << 62) + 1
    kafka.create(kafka.late, **FOR_EVER)
    feed(kafka, Raw(timestamp=far))
    passing_on(kafka).run(until="level")
    assert stamps(kafka, kafka.late) == [far]


def test_log_append_time(kafka: Ground) -> None:
    """Of a source that stamps records itself the handler sees that time, not the writer's."""
    began = now_ms()
    feed(kafka, Raw(timestamp=7), Raw(timestamp=8), message_timestamp_type="LogAppendTime")
    passing_on(kafka).run(until="level")
    assert all(began - 1_000 <= at <= now_ms() for at in stamps(kafka, kafka.late))
    assert len(stamps(kafka, kafka.late)) == 2


# --- codecs and formats ----------------------------------------------------------------------------------------------


def test_every_codec_in_one_partition(kafka: Ground) -> None:
    """Written by another client, batch by batch in another codec, headers and nulls among them: read in order."""
    kafka.create(kafka.source)
    expected = []
    for codec in ("gzip", "none", "snappy", "lz4", "zstd", "gzip"):
        settings = {
            "bootstrap.servers": kafka.servers,
            "compression.type": codec,
            "linger.ms": 50,
        }
        producer = Producer(settings)
        for i in range(50):
            value = None if i % 7 == 0 else f"{codec} {i} ".encode() * 20
            producer.produce(kafka.source, value, b"k", headers=[("n", None), ("c", codec.encode())])
            expected.append(value)
        assert producer.flush(20) == 0
    passing_on(kafka).run(until="level")
    assert kafka.values(kafka.late) == expected


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_an_old_format(kafka: Ground, kafka_server: SharedKafka, magic: int) -> None:
    """A broker of today takes no new ones; those that an upgraded one still holds are read. Format 0 has no time."""
    kafka.create(kafka.source, **FOR_EVER)
    assert send(kafka, old_message(magic, b"k", b"v", 5)) == 87  # INVALID_RECORD
    size = len(batch([Raw(value=b"x" * 100)]))
    feed(kafka, Raw(value=b"x" * 100))
    value = b"v" * (size - len(old_message(magic, b"k", b"", 5)))
    with log_file(kafka_server.folder, kafka.source).open("r+b") as file:
        file.write(old_message(magic, b"k", value, 5))
    began = now_ms()
    passing_on(kafka).run(until="level")
    assert kafka.values(kafka.late) == [value]
    (at,) = stamps(kafka, kafka.late)
    assert at == 5 if magic else at >= began


# --- damage ----------------------------------------------------------------------------------------------------------


def two_batches(ground: Ground, server: SharedKafka) -> int:
    """A batch of three records and one of one; where the second one begins in the file."""
    feed(ground, *(Raw(value=b"%d" % i) for i in range(3)))
    feed(ground, Raw(value=b"3"))
    size: int = struct.unpack(">i", log_file(server.folder, ground.source).read_bytes()[8:12])[0]
    return size + 12


@pytest.mark.parametrize("at", [65, 40, 25], ids=["record", "timestamp", "attributes"])
def test_a_flipped_byte_in_a_batch(kafka: Ground, kafka_server: SharedKafka, at: int) -> None:
    """Stopped, naming the place; put right, it goes on there: nothing is skipped, nothing doubled."""
    damaged = two_batches(kafka, kafka_server) + at
    flip_byte(log_file(kafka_server.folder, kafka.source), damaged)
    stops_with(SourceError, passing_on(kafka), f"{kafka.source}[0] can't be read at offset 3: Corrupt", "Invalid CRC")
    before = kafka.values(kafka.late)
    assert before == [b"0", b"1", b"2"][: len(before)], "the damage may be met before the first commit"
    flip_byte(log_file(kafka_server.folder, kafka.source), damaged)
    passing_on(kafka).run(until="level")
    assert kafka.values(kafka.late) == [b"0", b"1", b"2", b"3"]


def test_a_flipped_byte_in_the_length_of_a_batch(kafka: Ground, kafka_server: SharedKafka) -> None:
    """The broker itself can't read it and says nothing: that it gives nothing is noticed, and stops the application."""
    damaged = two_batches(kafka, kafka_server) + 9
    flip_byte(log_file(kafka_server.folder, kafka.source), damaged)
    app = passing_on(kafka, request_timeout_ms=1_000, default_api_timeout_ms=1_000)
    stops_with(SourceError, app, f"{kafka.source}[0] can't be read at offset 3: it has records up to 4, and ")
    assert kafka.values(kafka.late) == [b"0", b"1", b"2"]
    flip_byte(log_file(kafka_server.folder, kafka.source), damaged)
    passing_on(kafka).run(until="level")
    assert kafka.values(kafka.late) == [b"0", b"1", b"2", b"3"]


# --- with state ------------------------------------------------------------------------------------------------------


def counting(ground: Ground) -> App:
    """Counts the records of each key, and publishes as many bytes as the value says."""
    app = ground.app()

    @app.handler(ground.source, to=ground.late, retry=Retry(attempts=1), on_failure=DeadLetter(ground.dead))
    async def count(value: int, seen: State[int]) -> bytes:
        seen.put((seen.get() or 0) + 1)
        return random.Random(value).randbytes(value)

    return app


def test_a_record_without_a_key_that_asks_for_state(kafka: Ground) -> None:
    """It is dead-lettered at once; an empty key is a key, and has state."""
    feed(kafka, Raw(None, b"1"), Raw(b"", b"2"), Raw(b"", b"3"))
    counting(kafka).run(until="level")
    (letter,) = kafka.read(kafka.dead)
    assert (letter.key, letter.value) == (None, b"1")
    assert (dict(letter.headers)["kl-error"] or b"").startswith(b"NoKey: the record has no key, so it has no state")
    assert [decode_stored(value).payload for value in kafka.kept(1).values()] == [b"2"]


def test_a_refused_output_of_a_record_that_changed_state(kafka: Ground) -> None:
    """Later records of its key have seen the change, so it becomes no dead letter: stopped; neither output nor state
    is there. When the output topic takes it, it goes on.
    """
    kafka.create(kafka.late)
    feed(kafka, Raw(b"a", b"1"), Raw(b"a", b"2", timestamp=1 << 62), Raw(b"a", b"3"))
    for _ in range(2):
        stops_with(HandlerFailed, counting(kafka), "INVALID_TIMESTAMP", "it changed state, so it can't become a dead")
    assert kafka.values(kafka.dead) == []
    configure(kafka, kafka.late, {"message.timestamp.after.max.ms": FOR_EVER["message_timestamp_after_max_ms"]})
    counting(kafka).run(until="level")
    assert [len(value or b"") for value in kafka.values(kafka.late)] == [1, 2, 3]
    assert [decode_stored(value).payload for value in kafka.kept(1).values()] == [b"3"]
