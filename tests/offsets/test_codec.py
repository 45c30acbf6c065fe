"""Events to bytes and back: the golden file of every schema version, and what is refused.

``golden/events.txt`` holds an event a block: its tag, its Python text, and its bytes in hexadecimal. It is written by
``python tests/offsets/test_codec.py``, which appends the kinds that are missing and never changes a block: bytes that
were written once must be read for ever, as the event that says the same today.
"""

import typing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.offsets import events
from keylanes.offsets.codec import EVENT_BYTES_MAX, EventError, decode, encode

GOLDEN = Path(__file__).parent / "golden" / "events.txt"
KINDS: tuple[type[msgspec.Struct], ...] = typing.get_args(events.Event)
OLDER: tuple[type[msgspec.Struct], ...] = (events.SnapshotTaken1, events.PartitionStarted1)
"""Kinds that are read and no longer written."""

EXAMPLES: tuple[events.Event, ...] = (
    events.AppCreated(app="flights", hash_name="xxh64-seed42-high32", log_partitions=4),
    events.CoordinatorElected(term=7, instance="5f0c2b"),
    events.MemberJoined(term=7, incarnation=3, instance="5f0c2b", transactional_id="flights-3-5f0c2b"),
    events.MemberExpelled(term=7, incarnation=2),
    events.MemberFenced(term=7, incarnation=2),
    events.PartitionStarted(term=7, topic="flüge", partition=2, offset=336_775, start="group:flights", partitions=4),
    events.RangesGranted(
        term=7,
        incarnation=3,
        epoch=5,
        topic="flüge",
        partition=2,
        bands=(events.Band(0, 2**31, 336_775), events.Band(2**31, 2**32, 2**40)),
    ),
    events.SourceIdentified(term=7, topic="flüge", identity="5bcb647a9e52401a8ffcce0dcec26e07"),
    events.LogOpened(
        app="flights",
        hash_name="xxh64-seed42-high32",
        log_partition=1,
        log_partitions=4,
        incarnation=3,
        transaction=0,
    ),
    events.WorkersCut(
        incarnation=3, transaction=1, epoch=5, topic="flüge", partition=2, worker=0, bounds=(0, 2**31, 2**32)
    ),
    events.WorkerSplit(incarnation=3, transaction=2, epoch=5, topic="flüge", partition=2, worker=0, at=2**30, left=2),
    events.WorkersMerged(incarnation=3, transaction=3, epoch=5, topic="flüge", partition=2, left=2, right=3, worker=4),
    events.RangeReleased(incarnation=3, transaction=4, epoch=5, topic="flüge", partition=2, first=0, end=2**31),
    events.Committed(
        incarnation=3,
        transaction=5,
        part=0,
        parts=1,
        epoch=5,
        topic="flüge",
        partition=2,
        tiles=(
            events.Tile(worker=0, count=128, first=0, end=2**31, offset_from=336_775, offset_to=336_776),
            events.Tile(worker=128, count=1, first=2**31, end=2**32, offset_from=2**40, offset_to=2**63 - 1),
        ),
        outputs=2,
        dead_letters=1,
        digest=2**64 - 1,
    ),
    events.SnapshotTaken(
        incarnation=3,
        transaction=6,
        part=0,
        parts=2,
        app="flights",
        position=1_000_000,
        topic="flüge",
        partition=2,
        epochs_closed=4,
        epochs=(
            events.EpochFold(
                epoch=5,
                incarnation=3,
                pieces=(
                    events.Piece(0, 2**31, 100, 200, None, 4, False),
                    events.Piece(2**31, 2**32, 100, 150, 150, None, True),
                ),
            ),
        ),
        violations=(0, 0, 0, 0),
        changed_incarnation=2,
        changed_transaction=300,
    ),
    events.StoreDeclared(
        term=7,
        number=1,
        name="seen",
        topic="flüge",
        kind="map",
        key_type="str",
        value_type="struct",
        codec="json",
    ),
    events.StateChanged(incarnation=3, transaction=7, topic="flüge", partition=2, changes=70_000),
)


