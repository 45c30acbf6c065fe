"""PURE. Points without a working owner, and the names for which the points wait, as the coordinator tells them.

Points of a partition lack a working owner in four cases: for a moment, between release and grant; between the
expulsion of the owner and the next grant; while no member can handle the topic; and, with state, while the points wait
for the name of a gone member (copies.py).
"""

from collections import defaultdict
from typing import Final, NamedTuple

from ..keyrange.hashing import SPACE_END
from ..offsets.ledger import SourcePartition
from .cells import CellState
from .view import View

SHOWN_MAX: Final = 8
"""The most partitions named in a line."""


class Unowned(NamedTuple):
    """The points of a place without a working owner. ``share``: the fraction of the place's points, above 0; ``edge``:
    the least edge of the points.
    """

    place: SourcePartition
    share: float
    edge: int


class NameWait(NamedTuple):
    """Points that wait for a name, for ``left_ms`` more at most. ``shares``: by place, the fraction that waits."""

    name: str
    left_ms: int
    shares: dict[SourcePartition, float]

    def line(self) -> str:
        """A line about the wait, for people."""
        shown = [f"{share:.0%} of {topic}[{p}]" for (topic, p), share in sorted(self.shares.items())[:SHOWN_MAX]]
        more = f" and some of {len(self.shares) - SHOWN_MAX} more" if len(self.shares) > SHOWN_MAX else ""
        until = f"wait up to {self.left_ms / 1000:.0f} s for {self.name!r}, which keeps their state"
        advice = "was group_instance_id changed? With return_ms=0 they wait for nobody"
        return f"keys have no owner and {until}: {', '.join(shown)}{more}; {advice}"


def points_unowned(view: View) -> list[Unowned]:
    """All points without a working owner, in topics that a living member can handle."""
    found: list[Unowned] = []
    for place in sorted(place for place in view.places.unheld if place[0] in view.present.handled):
        points = [(cell.first, cell.end) for cell in view.cells(place) if cell.state is not CellState.HELD]
        edges = view.ledger.partition(place).edges(view.control.started[place])
        least = min(edge for first, end in points for _, _, edge in edges.pieces(first, end))
        found.append(Unowned(place, sum(end - first for first, end in points) / SPACE_END, least))
    return found


def waits_for_names(view: View) -> dict[int, NameWait]:
    """Points that wait for names, by the incarnation of the last owner."""
    shares: dict[int, dict[SourcePartition, float]] = defaultdict(lambda: defaultdict(float))
    for place in sorted(view.places.unheld):
        for piece in view.table.pieces(place):
            if piece.heir is None:
                shares[piece.owner][place] += (piece.end - piece.first) / SPACE_END
    return {
        owner: NameWait(view.present.awaited[owner], view.left_of_hold_ms(owner), dict(places))
        for owner, places in shares.items()
    }
