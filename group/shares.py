"""PURE. The problem of the solver in plain values: members, points with their load, and the shifts of points.

Loads are microseconds of processor time a second; *fullness* is load over capacity.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from ..offsets.ledger import SourcePartition

NOBODY: Final = 0
"""The owner or the target of points that belong to no incarnation."""
UNIT_US: Final = 20_000
"""The weight of a whole partition beside its measured load. Because of this weight an idle group is balanced by counts,
and the noise of small loads moves nothing.
"""
READ_NS: Final = 1_800
"""The cost of reading a record of a partition. A member with points of the partition pays for every record, also for
records of other members' points.
"""
MOVE_US: Final = 1_000
"""Processor time of a move at the target."""
STATE_US: Final = 1_000
"""Further processor time of a move with state, whatever the size of the state."""
STATE_BYTES_A_US: Final = 20
"""How many bytes of state the target copies in a microsecond."""


@dataclass(frozen=True, slots=True)
class PlanMember:
    """A member that may own something. ``capacity``: relative to 1.0; ``topics``: the topics that the member can
    handle.
    """

    incarnation: int
    capacity: float
    topics: frozenset[str]


class Share(NamedTuple):
    """Points of a source partition with the same owner (``NOBODY``: none).

    ``busy_us_per_s``: None if not measured; ``records_per_s``: the rate of records; ``backlog``: waiting records.
    ``slices``: the cells of the declared cut, where the share may be parted, as (first point, busy_us_per_s); () if the
    share may not be parted. ``is_fixed``: the share stays with its owner, as a whole.
    """

    topic: str
    partition: int
    first: int
    end: int
    owner: int
    has_state: bool = False
    busy_us_per_s: int | None = None
    records_per_s: int = 0
    backlog: int = 0
    state_bytes: int = 0
    slices: tuple[tuple[int, int], ...] = ()
    is_fixed: bool = False

    @property
    def topic_partition(self) -> SourcePartition:
        """The source partition of the share."""
        return self.topic, self.partition

    @property
    def points(self) -> int:
        """The number of points."""
        return self.end - self.first

    @property
    def cost_us(self) -> int:
        """The processor time of a move at the target: copying the state and reading the backlog."""
        state_us = STATE_US + self.state_bytes // STATE_BYTES_A_US if self.has_state else 0
        return MOVE_US + state_us + self.backlog * READ_NS // 1_000


class Shift(NamedTuple):
    """A move of points ``[first, end)`` of a share to a member. ``gain``: the relief of the fuller member as a fraction
    of the mean fullness; 0.0 for points without an owner.
    """

    share: Share
    first: int
    end: int
    target: int
    gain: float
    cost_us: int