class Block(typing.NamedTuple):
    """A block of the golden file."""

    tag: str
    text: str
    data: bytes


def tag_of(kind: type[msgspec.Struct]) -> str:
    """The tag of a kind of event."""
    return str(kind.__struct_config__.tag)


def golden_blocks() -> list[Block]:
    """The file, block by block."""
    blocks = []
    for block in GOLDEN.read_text(encoding="utf-8").split("\n\n"):
        tag, text, *data = block.strip().split("\n")
        blocks.append(Block(tag, text, bytes.fromhex("".join(data))))
    return blocks


def event_of(block: Block) -> events.Event | events.OlderEvent:
    """The event that the Python text of a block says; the text uses the names of events.py only."""
    event: events.Event | events.OlderEvent = eval(block.text, {"__builtins__": {}}, vars(events))  # noqa: S307 - our own committed file
    return event


def write_missing() -> None:
    """Append a block for every example whose tag has none yet."""
    GOLDEN.parent.mkdir(exist_ok=True)
    present = {block.tag for block in golden_blocks()} if GOLDEN.exists() else set()
    with GOLDEN.open("a", encoding="utf-8") as file:
        for event in EXAMPLES:
            tag = tag_of(type(event))
            if tag not in present:
                data = encode(event).hex(" ").split(" ")
                lines = [" ".join(data[i : i + 32]) for i in range(0, len(data), 32)]
                file.write("\n".join(["\n" * bool(file.tell()) + tag, repr(event), *lines]) + "\n")


BLOCKS = golden_blocks() if GOLDEN.exists() else []
every_block = pytest.mark.parametrize("block", BLOCKS, ids=[block.tag for block in BLOCKS])


def test_every_kind_of_event_has_a_golden_block() -> None:
    """A kind that is new, or whose tag changed, needs bytes of its own in the file; no tag has two blocks."""
    assert sorted(block.tag for block in BLOCKS) == sorted(map(tag_of, (*KINDS, *OLDER)))


@every_block
def test_the_bytes_of_an_event_are_the_golden_ones(block: Block) -> None:
    """Encoding gives them and decoding them gives the event, for every version that was ever written."""
    event = event_of(block)
    assert tag_of(type(event)) == block.tag
    assert encode(event) == block.data  # type: ignore[arg-type]  # what is no longer written, too
    assert decode(block.data) == events.as_of_today(event)
    assert repr(event) == block.text


def test_a_snapshot_of_before_is_one_of_today_without_state() -> None:
    """It says what it said, and that no transaction changed the state; written again it is of today's version."""
    block = next(block for block in BLOCKS if block.tag == "snapshot_taken/1")
    older, today = event_of(block), decode(block.data)
    assert isinstance(today, events.SnapshotTaken)
    assert msgspec.structs.astuple(today) == (*msgspec.structs.astuple(older), 0, 0)
    assert decode(encode(today)) == today


def test_a_start_of_before_was_from_the_first_record() -> None:
    """It says what it said; how many partitions the topic had was not written down."""
    block = next(block for block in BLOCKS if block.tag == "partition_started/1")
    today = decode(block.data)
    assert today == events.PartitionStarted(7, "flüge", 2, 0, "earliest", 0)
    assert decode(encode(today)) == today


@every_block
def test_an_event_cut_off_anywhere_is_refused(block: Block) -> None:
    """Each shorter prefix of the bytes raises EventError and nothing else."""
    for length in range(len(block.data)):
        with pytest.raises(EventError):
            decode(block.data[:length])


