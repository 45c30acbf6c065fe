"""LOG OPENED, the first event of each partition of the offset log, as records.

Marks are made of the same event: a mark is aborted, and if it ever were not, a second opening counts nowhere.
"""

from collections.abc import Iterable
from typing import Final

from ...brokers.protocol import Outgoing
from ...offsets.codec import encode
from ...offsets.decide import decide_opening
from .reader import LogReader

OPENS: Final = 0
"""The number of the transaction that opens the offset log: of no generation."""


def opening_records(logs: LogReader, log_partitions: Iterable[int], incarnation: int) -> list[Outgoing]:
    """One for each of these partitions of the offset log, in the name of an incarnation."""
    records = []
    for log_partition in log_partitions:
        event = decide_opening(logs.app, logs.log_partitions, log_partition, incarnation, OPENS)
        records.append(Outgoing(*logs.offsets(log_partition), None, encode(event)))
    return records
