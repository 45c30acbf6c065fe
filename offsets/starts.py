"""Where source partitions are started from: decided once for each, written in its event, and never changed.

A partition that is added to a topic later is read from its first record, whatever the topic was started from: what was
written to it before it was noticed would be skipped otherwise. Whether a partition was added is told by the number of
partitions that its topic had when it was started: a start that a crash cut short is not taken for a growth.
"""

from collections.abc import Mapping
from typing import Final

from .control import Control

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
ADDED: Final = "added"
"""What a partition that came later is started from, in its event."""


class StartChanged(ValueError):
    """A topic is to be started from somewhere else than it was."""


def is_added(control: Control, topic: str, partition: int) -> bool:
    """Whether a partition that was not started yet has come to its topic since that was started."""
    counts = [event.partitions for place, event in control.begun.items() if place[0] == topic]
    return bool(counts) and partition >= max(counts)


def check_starts(control: Control, wanted: Mapping[str, str]) -> None:
    """Raises StartChanged for a topic that was started from something else than what is wanted now, by topic."""
    for (topic, partition), event in sorted(control.begun.items()):
        now = wanted.get(topic, event.start)
        if event.start not in (now, ADDED):
            raise StartChanged(
                f"{topic} was started from {event.start!r} (partition {partition} at offset {event.offset}); start= is "
                f"{now!r} now. It is decided once, at the first start, and the offsets that were committed since count "
                f"from there. Write start={event.start!r} again to go on where the application stands, or start under "
                f"a new application name to begin from {now!r}."
            )
