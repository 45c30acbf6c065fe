"""Events and signals to bytes and back: the golden files of every schema version, and what is refused.

``golden/events.txt`` and ``golden/signals.txt`` hold an event a block: its tag, its Python text, and its bytes in
hexadecimal. ``python -m tests.offsets.test_codec "MemberFenced(term=7, number=4, incarnation=2)"`` appends the block of
a new kind, and nothing changes a block: bytes that a release wrote must be read for ever.
"""

import math
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.offsets import control_events, event_values, signals
from keylanes.offsets import events as offset_events
from keylanes.offsets.codec import (
    EVENT_BYTES_MAX,
    TAGS_BEFORE_RELEASE,
    EventError,
    SignalError,
    decode,
    decode_signal,
    encode,
    prefix_of,
)
from keylanes.offsets.event_values import Tile
from keylanes.offsets.events import Committed, Event
from keylanes.offsets.signals import JoinAsked, Signal

from ..tiers.marks import tier

pytestmark = tier("check")

KINDS: tuple[type[msgspec.Struct], ...] = typing.get_args(Event)
SIGNAL_KINDS: tuple[type[msgspec.Struct], ...] = typing.get_args(Signal)
NAMES = {
    name: value
    for module in (event_values, control_events, offset_events, signals)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, msgspec.Struct)
}
"""What the Python text of a block may use."""


class Golden(typing.NamedTuple):
    """A golden file, and how what is in it is read."""

    path: Path
    kinds: tuple[type[msgspec.Struct], ...]
    read: Callable[[bytes], Event | Signal]
    error: type[ValueError]
    name: str

    @property
    def tags(self) -> set[str]:
        """Of its kinds."""
        return {*map(tag_of, self.kinds)}


class Block(typing.NamedTuple):
    """A block of a golden file."""

    golden: Golden
    tag: str
    text: str
    data: bytes


FOLDER = Path(__file__).parent / "golden"
OF_EVENTS = Golden(FOLDER / "events.txt", KINDS, lambda data: decode(data), EventError, "an event")
OF_SIGNALS = Golden(FOLDER / "signals.txt", SIGNAL_KINDS, decode_signal, SignalError, "a signal")
FILES = (OF_EVENTS, OF_SIGNALS)


def tag_of(kind: type[msgspec.Struct]) -> str:
    """The tag of a kind of event."""
    return str(kind.__struct_config__.tag)


def golden_blocks(golden: Golden) -> list[Block]:
    """The file, block by block."""
    blocks = []
    for block in golden.path.read_text(encoding="utf-8").split("\n\n"):
        tag, words, *data = block.strip().split("\n")
        blocks.append(Block(golden, tag, words, bytes.fromhex("".join(data))))
    return blocks


def named(text: str) -> Event | Signal:
    """The event that a Python text says."""
    event: Event | Signal = eval(text, {"__builtins__": {}}, NAMES)  # noqa: S307 - our own committed file
    return event


def append_block(text: str) -> None:
    """Append the block of an event whose kind has none yet."""
    event = named(text)
    tag = tag_of(type(event))
    assert tag not in {block.tag for block in BLOCKS}, f"{tag} has its bytes for ever"
    data = encode(event).hex(" ").split(" ")
    lines = [" ".join(data[i : i + 32]) for i in range(0, len(data), 32)]
    with (OF_SIGNALS if isinstance(event, SIGNAL_KINDS) else OF_EVENTS).path.open("a", encoding="utf-8") as file:
        file.write("\n".join(["", tag, repr(event), *lines]) + "\n")


BLOCKS = [block for golden in FILES for block in golden_blocks(golden)]
EVENTS: list[Any] = [named(block.text) for block in golden_blocks(OF_EVENTS)]
SIGNALS: list[Any] = [named(block.text) for block in golden_blocks(OF_SIGNALS)]
BEFORE_RELEASE = [
    f"{kind}/{version}"
    for kind, _, written in (tag.rpartition("/") for tag in sorted(OF_EVENTS.tags))
    for version in range(1, int(written))
]
"""Tags of the versions in front of those that are written: no release ever had another version of a kind."""
every_block = pytest.mark.parametrize("block", BLOCKS, ids=[block.tag for block in BLOCKS])


@pytest.mark.parametrize("golden", FILES, ids=["events", "signals"])
def test_every_kind_has_a_golden_block(golden: Golden) -> None:
    """A kind that is new, or whose tag changed, needs bytes of its own in the file; no tag has two blocks."""
    tags = [block.tag for block in golden_blocks(golden)]
    assert sorted(tags) == sorted(map(tag_of, golden.kinds))


def test_no_event_has_the_tag_of_a_signal() -> None:
    """So a record in the wrong topic is refused, never taken for something else."""
    assert not (OF_EVENTS.tags | TAGS_BEFORE_RELEASE) & OF_SIGNALS.tags
    for event in EVENTS:
        with pytest.raises(SignalError, match="unknown kind of signal"):
            decode_signal(encode(event))
    for signal in SIGNALS:
        with pytest.raises(EventError, match="unknown kind of event"):
            decode(encode(signal))


@pytest.mark.parametrize("capacity", [0.0, -1.0, math.inf, math.nan, 1e9])
def test_a_capacity_that_none_can_have_is_refused(capacity: float) -> None:
    """The coordinator divides by it: one signal that is out of bounds must not end it."""
    (asked,) = (signal for signal in SIGNALS if isinstance(signal, JoinAsked))
    with pytest.raises(SignalError, match="damaged signal of kind join_asked/1"):
        decode_signal(encode(msgspec.structs.replace(asked, capacity=capacity)))


