"""PURE. How it stands with each point of a source partition: who owns it, and whether it may be granted anew.

    held      somebody owns it, who may commit
    leaving   its owner was expelled and is not fenced yet: it may still commit
    unread    its owner is fenced, and the offset log was not read to its true end since: the edge may be too low
    free      the edge is known and stays: it was released in what was read, or read after its owner was fenced, or it
              was never granted

Only what is free may be granted. That a release *began*, or was asked for, or that its deadline is over, frees nothing.
"""

from collections.abc import Collection, Mapping
from enum import Enum
from typing import NamedTuple

from ..keyrange.hashing import SPACE_END
from ..offsets.control import Control
from ..offsets.ledger import EpochPart, PartitionLedger, Place

NOTHING = PartitionLedger()


class CellState(Enum):
    """How it stands with points."""

    HELD = "held"
    LEAVING = "leaving"
    UNREAD = "unread"
    FREE = "free"


class Cell(NamedTuple):
    """Points ``[first, end)`` of which the same is true. ``owner``: the incarnation that was granted them last, 0 for
    none; ``epoch``: at which, 0 for none.
    """

    first: int
    end: int
    owner: int
    epoch: int
    standing: CellState


Read = Collection[tuple[Place, int]]
"""The (place, epoch) whose log was read to an own append that began after the owner at that epoch was known to be
fenced."""


def cells(control: Control, folds: Mapping[Place, PartitionLedger], place: Place, read: Read) -> list[Cell]:
    """All points of a source partition that was started, in order."""
    fold = folds.get(place, NOTHING)
    found: list[Cell] = []
    for first, end, epoch in fold.newest.all_pieces(0, SPACE_END):
        if epoch is None:
            found.append(Cell(first, end, 0, 0, CellState.FREE))
            continue
        part = fold.parts[epoch]
        for a, b, is_released in part.released.all_pieces(first, end):
            standing = (
                CellState.FREE if is_released else _state_of_points(control, part.incarnation, (place, epoch) in read)
            )
            found.append(Cell(a, b, part.incarnation, epoch, standing))
    return found


def _state_of_points(control: Control, owner: int, is_read: bool) -> CellState:
    if not control.is_expelled(owner):
        return CellState.HELD
    if not control.is_fenced(owner):
        return CellState.LEAVING
    return CellState.FREE if is_read else CellState.UNREAD


def is_taken_up(part: EpochPart, first: int, end: int) -> bool:
    """Whether the owner at an epoch has cut all of these points into workers."""
    return sum(b - a for a, b, _ in part.workers.pieces(first, end)) == end - first
