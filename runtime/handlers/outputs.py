"""PURE. Turn the results and outputs of a handler into records for the broker: checked, encoded, with provenance.

Outputs are checked when the handler returns. A bad output fails its record, not the transaction.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, Final, TypeAlias

import msgspec

from ...brokers.partitioner import PartitionOfKey, partition_of_key, partition_without_key
from ...brokers.protocol import ConsumerRecord, Headers, Outgoing, TopicDescription
from ...errors import HandlerMisdeclared, OutputRefused, caused
from ...offsets.provenance import (
    ATTEMPTS_HEADER,
    DIGEST_MASK,
    ERROR_HEADER,
    HEADER,
    TIMESTAMP_HEADER,
    Origins,
    output_digest,
    place_seed,
)
from ..watch.failures import failure_text
from .context import Output
from .handler import Handler
from .record_result import RecordResult
from .sizes import RECORD_OVERHEAD_BYTES, bytes_of
from .values import Codec, JsonCodec, MsgpackCodec, is_pydantic

RECORD_FRAME_BYTES: Final = 256
"""An upper bound of a record's bytes in its batch beside key, value and headers."""

_OTHER_CASES: Final = (list, Output, CoroutineType)
_ARRAYS: Final = (tuple, set, frozenset)
"""Types that JSON writes as an array. A handler may return one only where its annotation says so: a tuple may be meant
as (topic, value). A NamedTuple is an ordinary type of values.
"""
_SOURCE_KEY: Final = msgspec.UNSET
_ORIGIN_BYTES: Final = RECORD_FRAME_BYTES + len(HEADER)
_OURS: Final = frozenset((HEADER, ERROR_HEADER, ATTEMPTS_HEADER, TIMESTAMP_HEADER))
"""keylanes' headers. An output made of a dead letter has none of the letter's, and a later letter gets its own."""
ERROR_BYTES_MAX: Final = 1_000


BuiltOne: TypeAlias = tuple[Outgoing, int, int]
"""An output, its digest, and the size of a ``RecordResult``."""


@dataclass(slots=True)
class Destination:
    """A topic that the application writes to.

    ``retention_ms``: how long a record stays, by its timestamp; None: for ever, or by the time of writing.
    ``partition_of``: the partition of a key. ``keeps_numbers``: a dead letter stays in the partition number of its
    record, as long as both topics have the same number of partitions.
    """

    partitions: int
    bytes_max: int
    is_compacted: bool
    retention_ms: int | None = None
    partition_of: PartitionOfKey = partition_of_key
    keeps_numbers: bool = True


class UnknownDestination(Exception):
    """The topic of an output is not in ``known`` yet: the caller looks the topic up and tries again."""

    def __init__(self, topic: Any) -> None:
        super().__init__(topic)
        self.topic = topic


def destination_of(description: TopicDescription, partition_of: PartitionOfKey | None = None) -> Destination:
    """The destination for a broker's description of a topic. ``partition_of``: the partition of a key, where the user
    declared a partitioner for the topic; else None.
    """
    config = description.config
    limit = int(config.get("max.message.bytes", 1_048_588))
    policy, retention_ms = config.get("cleanup.policy", ""), int(config.get("retention.ms", -1))
    by_record = "delete" in policy and config.get("message.timestamp.type") != "LogAppendTime"
    return Destination(
        partitions=description.partitions,
        bytes_max=limit,
        is_compacted="compact" in policy,
        retention_ms=retention_ms if by_record and retention_ms >= 0 else None,
        partition_of=partition_of or partition_of_key,
        keeps_numbers=partition_of is None,
    )


@dataclass(slots=True)
class SourcePlace:
    """A source partition. ``seed``: the common part of its outputs' digests. ``origins``: makes the provenance headers
    of its outputs.
    """

    topic: str
    partition: int
    seed: int
    origins: Origins


def place_of(topic: str, partition: int, app_id: bytes) -> SourcePlace:
    """The place for ``build`` and ``build_dead_letter``. ``app_id``: the application's id in the headers."""
    return SourcePlace(topic, partition, place_seed(topic, partition), Origins(app_id, topic, partition))


