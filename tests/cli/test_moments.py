"""Moments as people write and read them."""

import pytest

from keylanes import SettingsError
from keylanes.cli.moments import moment_ms, optional_ms, seconds, written

from ..tiers.marks import tier

pytestmark = tier("check")

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31T13:00:00.250+01:00", 1_769_860_800_250),
        ("-15m", NOW_MS - 900_000),
        ("-30s", NOW_MS - 30_000),
        ("-2h", NOW_MS - 7_200_000),
        ("-7d", NOW_MS - 604_800_000),
        ("-999999999d", 0),
    ],
)
def test_what_is_a_moment(given: str, ms: int) -> None:
    """ISO 8601 with a zone, or so long ago."""
    assert moment_ms("--at", given, NOW_MS) == optional_ms("--at", given, NOW_MS) == ms
    assert optional_ms("--at", None, NOW_MS) is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("2026-01-31T12:00:00", "has no time zone"),
        ("noon", "is no moment"),
        ("-15", "is no moment"),
        ("15m", "is no moment"),
        ("-1.5h", "is no moment"),
        ("", "is no moment"),
        ("2026-02-31T12:00:00Z", "is no moment"),
    ],
)
def test_what_is_none(given: str, why: str) -> None:
    """The option, what was seen, and what is allowed."""
    with pytest.raises(SettingsError, match=rf"^--since: '{given}' {why}; allowed is 2026-.*-15m") as caught:
        moment_ms("--since", given, NOW_MS)
    assert caught.value.exit_code == 2


def test_how_moments_and_durations_are_written() -> None:
    """A moment can be given again as it was written."""
    assert written(1_769_860_800_250) == "2026-01-31T12:00:00.250Z"
    assert moment_ms("--at", written(NOW_MS + 7), NOW_MS) == NOW_MS + 7
    durations = (0, 42, 9_999, 12_340, -3, 90_000, 3 * 3_600_000, 60 * 3_600_000)
    assert [seconds(ms) for ms in durations] == [
        *("0.000 s", "0.042 s", "9.999 s", "12.3 s", "-0.003 s", "1.5 min", "3.0 h", "2.5 d")
    ]
