"""PURE. Where the control log has the grants that count, so that only those are read again that a start needs.

The control log is read before the offset log, whose snapshots hold most of what was ever granted. What they do not hold
has to be folded into them: with one pair of numbers for each grant it is found again, and no event has to be kept.
"""

from array import array
from collections.abc import Collection, Mapping

from ...offsets.control_events import RangesGranted
from ...offsets.ledger import PartitionLedger, Place


class GrantTable:
    """The grants of one application, 16 bytes each."""

    def __init__(self) -> None:
        self._by_place: dict[Place, array[int]] = {}

    def add(self, grant: RangesGranted, position: int) -> None:
        """A grant that counts, in the order of the log."""
        pairs = self._by_place.setdefault((grant.topic, grant.partition), array("q"))
        pairs.extend((grant.epoch, position))

    def places(self) -> Collection[Place]:
        """Of which something was ever granted."""
        return self._by_place.keys()

    def lacking(self, folds: Mapping[Place, PartitionLedger]) -> set[int]:
        """The positions of the grants that these folds may not hold: of their newest epochs, and of later ones."""
        found: set[int] = set()
        for place, pairs in self._by_place.items():
            newest = folds[place].epoch_newest if place in folds else 0
            found |= {pairs[i + 1] for i in range(0, len(pairs), 2) if pairs[i] >= newest}
        return found
