"""The context of an attempt: a handler reads the facts of its record there, and sends outputs through it.

Outputs sent through a context become visible in the transaction that commits the record. The end of the attempt closes
the context; sending later raises. A failed or timed-out attempt leaves nothing behind.
"""

from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from ...brokers.protocol import ConsumerRecord as SourceRecord
from ...brokers.protocol import Headers
from ...errors import ContextClosed


class _Valued(msgspec.Struct, frozen=True):
    """The positional argument of ``Record``; all others are keyword arguments."""

    value: Any


class Record(_Valued, frozen=True, kw_only=True):
    """A record to return from a handler.

    ``value`` None is a tombstone. ``key`` is the source record's by default (``UNSET``); None means no key. ``topic``
    is the handler's ``to=`` by default. ``timestamp`` is in ms since the epoch, and the source record's by default.
    """

    key: bytes | str | UnsetType | None = UNSET
    topic: str | None = None
    partition: int | None = None
    headers: Headers = ()
    timestamp: int | None = None


Output: TypeAlias = Record
"""The name of ``Record`` inside the package: there a record comes from a source."""


class Context:
    """One attempt at one record of ``topic`` and ``partition``. ``attempt`` counts from 1."""

    __slots__ = ("_closed", "_record", "_sent", "attempt", "partition", "topic")

    def __init__(self, topic: str, partition: int, record: SourceRecord, attempt: int) -> None:
        self.topic = topic
        self.partition = partition
        self.attempt = attempt
        self._record = record
        self._sent: list[Output] = []
        self._closed = False

    @property
    def key(self) -> bytes | None:
        """The record's key."""
        return self._record.key

    @property
    def offset(self) -> int:
        """The record's offset."""
        return self._record.offset

    @property
    def timestamp(self) -> int:
        """The record's timestamp in ms since the epoch."""
        return self._record.timestamp

    @property
    def headers(self) -> Headers:
        """The record's headers."""
        return tuple(self._record.headers)

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> None:
        """Send in the transaction that commits the context's record, to an existing topic or to a topic of ``sends=``;
        raises ContextClosed after the attempt has ended.
        """
        if self._closed:
            raise ContextClosed(
                f"the attempt at {self.topic}[{self.partition}]@{self.offset} has ended; nothing was sent to {topic!r}"
            )
        self._sent.append(
            Output(value, topic=topic, key=key, partition=partition, headers=tuple(headers), timestamp=timestamp)
        )

    def close(self) -> list[Output]:
        """End the attempt and return its outputs."""
        self._closed = True
        return self._sent
