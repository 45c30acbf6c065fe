"""Events to bytes and back. A record of our logs holds one event: msgpack, an array whose first item is the tag.

An event of an unknown kind or version is refused with a clear error, never skipped: a reader that skips unknown events
comes to another ledger than its peers. The tags of events from before the first release are known, and refused with
an error of their own.
"""

from collections.abc import Collection
from typing import Final, get_args

import msgspec

from .event_values import LogEvent
from .events import Event
from .signals import Signal

EVENT_BYTES_MAX = 256 * 1024
"""The largest event in bytes. A larger event is written as several events of one transaction."""
TAGS_BEFORE_RELEASE: Final = frozenset(
    {
        "coordinator_elected/1",
        "member_expelled/1",
        "member_fenced/1",
        "member_joined/1",
        "partition_started/1",
        "partition_started/2",
        "range_released/1",
        "ranges_granted/1",
        "snapshot_taken/1",
        "snapshot_taken/2",
        "source_identified/1",
        "state_changed/1",
        "store_declared/1",
    }
)
"""Tags of events that were written before the first release. A log with such a tag is refused."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
_signals: msgspec.msgpack.Decoder[Signal] = msgspec.msgpack.Decoder(Signal)
_untyped = msgspec.msgpack.Decoder()

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of msgspec for unfit bytes: malformed or of other types, text that is no UTF-8, nested too deep."""

_KINDS = {kind.__struct_config__.tag for kind in get_args(Event)}
_SIGNAL_KINDS = {kind.__struct_config__.tag for kind in get_args(Signal)}


class EventError(ValueError):
    """The bytes are no event of this version. Stop reading: the reader would judge later events wrongly."""


class SignalError(ValueError):
    """The bytes are no signal of this version. The reader may pass over the record: a signal is no fact."""


def encode(event: Event | Signal) -> bytes:
    """The bytes of an event, or of a signal."""
    return _encoder.encode(event)


def decode(data: bytes) -> Event:
    """The event in the bytes; raises EventError with the kind seen when the event is unknown or damaged."""
    try:
        return _decoder.decode(data)
    except _UNREADABLE as error:
        raise EventError(_explain(data, error, "an event", _KINDS)) from None


def prefix_of(kind: type[LogEvent]) -> bytes:
    """The first bytes of all events of a kind, and of no others, for a reader that passes over the kind undecoded: an
    array of fewer than 16 items with a text of fewer than 32 bytes in front.
    """
    tag = str(kind.__struct_config__.tag).encode()
    return bytes((0x90 | (len(kind.__struct_fields__) + 1), 0xA0 | len(tag))) + tag


def decode_signal(data: bytes) -> Signal:
    """The signal in the bytes; raises SignalError with the kind seen when the signal is unknown or damaged."""
    try:
        return _signals.decode(data)
    except _UNREADABLE as error:
        raise SignalError(_explain(data, error, "a signal", _SIGNAL_KINDS)) from None


def _explain(data: bytes, error: Exception, what: str, kinds: Collection[object]) -> str:
    try:
        untyped = _untyped.decode(data)
    except _UNREADABLE:
        return f"{len(data)} bytes are no msgpack: {error}"
    tag = untyped[0] if isinstance(untyped, list) and untyped and isinstance(untyped[0], str) else None
    name = what.partition(" ")[2]
    if tag is None:
        return f"no {name}: {what} is an array that starts with its kind; seen {type(untyped).__name__}"
    if tag in kinds:
        return f"damaged {name} of kind {tag}: {error}"
    if tag in TAGS_BEFORE_RELEASE:
        return (
            f"an event of kind {tag} was written before the first release, and such logs are read no more. Start under "
            "a new application name"
        )
    kind = tag.rpartition("/")[0]
    known = sorted(k for k in map(str, kinds) if k.rpartition("/")[0] == kind)
    if known:
        return f"unknown version of {what}: seen {tag!r}, known {', '.join(known)}; a newer keylanes wrote it"
    return f"unknown kind of {name}: seen {tag!r}; a newer keylanes wrote it, or the topic is not a log of ours"