def outputs_returned(result: Any, handler: Handler) -> list[Output]:
    """A handler's result as outputs. Raises OutputRefused for a result without a topic, HandlerMisdeclared for a
    coroutine of a handler declared as a plain def.
    """
    if result is None:
        return []
    if isinstance(result, CoroutineType) and not handler.is_async:
        result.close()  # else Python warns of a coroutine that was never awaited
        raise HandlerMisdeclared(
            f"handler {handler.name} of topic {handler.topic!r} returned a coroutine, and nothing shows that it is "
            "async: declare the async def itself, write a lambda or a class as one, or put functools.wraps on its "
            "decorator"
        )
    items = result if isinstance(result, list) else [result]
    outputs = []
    for item in items:
        if item is None:
            continue
        if not handler.returns_arrays and type(item) in _ARRAYS:
            raise OutputRefused(
                f"the handler returned a {type(item).__name__}, which would be sent as one array; allowed are a value, "
                "a Record, and a list of these: return Record(value, topic=…) to name a topic, a list to send several, "
                f"or annotate it with -> {type(item).__name__}[…] to send an array"
            )
        output: Any = item if isinstance(item, Output) else Output(value=item)
        if output.topic is None and handler.to is None:
            raise OutputRefused(f"the handler returned {type(item).__name__}, but there is no to= to send it to")
        outputs.append(output)
    return outputs


def build_one(
    value: Any, record: ConsumerRecord, handler: Handler, place: SourcePlace, known: Mapping[str, Destination]
) -> BuiltOne | None:
    """The output that ``build`` would make of a value that is no ``Record``, for a record with a key: the usual case,
    at a third of the cost.

    None: another case, or an output that can't be sent. The caller then gets the result or the error from
    ``outputs_returned`` and ``build``.
    """
    topic, key, offset = handler.to, record.key, record.offset
    is_bytes = type(value) is bytes
    if topic is None or key is None or value is None:
        return None
    if not is_bytes and (isinstance(value, _OTHER_CASES) or type(value) in _ARRAYS):
        return None
    destination = known.get(topic)
    if destination is None:
        return None
    data = value if is_bytes and type(handler.codec) is JsonCodec else _encode(value, handler.codec, 0, 1)
    origin = place.origins.of(offset)
    size = len(key) + len(data or b"") + _ORIGIN_BYTES + len(origin)
    if size > destination.bytes_max:
        return None
    partition = 0 if destination.partitions == 1 else destination.partition_of(key, destination.partitions)
    output = Outgoing(
        topic=topic,
        partition=partition,
        key=key,
        value=data,
        given_headers=(),
        timestamp=_inherited_timestamp(record, handler),
        origin=origin,
    )
    of_record = RECORD_OVERHEAD_BYTES + len(key) + len(record.value or b"")  # ``bytes_of``, without a call
    return output, output_digest(place.seed, offset, 0, topic), of_record + size


def result_of(record: ConsumerRecord, output: Outgoing, seed: int) -> RecordResult:
    """The result of a record whose only output ``build_one`` made. ``seed``: the seed of the record's place."""
    size = bytes_of(record) + len(output.key or b"") + len(output.value or b"") + _ORIGIN_BYTES + len(output.origin)
    return RecordResult(
        record=record,
        outputs=(output,),
        dead=False,
        digest=output_digest(seed, record.offset, 0, output.topic),
        size=size,
    )


def build(
    outputs: Sequence[Output],
    record: ConsumerRecord,
    handler: Handler,
    place: SourcePlace,
    known: Mapping[str, Destination],
) -> RecordResult:
    """The records to write for a source record; raises OutputRefused, UnknownDestination."""
    n = len(outputs)
    built: list[Outgoing] = []
    digest, size = 0, bytes_of(record)  # the record stays in memory until its commit, as its outputs do
    output: Any  # its fields are as the user gave them: each is checked
    for i, output in enumerate(outputs):
        topic = output.topic or handler.to
        assert topic is not None, "outputs_returned() and send() name a topic"
        if topic not in known:
            raise UnknownDestination(topic)
        destination = known[topic]
        key = record.key if output.key is _SOURCE_KEY else _key_bytes(output.key, i, n)
        value = _encode(output.value, handler.codec, i, n)
        origin = place.origins.each(record.offset, i, n)
        headers = _without(_OURS, _headers(output.headers, i, n))
        bytes_now = _ORIGIN_BYTES + len(key or b"") + len(value or b"") + len(origin)
        bytes_now += sum(len(name) + len(data or b"") for name, data in headers)
        if bytes_now > destination.bytes_max:
            raise OutputRefused(
                f"output {i + 1} of {n} has {bytes_now} bytes with its frame; {topic!r} takes at most "
                f"{destination.bytes_max}"
            )
        if key is None and destination.is_compacted:
            raise OutputRefused(f"output {i + 1} of {n} has no key; {topic!r} is compacted and needs one")
        partition = _partition(output.partition, key, record, place, i, destination, topic)
        timestamp = (
            _inherited_timestamp(record, handler) if output.timestamp is None else _timestamp(output.timestamp, i, n)
        )
        built.append(
            Outgoing(
                topic=topic,
                partition=partition,
                key=key,
                value=value,
                given_headers=headers,
                timestamp=timestamp,
                origin=origin,
            )
        )
        digest += output_digest(place.seed, record.offset, i, topic)
        size += bytes_now
    return RecordResult(record=record, outputs=built, dead=False, digest=digest & DIGEST_MASK, size=size)


