"""The start of each source partition: decided once for each, written in its event, and never changed.

A partition that is added to a topic later is read from its first record, whatever the start of the topic. Otherwise
records from before the application noticed the partition would be skipped. A partition counts as added by the number of
partitions that its topic had at the start: a start that a crash cut short does not count as growth.
"""

from collections.abc import Mapping
from typing import Final

from .control import Control

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
ADDED: Final = "added"
"""The start of a partition that came later, in its event."""


class StartChanged(ValueError):
    """A topic has another start in the application than in the control log."""


def is_added(control: Control, topic: str, partition: int) -> bool:
    """Whether a partition without a start has come to its topic since the start of the topic."""
    counts = [event.partitions for place, event in control.start_events.items() if place[0] == topic]
    return bool(counts) and partition >= max(counts)


def check_starts(control: Control, wanted: Mapping[str, str]) -> None:
    """Raises StartChanged for a topic that was started from another start than ``wanted``, by topic."""
    for (topic, partition), event in sorted(control.start_events.items()):
        now = wanted.get(topic, event.start)
        if event.start not in (now, ADDED):
            raise StartChanged(
                f"{topic} was started from {event.start!r} (partition {partition} at offset {event.offset}); start= is "
                f"{now!r} now. It is decided once, at the first start, and the offsets that were committed since count "
                f"from there. Write start={event.start!r} again to go on where the application stands, or start under "
                f"a new application name to begin from {now!r}."
            )