@every_block
def test_the_bytes_are_the_golden_ones(block: Block) -> None:
    """Encoding gives them and decoding them gives the event, for every version that is written."""
    event = named(block.text)
    assert tag_of(type(event)) == block.tag
    assert encode(event) == block.data
    assert block.golden.read(block.data) == event
    assert repr(event) == block.text


@pytest.mark.parametrize("rest", [[], [7, "as it was then"]])
@pytest.mark.parametrize("tag", BEFORE_RELEASE)
def test_an_event_of_before_the_first_release_is_refused(tag: str, rest: list[object]) -> None:
    """By its tag alone, in a sentence; other tags are not taken for one."""
    assert {*BEFORE_RELEASE} == TAGS_BEFORE_RELEASE
    said = f"an event of kind {tag} was written before the first release, and such logs are read no more"
    with pytest.raises(EventError, match=said):
        decode(msgspec.msgpack.encode([tag, *rest]))


@every_block
def test_an_event_cut_off_anywhere_is_refused(block: Block) -> None:
    """Each shorter prefix of the bytes raises EventError, or SignalError, and nothing else."""
    for length in range(len(block.data)):
        with pytest.raises(block.golden.error):
            block.golden.read(block.data[:length])


@every_block
def test_an_event_of_another_length_is_refused(block: Block) -> None:
    """A field more, a field less, and bytes behind the event are damage: nothing is ignored, nothing is filled in."""
    fields = msgspec.msgpack.decode(block.data)
    for changed in ([*fields, 0], [*fields, None], fields[:-1]):
        with pytest.raises(block.golden.error, match=f"damaged {block.golden.name[2:].strip()} of kind {block.tag}"):
            block.golden.read(msgspec.msgpack.encode(changed))
    with pytest.raises(block.golden.error, match="trailing"):
        block.golden.read(block.data + b"\x00")


@every_block
def test_an_unknown_version_of_a_known_kind_is_refused(block: Block) -> None:
    """The error names the version seen and the versions known, whatever the rest looks like."""
    fields = msgspec.msgpack.decode(block.data)
    newer = block.tag.rpartition("/")[0] + "/999"
    for rest in (fields[1:], [], [*fields[1:], {"new": b"\x00"}]):
        words = f"unknown version of {block.golden.name}: seen '{newer}', known .*{block.tag}"
        with pytest.raises(block.golden.error, match=words):
            block.golden.read(msgspec.msgpack.encode([newer, *rest]))


@every_block
@given(data=st.data())
def test_a_damaged_event_is_refused_or_another_event(block: Block, data: st.DataObject) -> None:
    """Whatever single bytes become, decoding gives an event or an EventError: text that is no UTF-8, too."""
    damaged = bytearray(block.data)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        event = block.golden.read(bytes(damaged))
    except block.golden.error:
        return
    assert isinstance(event, SIGNAL_KINDS if block.golden is OF_SIGNALS else KINDS)


@given(st.binary(max_size=40))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    """Bytes that nobody of ours wrote raise EventError, and SignalError."""
    for golden in FILES:
        with pytest.raises(golden.error):
            golden.read(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (msgspec.msgpack.encode(["vanished/1", 1]), "unknown kind of event: seen 'vanished/1'"),
        (msgspec.msgpack.encode(["committed", 1]), "unknown kind of event: seen 'committed'"),
        (msgspec.msgpack.encode({"type": "committed/1"}), "starts with its kind; seen dict"),
        (msgspec.msgpack.encode([]), "starts with its kind; seen list"),
        (msgspec.msgpack.encode([7, 1]), "starts with its kind; seen list"),
        (
            msgspec.msgpack.encode(["member_fenced/2", 1, 2, "two"]),
            "damaged event of kind member_fenced/2: Expected",
        ),
        (msgspec.msgpack.encode(["member_fenced/2", 1, 2, 2.0]), "damaged event of kind member_fenced/2: Expected"),
        (msgspec.msgpack.encode(["member_fenced/2", True, 2, 2]), "damaged event of kind member_fenced/2: Expected"),
        (b"", "0 bytes are no msgpack"),
        (b"{}", "no msgpack"),
        (b"\x92\xa1\xff\x00", "no msgpack.*utf-8"),
        (b"\x91" * 100_000, "100000 bytes are no msgpack"),
        (b"\x93\xafmember_fenced/2\x01" + b"\x91" * 100_000, "bytes are no msgpack"),
    ],
)
def test_what_is_no_event_is_refused_in_words(data: bytes, words: str) -> None:
    """The message says what was seen, so that a person knows whether the topic is foreign, newer or damaged."""
    with pytest.raises(EventError, match=words):
        decode(data)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: tag_of(type(event)))
def test_events_are_values(event: Event) -> None:
    """Frozen and hashable: nobody changes a fact, and a fold may keep facts in sets."""
    assert len({event, decode(encode(event))}) == 1
    with pytest.raises(AttributeError):
        event.term = 9  # type: ignore[union-attr, misc]  # that it is refused is the point


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_of_a_kind_are_told_by_how_they_begin(event: Event) -> None:
    """All of that kind begin so, and none of any other one."""
    kinds = [kind for kind in typing.get_args(Event) if encode(event).startswith(prefix_of(kind))]
    assert kinds == [type(event)]


def test_an_event_over_a_thousand_tiles_fits_the_limit() -> None:
    """3,000 workers that all moved apart still fit one event, with the largest numbers there are."""
    top = 2**63 - 1
    tiles = tuple(Tile(top, top, 2**32 - 1, 2**32, top - 1, top) for _ in range(3000))
    size = len(encode(Committed(top, top, 0, 1, top, "t", 2**31 - 1, tiles, top, top, 2**64 - 1)))
    assert size < EVENT_BYTES_MAX


if __name__ == "__main__":
    append_block(sys.argv[1])