def build_sent(given: Output, topic: str, codec: Codec, destination: Destination, turn: int) -> tuple[Outgoing, int]:
    """A record sent outside of handlers, and the record's bytes with its frame. The record has no source record, and no
    provenance header.

    ``turn``: a counter by which records without a key take turns among the partitions. Raises OutputRefused.
    """
    output: Any = given  # its fields are as the user gave them: each is checked
    key, value = _key_bytes(output.key, 0, 1), _encode(output.value, codec, 0, 1)
    headers = _without((HEADER,), _headers(output.headers, 0, 1))
    size = RECORD_FRAME_BYTES + len(key or b"") + len(value or b"")
    size += sum(len(name) + len(data or b"") for name, data in headers)
    if size > destination.bytes_max:
        raise OutputRefused(
            f"the record has {size} bytes with its frame; {topic!r} takes at most {destination.bytes_max}"
        )
    if key is None and destination.is_compacted:
        raise OutputRefused(f"the record has no key; {topic!r} is compacted and needs one")
    if output.partition is not None:
        partition = _check_partition(output.partition, 0, destination, topic)
    elif key is None:
        partition = turn % destination.partitions
    else:
        partition = destination.partition_of(key, destination.partitions)
    timestamp = None if output.timestamp is None else _timestamp(output.timestamp, 0, 1)
    return Outgoing(
        topic=topic, partition=partition, key=key, value=value, given_headers=headers, timestamp=timestamp
    ), size


def build_dead_letter(
    record: ConsumerRecord,
    topic: str,
    destination: Destination,
    place: SourcePlace,
    error: BaseException,
    attempts: int,
    partitions: int,
) -> RecordResult:
    """The dead letter of a record: key, value and headers, with the cause, the number of attempts and the record's
    time. The letter gets the time of sending: by the time of an old record retention would delete the letter at once.

    ``partitions``: the number of partitions of the record's topic. Where the letters' topic has as many, a letter lies
    in the partition number of its record. A letter sent back from there reaches the state of its key.
    """
    cause = failure_text(error).encode()[:ERROR_BYTES_MAX]
    headers = (
        *_without(_OURS, record.headers),
        (ERROR_HEADER, cause),
        (ATTEMPTS_HEADER, str(attempts).encode()),
        *(((TIMESTAMP_HEADER, str(record.timestamp).encode()),) if record.timestamp >= 0 else ()),
    )
    origin = place.origins.each(record.offset, 0, 1)
    if destination.keeps_numbers and destination.partitions == partitions:
        partition = place.partition
    elif record.key is None:
        partition = partition_without_key(place.partition, record.offset, 0, destination.partitions)
    else:
        partition = destination.partition_of(record.key, destination.partitions)
    size = bytes_of(record)  # key and value are the record's own
    digest = output_digest(place.seed, record.offset, 0, topic)
    letter = Outgoing(
        topic=topic,
        partition=partition,
        key=record.key,
        value=record.value,
        given_headers=headers,
        timestamp=None,
        origin=origin,
    )
    return RecordResult(record=record, outputs=[letter], dead=True, digest=digest, size=size)


def _key_bytes(key: object, i: int, n: int) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return _text_bytes(key, "a key", i, n)
    raise OutputRefused(f"output {i + 1} of {n}: a key is bytes, str or None; seen {type(key).__name__}")


