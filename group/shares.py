"""PURE. The problem of who shall own what, in plain values: members, points with their load, and what of them moves.

Loads are microseconds of processor time a second; *fullness* is load over capacity.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from ..offsets.ledger import Place

NOBODY: Final = 0
UNIT_US: Final = 20_000
"""What a whole partition counts beside its measured load: so an idle group is shared out by counts, and the noise of
small loads moves nothing."""
READ_NS: Final = 1_800
"""What a member pays for each record of a partition of which it owns something, also for those of others."""
MOVE_US: Final = 1_000
STATE_US: Final = 1_000
"""Of processor time that a move takes where it goes, and so much more with state of any size."""
STATE_BYTES_A_US: Final = 20


@dataclass(frozen=True, slots=True)
class Taker:
    """A member that may own something. ``capacity``: relative to 1.0; ``topics``: that it can handle."""

    incarnation: int
    capacity: float
    topics: frozenset[str]


class Share(NamedTuple):
    """Points of a source partition that have one owner (``NOBODY``: none).

    ``busy_us_per_s``: None where it was not measured; ``records_per_s`` go there, ``backlog`` of them wait. ``cells``:
    where it may be parted, as (first point, busy_us_per_s) of each cell of the declared cut; () where it may not.
    ``is_fixed``: it stays with its owner, as a whole.
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
    cells: tuple[tuple[int, int], ...] = ()
    is_fixed: bool = False

    @property
    def place(self) -> Place:
        """Its source partition."""
        return self.topic, self.partition

    @property
    def points(self) -> int:
        """How many there are."""
        return self.end - self.first

    @property
    def cost_us(self) -> int:
        """Of processor time where it goes: to copy its state, and to read what waits."""
        state_us = STATE_US + self.state_bytes // STATE_BYTES_A_US if self.has_state else 0
        return MOVE_US + state_us + self.backlog * READ_NS // 1_000


class Shift(NamedTuple):
    """Points ``[first, end)`` of a share are to go to a member. ``gain``: by how much that relieves the fuller one, as
    a part of the mean fullness; 0.0 where nobody had them.
    """

    share: Share
    first: int
    end: int
    target: int
    gain: float
    cost_us: int
