"""Moments and durations in the words of people: parsed from options, and written."""

import re
from datetime import UTC, datetime
from typing import Final

from ..errors import SettingsError

UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
ALLOWED: Final = "2026-01-31T12:00:00Z, 2026-01-31T13:00:00+01:00, or so long ago: -30s, -15m, -2h, -7d"
MOMENT: Final = "ISO 8601 with a zone, e.g. 2026-01-31T12:00:00Z, or so long ago, e.g. -15m (s, m, h, d)"
"""For the help of an option."""


def moment_ms(option: str, given: str, now_ms: int) -> int:
    """A moment in ms since the epoch, from the value of an option. Raises SettingsError."""
    ago = re.fullmatch(r"-(\d{1,9})([smhd])", given)
    if ago is not None:
        return max(0, now_ms - int(ago[1]) * UNITS_MS[ago[2]])
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise SettingsError(f"{option}: {given!r} is no moment; allowed is {ALLOWED}") from None
    if moment.tzinfo is None:
        raise SettingsError(f"{option}: {given!r} has no time zone; allowed is {ALLOWED}")
    return int(moment.timestamp() * 1000)


def optional_ms(option: str, given: str | None, now_ms: int) -> int | None:
    """As ``moment_ms``, of an option that may be left out."""
    return None if given is None else moment_ms(option, given, now_ms)


def written(ms: int) -> str:
    """A moment in UTC, in a form for programs."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(ms: int) -> str:
    """A duration for people: ``0.120 s``, ``12.0 s``, ``15 min``, ``3.2 h``, ``2.5 d``."""
    size = abs(ms)
    if size < UNITS_MS["m"]:
        return f"{ms / 1000:.{3 if size < 10_000 else 1}f} s"
    if size < UNITS_MS["h"]:
        return f"{ms / UNITS_MS['m']:.1f} min"
    return f"{ms / UNITS_MS['h']:.1f} h" if size < 2 * UNITS_MS["d"] else f"{ms / UNITS_MS['d']:.1f} d"