@every_block
def test_an_event_of_another_length_is_refused(block: Block) -> None:
    """A field more, a field less, and bytes behind the event are damage: nothing is ignored, nothing is filled in."""
    fields = msgspec.msgpack.decode(block.data)
    for changed in ([*fields, 0], [*fields, None], fields[:-1]):
        with pytest.raises(EventError, match=f"damaged event of kind {block.tag}"):
            decode(msgspec.msgpack.encode(changed))
    with pytest.raises(EventError, match="trailing"):
        decode(block.data + b"\x00")


@every_block
def test_an_unknown_version_of_a_known_kind_is_refused(block: Block) -> None:
    """The error names the version seen and the versions known, whatever the rest looks like."""
    fields = msgspec.msgpack.decode(block.data)
    newer = block.tag.rpartition("/")[0] + "/999"
    for rest in (fields[1:], [], [*fields[1:], {"new": b"\x00"}]):
        with pytest.raises(EventError, match=f"unknown version of an event: seen '{newer}', known .*{block.tag}"):
            decode(msgspec.msgpack.encode([newer, *rest]))


@every_block
@given(data=st.data())
def test_a_damaged_event_is_refused_or_another_event(block: Block, data: st.DataObject) -> None:
    """Whatever single bytes become, decoding gives an event or an EventError: text that is no UTF-8, too."""
    damaged = bytearray(block.data)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        event = decode(bytes(damaged))
    except EventError:
        return
    assert isinstance(event, KINDS)


@given(st.binary(max_size=40))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    """Bytes that nobody of ours wrote raise EventError."""
    with pytest.raises(EventError):
        decode(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (msgspec.msgpack.encode(["vanished/1", 1]), "unknown kind of event: seen 'vanished/1'"),
        (msgspec.msgpack.encode(["committed", 1]), "unknown kind of event: seen 'committed'"),
        (msgspec.msgpack.encode({"type": "committed/1"}), "starts with its kind; seen dict"),
        (msgspec.msgpack.encode([]), "starts with its kind; seen list"),
        (msgspec.msgpack.encode([7, 1]), "starts with its kind; seen list"),
        (
            msgspec.msgpack.encode(["member_fenced/1", 1, "two"]),
            "damaged event of kind member_fenced/1: Expected",
        ),
        (msgspec.msgpack.encode(["member_fenced/1", 1, 2.0]), "damaged event of kind member_fenced/1: Expected"),
        (msgspec.msgpack.encode(["member_fenced/1", True, 2]), "damaged event of kind member_fenced/1: Expected"),
        (b"", "0 bytes are no msgpack"),
        (b"{}", "no msgpack"),
        (b"\x92\xa1\xff\x00", "no msgpack.*utf-8"),
        (b"\x91" * 100_000, "100000 bytes are no msgpack"),
        (b"\x93\xafmember_fenced/1\x01" + b"\x91" * 100_000, "bytes are no msgpack"),
    ],
)
def test_what_is_no_event_is_refused_in_words(data: bytes, words: str) -> None:
    """The message says what was seen, so that a person knows whether the topic is foreign, newer or damaged."""
    with pytest.raises(EventError, match=words):
        decode(data)


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: tag_of(type(event)))
def test_events_are_values(event: events.Event) -> None:
    """Frozen and hashable: nobody changes a fact, and a fold may keep facts in sets."""
    assert len({event, decode(encode(event))}) == 1
    with pytest.raises(AttributeError):
        event.term = 9  # type: ignore[union-attr, misc]  # that it is refused is the point


def test_an_event_over_a_thousand_tiles_fits_the_limit() -> None:
    """3,000 workers that all moved apart still fit one event, with the largest numbers there are."""
    top = 2**63 - 1
    tiles = tuple(events.Tile(top, top, 2**32 - 1, 2**32, top - 1, top) for _ in range(3000))
    size = len(encode(events.Committed(top, top, 0, 1, top, "t", 2**31 - 1, tiles, top, top, 2**64 - 1)))
    assert size < EVENT_BYTES_MAX


if __name__ == "__main__":
    write_missing()
