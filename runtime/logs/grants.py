"""PURE. The positions of the grants that count in the control log: a start reads only the needed grants again.

The control log is read before the offset log. The snapshots of the offset log contain most grants, and the missing
grants have to be folded in. A pair of numbers for each grant is enough to find the grant again: no event is stored.
"""

from array import array
from collections.abc import Collection, Mapping

from ...offsets.control_events import RangesGranted
from ...offsets.ledger import PartitionLedger, SourcePartition


class GrantTable:
    """The grants of an application, 16 bytes each."""

    def __init__(self) -> None:
        self._by_place: dict[SourcePartition, array[int]] = {}
        """By source partition: epoch and position of the first grant, epoch and position of the second grant, …"""

    def add(self, grant: RangesGranted, position: int) -> None:
        """Add a grant that counts; callers add in the order of the log."""
        pairs = self._by_place.setdefault(grant.topic_partition, array("q"))
        pairs.extend((grant.epoch, position))

    def places(self) -> Collection[SourcePartition]:
        """The source partitions with any grant."""
        return self._by_place.keys()

    def grants_missing(self, folds: Mapping[SourcePartition, PartitionLedger]) -> set[int]:
        """The positions of the grants that may be missing in ``folds``. A fold may lack grants of its newest epoch, and
        lacks all grants of later epochs.
        """
        found: set[int] = set()
        for place, pairs in self._by_place.items():
            newest = folds[place].epoch_newest if place in folds else 0
            found |= {pairs[i + 1] for i in range(0, len(pairs), 2) if pairs[i] >= newest}
        return found
