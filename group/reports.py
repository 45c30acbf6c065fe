"""PURE. The bands whose load a member tells now, and the points that a report names.

- A member tells a band if a value has changed by more than a tenth since the last report: busy time, records, backlog,
  or bytes of state. A member also tells a band if more than a twentieth of its busy time has moved from one side of
  some point to the other. Small changes count as none.
- A member tells all bands when a new listener appears, and again in the next interval, because the listener may have
  begun a moment later. Every ``ALL_EVERY`` intervals all bands are told, to replace lost reports.
- All bands together name few points: light neighbours are melted into the heaviest (keyrange/melting.py).
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from ..keyrange.melting import melt_costs
from ..offsets.signals import BandLoad, Load

ALL_EVERY: Final = 15
"""All bands are told once in so many intervals."""
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

    def bands_due(self, bands: Iterable[BandLoad], *, is_new: bool) -> list[BandLoad]:
        """The bands to tell in this interval. ``is_new``: a new listener has appeared."""
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
    """Whether the load of a band has changed by enough to be told."""
    values = zip(_values(before), _values(now), LITTLE, strict=True)
    if any(10 * abs(a - b) > max(a, b) and abs(a - b) > little for a, b, little in values):
        return True
    differences: dict[int, int] = dict(now.points)
    for point, busy_us in before.points:
        differences[point] = differences.get(point, 0) - busy_us
    below = accumulate(difference for _, difference in sorted(differences.items()))
    most = max(map(abs, below), default=0)  # the most busy time that has crossed any one point
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
