"""PURE. The bands whose load a member tells now, and the number of points.

- A member tells changes of more than a tenth since the last report: busy time, records, backlog, bytes of state. A
  member also tells a band with more than a twentieth of the time moved across some point. Small values count as equal.
- A member tells all bands when a new listener appears, and again in the next interval, because the listener may have
  begun a moment later. Every ``ALL_EVERY`` intervals all bands are told, to replace lost reports.
- All bands together have few points: light neighbours are melted into the heaviest (keyrange/melting.py).
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from ..keyrange.melting import melt_costs
from ..offsets.signals import BandLoad, Load

ALL_EVERY: Final = 15
POINTS_MAX: Final = 256
"""A point with more than 1/``POINTS_MAX`` of the time of all bands is told separately."""
BANDS_MAX: Final = 500
"""The most bands in one signal."""
LITTLE: Final = (10_000, 20, 100, 1 << 20)
"""Smaller changes count as none: busy µs and records of an interval, backlog, bytes of state."""


class Reports:
    """The reports that one member has sent."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, int, int, int, int], BandLoad] = {}
        self._count = 0
        self._is_told_again = False

    def due(self, bands: Iterable[BandLoad], *, is_new: bool) -> list[BandLoad]:
        """The bands to tell now. ``is_new``: a new listener has appeared."""
        self._count = 0 if is_new or self._is_told_again else (self._count + 1) % ALL_EVERY
        self._is_told_again = is_new
        now = {_key(band): band for band in fewer_points(list(bands))}
        due = [
            band
            for key, band in now.items()
            if not self._count or (before := self._told.get(key)) is None or has_changed(before, band)
        ]
        self._told = {key: band for key, band in self._told.items() if key in now} | {_key(band): band for band in due}
        return due


def loads_of(incarnation: int, interval_ms: int, bands: Sequence[BandLoad]) -> list[Load]:
    """The signals with the loads of the bands."""
    parts = [tuple(bands[i : i + BANDS_MAX]) for i in range(0, len(bands), BANDS_MAX)]
    return [Load(incarnation, interval_ms, part) for part in parts]


def has_changed(before: BandLoad, now: BandLoad) -> bool:
    """Whether the load of a band has changed since the last report."""
    values = zip(_values(before), _values(now), LITTLE, strict=True)
    if any(10 * abs(a - b) > max(a, b) and abs(a - b) > little for a, b, little in values):
        return True
    aside: dict[int, int] = dict(now.points)
    for point, busy_us in before.points:
        aside[point] = aside.get(point, 0) - busy_us
    most = max((abs(below) for below in accumulate(cost for _, cost in sorted(aside.items()))), default=0)
    return 20 * most > max(before.busy_us, now.busy_us) and most > LITTLE[0]


def fewer_points(bands: Sequence[BandLoad]) -> list[BandLoad]:
    """The bands, with the points of all bands melted down to few."""
    total = sum(band.busy_us for band in bands)
    return [
        msgspec.structs.replace(
            band, points=tuple(melt_costs(dict(band.points), max(1, POINTS_MAX * band.busy_us // max(1, total))))
        )
        if band.points
        else band
        for band in bands
    ]


def _key(band: BandLoad) -> tuple[str, int, int, int, int]:
    return band.topic, band.partition, band.first, band.end, band.epoch


def _values(band: BandLoad) -> tuple[int, int, int, int]:
    return band.busy_us, band.records, band.backlog, band.state_bytes
