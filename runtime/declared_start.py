"""From the users' ``start=`` to a ``Start``."""

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from ..errors import SettingsError
from ..offsets.starts import EARLIEST, LATEST
from .handlers.start import FROM_EARLIEST, Start

StartFrom: TypeAlias = str | datetime
"""``"earliest"``, ``"latest"``, a datetime with a time zone, or ``"group:NAME"``."""

GROUP = "group:"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ALLOWED = 'start= is "earliest", "latest", "group:NAME" or a datetime with a time zone'


def start_of(start: StartFrom, topic: str) -> Start:
    """The start of a topic; raises SettingsError."""
    if isinstance(start, datetime):
        return _at(start, topic)
    if start == EARLIEST:
        return FROM_EARLIEST
    if start == LATEST:
        return Start(LATEST)
    if isinstance(start, str) and start.startswith(GROUP) and start != GROUP:
        return Start(start, group=start.removeprefix(GROUP))
    hint = (
        "give it as datetime(2026, 1, 31, tzinfo=UTC)"
        if isinstance(start, str) and start[:1].isdigit()
        else ('to go on where a consumer group stands, write start="group:" and its name')
    )
    raise SettingsError(f"handler of topic {topic!r}: {ALLOWED}; seen {start!r}; {hint}")


def _at(moment: datetime, topic: str) -> Start:
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise SettingsError(
            f"handler of topic {topic!r}: {ALLOWED}; seen {moment!r}, which has none, so it is another moment on "
            "another machine; give it as datetime(…, tzinfo=UTC)"
        )
    if moment < EPOCH:
        raise SettingsError(
            f"handler of topic {topic!r}: {ALLOWED}, not before 1970; seen {moment!r}; for all records write "
            'start="earliest"'
        )
    timestamp_ms = -((EPOCH - moment) // timedelta(milliseconds=1))  # rounded up: timestamps of records are whole ms
    text = (EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds")
    return Start(text, timestamp_ms=timestamp_ms)
