"""PURE. The ranges of one member: taken up, wound down, released, given up at which edges, being restored.

``HeldRanges`` is the memory of a member's decisions (member.py). The host notes the steps that begin and end. A
decision reads the memory, and changes only the cache of own grants.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from ..keyrange.ranges import KeyRange
from ..keyrange.steps import Steps
from ..offsets.control import Control, Owner
from ..offsets.control_events import CopyAsked
from ..offsets.event_values import NO_MOVE
from ..offsets.ledger import SourcePartition
from ..offsets.signals import ReleaseTold

V = TypeVar("V")


class Grant(NamedTuple):
    """Points of a place, granted to the member at an epoch."""

    place: SourcePartition
    epoch: int
    within: KeyRange


class OwnGrants:
    """The own points of a member by place, as ``(first, end, epoch)``. Computed again only where the owners changed:
    the fold of the control log replaces the owners of a place at each grant.
    """

    def __init__(self) -> None:
        self.pieces: dict[SourcePartition, list[tuple[int, int, int]]] = {}
        """Places without own points have no entry."""
        self.changed: set[SourcePartition] = set()
        """Places that may have grants to take up: their owners have changed since all was taken up."""
        self._seen: dict[SourcePartition, Steps[Owner]] = {}

    def refresh(self, control: Control, incarnation: int) -> None:
        """Look at the places whose owners changed."""
        seen = self._seen
        for place, owners in control.owners.items():
            if seen.get(place) is owners:
                continue
            seen[place] = owners
            own = [(first, end, o.epoch) for first, end, o in owners.pieces() if o.incarnation == incarnation]
            if own:
                self.pieces[place] = own
                self.changed.add(place)
            else:
                self.pieces.pop(place, None)
                self.changed.discard(place)


@dataclass(slots=True)
class HeldRanges:
    """The ranges of a member, by place. Only the notes change the object.

    ``taken``: the epoch at which points were taken up last, or are being restored. ``working``: the epoch of points
    with workers. ``winding``: the move of points that are being released. ``given_up``: the edges of released points
    with state, until the points are taken up again. ``followed``: points with state whose copy was followed since the
    own release: some of the newest values may be missing.

    ``restoring``: grants whose restore runs; ``whole``: grants whose restore has ended. ``epoch_bounds``: the requests
    to release, by move, each with the newest epoch of its meaning: a later grant is not meant. ``open_releases``:
    releases under way, by move; True: the request was withdrawn. ``uncommitted``: points released by a transaction
    without a known outcome. ``untold``: committed releases, before the coordinator is told. ``copies``: the followed
    copies; None: to be looked at again. ``expected_moves``: the moves to this member for which the readers are ready.
    ``looks``: the number of running looks at sources; ``new_places``: places with known ends, before the ends are
    logged.
    """

    taken: dict[SourcePartition, Steps[int]] = field(default_factory=dict)
    working: dict[SourcePartition, Steps[int]] = field(default_factory=dict)
    winding: dict[SourcePartition, Steps[int]] = field(default_factory=dict)
    given_up: dict[SourcePartition, Steps[int]] = field(default_factory=dict)
    followed: dict[SourcePartition, Steps[bool]] = field(default_factory=dict)
    restoring: dict[SourcePartition, list[Grant]] = field(default_factory=dict)
    whole: list[Grant] = field(default_factory=list)
    epoch_bounds: dict[int, int] = field(default_factory=dict)
    open_releases: dict[int, bool] = field(default_factory=dict)
    uncommitted: Sequence[tuple[SourcePartition, KeyRange]] = ()
    untold: list[ReleaseTold] = field(default_factory=list)
    copies: tuple[CopyAsked, ...] | None = None
    expected_moves: frozenset[int] = frozenset()
    looks: int = 0
    new_places: list[SourcePartition] = field(default_factory=list)
    gives_all_up: bool = False
    """The member is to give up all ranges; ``is_giving_all_up``: the last releases have begun."""
    is_giving_all_up: bool = False
    is_settled: bool = False
    has_failed: bool = False
    own_grants: OwnGrants = field(default_factory=OwnGrants)

    @property
    def is_moving(self) -> bool:
        """Whether a range is being taken up or released."""
        return bool(self.restoring or self.whole or self.looks or self.open_releases)

    def is_uncommitted(self, place: SourcePartition, within: KeyRange) -> bool:
        """Whether a transaction without a known outcome releases some of the points."""
        return any(gone == place and points.overlaps(within) for gone, points in self.uncommitted)

    # --- taking up ---------------------------------------------------------------------------------------------------

    def note_grants(self, grants: Iterable[Grant]) -> None:
        """Grants were read, and the member begins to take them up."""
        for place, epoch, within in grants:
            _put(self.taken, place, within, epoch)
            if place in self.followed:
                _put(self.followed, place, within, None)

    def note_restore_begun(self, grants: Iterable[Grant]) -> None:
        """The restore of grants has begun."""
        for grant in grants:
            self.restoring.setdefault(grant.place, []).append(grant)

    def note_restored(self, grants: Iterable[Grant]) -> None:
        """The restore of grants has ended: the state is whole."""
        for grant in grants:
            left = self.restoring[grant.place]
            left.remove(grant)
            if not left:
                del self.restoring[grant.place]
            self.whole.append(grant)

    def note_taken_up(self, grants: Sequence[Grant]) -> None:
        """Grants have workers, and a look at the sources of the grants runs."""
        self.looks += 1
        for place, epoch, within in grants:
            _put(self.working, place, within, epoch)
            if place in self.given_up:
                _put(self.given_up, place, within, None)
        begun = frozenset(grants)
        self.whole = [grant for grant in self.whole if grant not in begun]

    # --- giving up ---------------------------------------------------------------------------------------------------

    def note_winding(self, move: int, place: SourcePartition, ranges: Iterable[KeyRange]) -> None:
        """The release of ranges has begun: none of their records begins."""
        self.open_releases[move] = False
        for within in ranges:
            _put(self.winding, place, within, move)

    def note_giving_all_up(self, points: Iterable[tuple[SourcePartition, KeyRange]]) -> None:
        """The last releases have begun: of all points that were not being released."""
        self.is_giving_all_up = True
        for place, within in points:
            _put(self.winding, place, within, NO_MOVE)

    def note_released(self, told: ReleaseTold, *, is_stateful: bool) -> None:
        """A transaction with a release was committed."""
        place = told.topic_partition
        for band in told.bands:
            within = KeyRange(band.first, band.end)
            for points in (self.working, self.winding):
                if place in points:
                    _put(points, place, within, None)
            if is_stateful:
                _put(self.given_up, place, within, band.edge)
        self.untold.append(told)

    def note_release_ended(self, move: int, place: SourcePartition) -> None:
        """A release is through, or the rest was withdrawn."""
        self.open_releases.pop(move, None)
        for first, end, of in self.winding.get(place, Steps()).pieces():
            if of == move:
                self.winding[place].put(first, end, None)

    # --- copies and expectations -------------------------------------------------------------------------------------

    def note_copies(self, copies: Iterable[CopyAsked]) -> None:
        """The member follows copies, except points of the member."""
        for copy in copies:
            place = copy.topic_partition
            for band in copy.bands:
                for within in self._foreign_points(place, KeyRange(band.first, band.end)):
                    _put(self.followed, place, within, True)

    def _foreign_points(self, place: SourcePartition, within: KeyRange) -> Iterator[KeyRange]:
        """The points of a range without work or restore in this member."""
        own = self.working.get(place, Steps()).copy()
        whole = (grant for grant in self.whole if grant.place == place)
        for grant in (*self.restoring.get(place, ()), *whole):
            own.put(grant.within.first, grant.within.end, grant.epoch)
        return (KeyRange(first, end) for first, end, epoch in own.all_pieces(within.first, within.end) if epoch is None)

    def forget_requests(self, open_moves: Mapping[int, object]) -> None:
        """Forget requests that the control log has forgotten."""
        if not self.epoch_bounds.keys() <= open_moves.keys():
            self.epoch_bounds = {move: epoch for move, epoch in self.epoch_bounds.items() if move in open_moves}


def _put(by_place: dict[SourcePartition, Steps[V]], place: SourcePartition, within: KeyRange, value: V | None) -> None:
    by_place.setdefault(place, Steps()).put(within.first, within.end, value)
