"""PURE. The pieces of all source partitions, kept between looks.

A look works out only the rows of places with a change. The table checks all that a row is worked out from: the fold of
the partition (by identity and version), the owners that were expelled or fenced, the epochs that were read, moves,
requests, copies, the readiness of copies, and the members. A test compares the table with a table that keeps nothing.

Two inputs have no version. Until an owner has taken its points up, the row is worked out at each look. The position of
a copy counts only for points without a working owner.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

from ..offsets.control import Control
from ..offsets.control_events import CopyAsked, ReleaseAsked
from ..offsets.event_values import PlannedMove
from ..offsets.ledger import Ledger, PartitionLedger, SourcePartition
from ..offsets.signals import Copy
from .cells import NOTHING, Cell, CellState, cells
from .copies import CopyProgress
from .pieces import PlaceFacts, PlacePiece, pieces_of
from .present import Present
from .standbys import StandbyRules, StandbysLacking, ranges_with_state, standbys_lacking, unused_copies


class _OfPlace(Protocol):
    @property
    def topic_partition(self) -> SourcePartition: ...


N = TypeVar("N", bound=_OfPlace)


class _ByPlace(Generic[N]):
    """Values by number, and the values of each place in order of their numbers."""

    def __init__(self) -> None:
        self.values: dict[int, N] = {}
        self._by_place: dict[SourcePartition, list[N]] = {}

    def update(self, values: Mapping[int, N]) -> set[SourcePartition]:
        """Take the present values. Returns the places with other values than before."""
        if values == self.values:
            return set()
        before, now = self._by_place, dict[SourcePartition, list[N]]()
        for _, value in sorted(values.items()):
            now.setdefault(value.topic_partition, []).append(value)
        self.values, self._by_place = {**values}, now
        return {place for place in before.keys() | now.keys() if before.get(place) != now.get(place)}

    def at(self, place: SourcePartition) -> list[N]:
        """The values of a place; the caller must not change the list."""
        return self._by_place.get(place, [])


@dataclass(frozen=True, slots=True)
class PlaceRow:
    """The row of a place: its pieces, and what follows from the pieces. ``version``: of the fold; ``owners``: of the
    cells; ``unused``: copies of no use, with the reasons; ``lacking``: what ranges lack of standbys.
    """

    fold: PartitionLedger
    version: int
    cells: list[Cell]
    pieces: list[PlacePiece]
    owners: frozenset[int]
    unused: list[tuple[int, str]]
    lacking: list[StandbysLacking]


NO_ROW = PlaceRow(
    fold=NOTHING, version=0, cells=[], pieces=[], owners=frozenset(), unused=[], lacking=[]
)  # of a place that is not started


@dataclass(slots=True)
class PlaceSets:
    """Places with something that a row of the coordinator looks for.

    ``free``, ``unread``: places with such points; ``unheld``: with points that are not held, in any state; ``uncut``:
    with points that their owner has not taken up; ``moving``: with held points that a move takes from their owner, or
    joins; ``unused``: with copies of no use; ``lacking``: with a range that lacks standbys.
    """

    free: set[SourcePartition] = field(default_factory=set)
    unread: set[SourcePartition] = field(default_factory=set)
    unheld: set[SourcePartition] = field(default_factory=set)
    uncut: set[SourcePartition] = field(default_factory=set)
    moving: set[SourcePartition] = field(default_factory=set)
    unused: set[SourcePartition] = field(default_factory=set)
    lacking: set[SourcePartition] = field(default_factory=set)

    def note(self, place: SourcePartition, row: PlaceRow) -> None:
        """Note a row in the place of the row before."""
        states = {cell.state for cell in row.cells}
        for places, is_there in (
            (self.free, CellState.FREE in states),
            (self.unread, CellState.UNREAD in states),
            (self.unheld, states != {CellState.HELD}),
            (self.uncut, any(piece.is_held and not piece.is_taken_up for piece in row.pieces)),
            (self.moving, any(p.is_held and p.move is not None and p.move.origin == p.owner for p in row.pieces)),
            (self.unused, bool(row.unused)),
            (self.lacking, bool(row.lacking)),
        ):
            if is_there:
                places.add(place)
            else:
                places.discard(place)


class PieceTable:
    """The table of one coordinator. ``places``: where something is; ``touching_ms``: places with touching bands of one
    member at different epochs, with the time when the cells of the place changed last.
    """

    def __init__(self) -> None:
        self.places = PlaceSets()
        self.touching_ms: dict[SourcePartition, int] = {}
        self._rows: dict[SourcePartition, PlaceRow] = {}
        self._moves = _ByPlace[PlannedMove]()
        self._requests = _ByPlace[ReleaseAsked]()
        self._copies = _ByPlace[CopyAsked]()
        self._told: dict[int, Mapping[int, Copy]] = {}
        """By incarnation, the progress of copies at the last look."""
        self._control: Control | None = None
        self._owners: dict[int, tuple[bool, bool, str]] = {}
        """By incarnation, at the last look: whether the member was expelled, whether fenced, and the name awaited."""
        self._incarnation_max = 0
        self._members: object = None
        """The members and the rules at the last look, as far as all rows depend on them."""
        self._read: AbstractSet[tuple[SourcePartition, int]] | None = None
        self._reads = 0
        """The size of ``_read`` at the last look. The set is changed in place, and only grows."""

    def look(
        self,
        ledger: Ledger,
        read: AbstractSet[tuple[SourcePartition, int]],
        present: Present,
        told: Mapping[int, Mapping[int, Copy]],
        rules: StandbyRules,
        now_ms: int,
    ) -> None:
        """Work out the rows with a change. ``read``: see ``Read`` in cells.py; ``told``: the progress of copies, by
        incarnation and move.
        """
        control, folds, rows = ledger.control, ledger.partitions, self._rows
        self._forget_others(control, read)
        changed = self._places_changed(control, read, present, told, rules)
        for place in control.started:
            row, fold = rows.get(place), folds.get(place, NOTHING)
            if row is None or place in changed or row.fold is not fold or row.version != fold.version:
                rows[place] = new = self._work_out(place, fold, cells(control, folds, place, read), present, rules)
                self.places.note(place, new)
                self._note_touching(place, row, new, now_ms)

    def cells(self, place: SourcePartition) -> list[Cell]:
        """The cells of a place; the caller must not change the list."""
        return self._rows.get(place, NO_ROW).cells

    def row(self, place: SourcePartition) -> PlaceRow:
        """The pieces of a place, and what follows from them."""
        return self._rows.get(place, NO_ROW)

    def pieces(self, place: SourcePartition) -> list[PlacePiece]:
        """The pieces of a place, in order of points."""
        return self._rows.get(place, NO_ROW).pieces

    def moves(self, place: SourcePartition) -> list[PlannedMove]:
        """The planned moves of a place that are not done, the newest first."""
        return self._moves.at(place)[::-1]

    def requests(self, place: SourcePartition) -> list[ReleaseAsked]:
        """The open requests to release points of a place."""
        return self._requests.at(place)

    def copies(self, place: SourcePartition) -> list[CopyProgress]:
        """The copies of a place, in order of their numbers, with their progress."""
        told = ((asked, self._told.get(asked.incarnation, {}).get(asked.move)) for asked in self._copies.at(place))
        return [
            CopyProgress(asked, False, -1) if copy is None else CopyProgress(asked, copy.is_ready, copy.position)
            for asked, copy in told
        ]

    # --- changes -----------------------------------------------------------------------------------------------------

    def _places_changed(
        self,
        control: Control,
        read: AbstractSet[tuple[SourcePartition, int]],
        present: Present,
        told: Mapping[int, Mapping[int, Copy]],
        rules: StandbyRules,
    ) -> AbstractSet[SourcePartition]:
        """The places with a change in anything but their folds."""
        moves = control.moves
        changed = self._moves.update(moves.planned) | self._requests.update(moves.release_requests)
        changed |= self._copies.update(moves.copies) | self.places.uncut
        changed |= self._places_told(told) | self._places_of_owners(control, present)
        changed |= self.places.unread if len(read) > self._reads else set()
        members = (present.staying, present.handled, present.stateful, rules)
        if members != self._members:
            changed |= control.started.keys()
        self._members, self._reads = members, len(read)
        return changed

    def _forget_others(self, control: Control, read: AbstractSet[tuple[SourcePartition, int]]) -> None:
        """Forget all rows if the folds are not the folds of the last look."""
        if control is not self._control or read is not self._read or len(read) < self._reads:
            self._rows.clear()
            self.places = PlaceSets()
            self.touching_ms.clear()
        self._control, self._read = control, read

    def _places_told(self, told: Mapping[int, Mapping[int, Copy]]) -> set[SourcePartition]:
        """The places for which the progress of a copy has changed in a way that counts."""
        changed: set[SourcePartition] = set()
        before, self._told = self._told, {**told}
        for incarnation in told.keys() | before.keys():
            new, old = told.get(incarnation, {}), before.get(incarnation, {})
            for move in new.keys() | old.keys() if new is not old else ():
                now, then = new.get(move), old.get(move)
                asked = self._copies.values.get(move)
                if asked is not None and now != then:
                    is_turned = (now is not None and now.is_ready) != (then is not None and then.is_ready)
                    if is_turned or asked.topic_partition in self.places.unheld:
                        changed.add(asked.topic_partition)
        return changed

    def _places_of_owners(self, control: Control, present: Present) -> set[SourcePartition]:
        """The places with an owner that was expelled or fenced, or that is awaited no longer."""
        owners = {
            i: (member.expelled, member.fenced, present.awaited.get(i, "")) for i, member in control.members.items()
        }
        before, incarnation_max = self._owners, self._incarnation_max
        self._owners, self._incarnation_max = owners, control.incarnation_max
        if owners == before and control.incarnation_max == incarnation_max:
            return set()
        changed = {i for i in before.keys() | owners.keys() if before.get(i) != owners.get(i)}
        # An unknown incarnation counts as expelled once a higher incarnation has joined.
        changed |= {*range(incarnation_max + 1, control.incarnation_max + 1)}
        return {place for place, row in self._rows.items() if row.owners & changed}

    def _work_out(
        self, place: SourcePartition, fold: PartitionLedger, found: list[Cell], present: Present, rules: StandbyRules
    ) -> PlaceRow:
        copies = self.copies(place)
        pieces = pieces_of(
            present,
            PlaceFacts(
                place=place,
                fold=fold,
                cells=found,
                moves=self.moves(place),
                requests=self.requests(place),
                copies=copies,
            ),
        )
        ranges = ranges_with_state(pieces) if place[0] in present.stateful else []
        return PlaceRow(
            fold=fold,
            version=fold.version,
            cells=found,
            pieces=pieces,
            owners=frozenset(cell.owner for cell in found),
            unused=unused_copies(present, rules, pieces, ranges, copies) if copies else [],
            lacking=standbys_lacking(present, rules.standbys, ranges, copies),
        )

    def _note_touching(self, place: SourcePartition, before: PlaceRow | None, row: PlaceRow, now_ms: int) -> None:
        """Note whether bands touch, and since when: since the last change of the fold or of the cells."""
        if not any(touch(a, b) for a, b in pairwise(row.cells)):
            self.touching_ms.pop(place, None)
        elif (
            before is None or before.fold is not row.fold or before.version != row.version or before.cells != row.cells
        ):
            self.touching_ms[place] = now_ms


def touch(left: Cell, right: Cell) -> bool:
    """Whether two cells touch, and one member holds both at different epochs. A plan may join such cells."""
    are_held = left.state is CellState.HELD and right.state is CellState.HELD
    return are_held and left.end == right.first and left.owner == right.owner and left.epoch != right.epoch