def _headers(headers: Any, i: int, n: int) -> Headers:
    """Check an output's headers; raises OutputRefused."""
    if not isinstance(headers, Iterable):
        raise OutputRefused(f"output {i + 1} of {n}: headers are a list of pairs; seen {_kind(headers)}: () says none")
    listed = tuple(headers)
    for header in listed:
        match header:
            case (str(name), bytes() | None):
                _text_bytes(name, "a header's name", i, n)
                continue
        raise OutputRefused(
            f"output {i + 1} of {n}: a header is a pair of str and bytes (or None); seen {_kind(header)}"
        )
    return listed


def _without(names: Container[str], headers: Headers) -> Headers:
    """Headers without ``names``: keylanes' headers of a source record are wrong for a record made of the source."""
    return tuple((name, data) for name, data in headers if name not in names)


def _text_bytes(text: str, what: str, i: int, n: int) -> bytes:
    """A text as UTF-8; raises OutputRefused for a text that UTF-8 can't write."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        seen = f"{len(text)} characters, of which number {error.start + 1} has no form in it"
        raise caused(OutputRefused(f"output {i + 1} of {n}: {what} is text that UTF-8 can write; seen {seen}"), error)


def _kind(given: object) -> str:
    """The types of a handler's data, for a message: a message never contains data."""
    kinds = ", ".join(type(part).__name__ for part in given) if isinstance(given, tuple) else ""
    return f"({kinds})" if kinds else type(given).__name__


def _inherited_timestamp(record: ConsumerRecord, handler: Handler) -> int | None:
    """The time of an output without a timestamp: the record's time, or the time of sending (None)."""
    timestamp = record.timestamp
    return timestamp if handler.keeps_time and timestamp >= 0 else None


def _timestamp(timestamp: object, i: int, n: int) -> int | None:
    """The time that an output names; below 0: the time of sending (None), for a record has no time below 0."""
    if type(timestamp) is not int or timestamp >= 1 << 63:
        raise OutputRefused(f"output {i + 1} of {n}: a timestamp is in ms since the epoch; seen {timestamp!r}")
    return timestamp if timestamp >= 0 else None


def _encode(value: Any, codec: Codec, i: int, n: int) -> bytes | None:
    if value is None:
        return None
    try:
        return codec.encode(value)
    except Exception as error:  # noqa: BLE001  # a codec may raise anything; it is the record's fault, not ours
        if hasattr(value, "__await__"):
            raise caused(_never_awaited(value, i, n), error)
        if is_pydantic(value) and isinstance(codec, JsonCodec | MsgpackCodec):
            kind = type(value).__name__
            text = f"a handler returned a {kind}: a model of pydantic needs a codec of its own: codec=, see "
            raise caused(HandlerMisdeclared(text + "docs/mistakes.md"), None)
        refused = OutputRefused(f"output {i + 1} of {n}: {type(value).__name__} can't be encoded: {error}")
        raise caused(refused, error)


def _never_awaited(value: Any, i: int, n: int) -> OutputRefused:
    """The error for a coroutine in the place of a value; closes the coroutine."""
    name = getattr(value, "__name__", "…")
    if hasattr(value, "close"):
        value.close()  # else Python warns later of a coroutine that was never awaited
    return OutputRefused(
        f"output {i + 1} of {n} is a {type(value).__name__}, seen {name}(…), which was called and not awaited; a value "
        f"is what it returns: await it, as in return await {name}(…)"
    )


def _check_partition(wanted: object, i: int, destination: Destination, topic: str) -> int:
    if type(wanted) is not int or not 0 <= wanted < destination.partitions:
        raise OutputRefused(
            f"output {i + 1}: {topic!r} has partitions 0 to {destination.partitions - 1}; seen {wanted!r}"
        )
    return wanted


def _partition(
    wanted: object,
    key: bytes | None,
    record: ConsumerRecord,
    place: SourcePlace,
    i: int,
    destination: Destination,
    topic: str,
) -> int:
    if wanted is not None:
        return _check_partition(wanted, i, destination, topic)
    if key is None:
        return partition_without_key(place.partition, record.offset, i, destination.partitions)
    return destination.partition_of(key, destination.partitions)
