"""PURE. The state of each point of a source partition: the owner, and whether the point may be granted anew.

    held      the owner may commit
    leaving   the owner was expelled and is not fenced yet: the owner may still commit
    unread    the owner is fenced, but the offset log was not read to its true end since: the edge may be too low
    free      the edge is final: the point was released in the log as read, or read after the fence, or never granted

Only free points may be granted. Neither the beginning of a release, nor a request, nor a passed deadline frees a point.
"""

from collections.abc import Collection, Mapping
from enum import Enum
from typing import NamedTuple

from ..keyrange.hashing import SPACE_END
from ..offsets.control import Control
from ..offsets.ledger import EpochPart, PartitionLedger, SourcePartition

NOTHING = PartitionLedger()
"""The fold of a place without an event in the offset log."""


class CellState(Enum):
    """The state of points."""

    HELD = "held"
    LEAVING = "leaving"
    UNREAD = "unread"
    FREE = "free"


class Cell(NamedTuple):
    """Points ``[first, end)`` with equal state. ``owner``: the incarnation of the last grant, 0 for none; ``epoch``:
    the epoch of the last grant, 0 for none.
    """

    first: int
    end: int
    owner: int
    epoch: int
    state: CellState


Read = Collection[tuple[SourcePartition, int]]
"""(place, epoch) pairs. For each pair the coordinator has read the offset log of the place up to an own append. The
append began after the coordinator knew that the owner at the epoch was fenced.
"""


def cells(
    control: Control, folds: Mapping[SourcePartition, PartitionLedger], place: SourcePartition, read: Read
) -> list[Cell]:
    """The cells of a started source partition, in order of points."""
    fold = folds.get(place, NOTHING)
    found: list[Cell] = []
    for first, end, epoch in fold.newest.all_pieces(0, SPACE_END):
        if epoch is None:
            found.append(Cell(first=first, end=end, owner=0, epoch=0, state=CellState.FREE))
            continue
        part = fold.parts[epoch]
        for a, b, is_released in part.released.all_pieces(first, end):
            state = (
                CellState.FREE if is_released else _state_of_points(control, part.incarnation, (place, epoch) in read)
            )
            found.append(Cell(first=a, end=b, owner=part.incarnation, epoch=epoch, state=state))
    return found


def _state_of_points(control: Control, owner: int, is_read: bool) -> CellState:
    """The state of points that their owner has not released."""
    if not control.is_expelled(owner):
        return CellState.HELD
    if not control.is_fenced(owner):
        return CellState.LEAVING
    return CellState.FREE if is_read else CellState.UNREAD


def is_taken_up(part: EpochPart, first: int, end: int) -> bool:
    """Whether the owner at an epoch has cut all of the points into workers."""
    return sum(b - a for a, b, _ in part.workers.pieces(first, end)) == end - first
