"""The points of "how cost grows": on each axis one thing becomes larger, all else stays as it is.

Sizes are for runs of some seconds. On the axis of record sizes the bytes of all records together are bounded, too. On
that of drift one record of a key of its own gets stuck so far before the end that the front is ``x`` offsets ahead of
it when all others are through; 0 is the same run without it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PLAIN, COUNT = "no-op", "count"
"""The handlers: one that does nothing, and one that counts the records of each key in its state."""
KEYS, PARTITIONS, WORKERS, VALUE_BYTES = 10_000, 1, 1_000, 100
WORKERS_OF_MANY_PARTITIONS = 256
"""For each partition of that axis: at 64 as many together as one partition may have."""
TOPIC_BYTES_MAX = 1_500_000_000
DRIFT_MORE = 100_000
"""Records before the one that gets stuck."""
WINDOW_END_SHARE = 0.98
"""A drift is measured before the last records: among them are the stuck key's neighbours, who are served late."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run: ``x`` on its axis, and what it asks of keylanes and of the source."""

    axis: str
    handler: str
    x: int
    records: int
    keys: int = KEYS
    partitions: int = PARTITIONS
    workers: int = WORKERS
    value_bytes: int = VALUE_BYTES
    distribution: str = "uniform"
    window_records: int = 0

    @property
    def stuck(self) -> int:
        """The place of the record that gets stuck; -1: none does."""
        return self.records - 1 - self.x if self.axis == "drift" and self.x else -1

    @property
    def window(self) -> tuple[int, int]:
        """The throughput of a drift is that from one number of handled records to the other."""
        end = int(self.records * WINDOW_END_SHARE)
        return max(end - self.window_records, 1), end

    @property
    def source(self) -> dict[str, Any]:
        """The loader's order."""
        names = ("records", "keys", "partitions", "value_bytes", "distribution")
        return {**{name: getattr(self, name) for name in names}, "lone": self.stuck}

    @property
    def topic(self) -> str:
        """Points that ask for the same records share it."""
        return "grow-" + "-".join(str(value) for value in self.source.values())

    def __str__(self) -> str:
        return f"{self.axis} {self.x:,}, {self.handler}"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """``full`` and ``quick`` are its points."""

    name: str
    title: str
    unit: str
    full: tuple[int, ...]
    quick: tuple[int, ...]
    handlers: tuple[str, ...] = (PLAIN, COUNT)

    def xs(self, size: str) -> tuple[int, ...]:
        """The points of a size."""
        return self.full if size == "full" else self.quick


AXES = (
    Axis(
        name="workers",
        title="workers of one partition",
        unit="workers",
        full=(1, 4, 16, 64, 256, 1_024, 4_096, 16_384),
        quick=(1, 64, 1_024, 16_384),
    ),
    Axis(
        name="keys",
        title="distinct keys",
        unit="keys",
        full=(10, 100, 1_000, 10_000, 100_000, 1_000_000),
        quick=(10, 1_000, 100_000),
    ),
    Axis(
        name="partitions",
        title=f"partitions, {WORKERS_OF_MANY_PARTITIONS} workers each",
        unit="partitions",
        full=(1, 2, 4, 8, 16, 32, 64),
        quick=(1, 8, 64),
    ),
    Axis(
        name="size",
        title="size of a value",
        unit="bytes",
        full=(10, 100, 1_000, 10_000, 100_000, 1_000_000),
        quick=(10, 1_000, 100_000, 1_000_000),
        handlers=(PLAIN,),
    ),
    Axis(
        name="drift",
        title="one key is stuck, so many offsets behind the front",
        unit="offsets",
        full=(0, 10_000, 100_000, 1_000_000, 10_000_000),
        quick=(0, 10_000, 100_000),
        handlers=(PLAIN,),
    ),
)

_RECORDS = {
    "full": {PLAIN: 2_000_000, COUNT: 1_000_000, "size": 1_500_000, "drift": 2_000_000, "window": 500_000},
    "quick": {PLAIN: 250_000, COUNT: 125_000, "size": 125_000, "drift": 250_000, "window": 100_000},
}
_TOPIC_BYTES = {"full": TOPIC_BYTES_MAX, "quick": TOPIC_BYTES_MAX // 5}


def points(axis: Axis, size: str) -> Iterator[Point]:
    """All of an axis."""
    for x in axis.xs(size):
        for handler in axis.handlers:
            yield _POINT[axis.name](x, handler, size)


def _workers(x: int, handler: str, size: str) -> Point:
    return Point(axis="workers", handler=handler, x=x, records=_RECORDS[size][handler], workers=x)


def _keys(x: int, handler: str, size: str) -> Point:
    records = max(_RECORDS[size][handler], x)
    return Point(axis="keys", handler=handler, x=x, records=records, keys=x, distribution="even")


def _partitions(x: int, handler: str, size: str) -> Point:
    records, workers = _RECORDS[size][handler], WORKERS_OF_MANY_PARTITIONS
    return Point(axis="partitions", handler=handler, x=x, records=records, partitions=x, workers=workers)


def _size(x: int, handler: str, size: str) -> Point:
    records = min(_RECORDS[size]["size"], _TOPIC_BYTES[size] // x)
    return Point(axis="size", handler=handler, x=x, records=records, value_bytes=x)


def _drift(x: int, handler: str, size: str) -> Point:
    records, window = max(_RECORDS[size]["drift"], x + DRIFT_MORE), _RECORDS[size]["window"]
    return Point(axis="drift", handler=handler, x=x, records=records, keys=KEYS + 1, window_records=window)


_POINT = {"workers": _workers, "keys": _keys, "partitions": _partitions, "size": _size, "drift": _drift}
