"""Who answers a query: this process, as the owner or from a copy; else the error names the owner.

1. A process that has not read the control log for ``query_view_ms_max`` answers nothing: other processes may own its
   ranges by now.
2. A process answers for points that it owns by the control log, when their state is restored, unless a transaction
   under way gives up the points. From the commit of the transaction on, the next owner may change their state, and may
   know of the commit before this process does.
3. A copy answers when the caller allows copies, and the copy is young enough.
4. Otherwise the error names the owner by the control log, or says that the points have no owner.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from ...errors import Elsewhere, StateNotReady
from ...keyrange.ranges import WHOLE, KeyRange, join_neighbours
from ...keyrange.steps import Steps
from ...offsets.control import Control, Member, Owner
from ...offsets.ledger import SourcePartition
from ...state.keys import bounds_of
from ...state.lookup import walk_table
from ..handlers.partition_state import PartitionState

_NOBODYS: Final[Steps[Owner]] = Steps()

How: TypeAlias = Literal["owner", "copy"]
"""Whether the answer comes from the owner's state or from a copy."""


class FollowedCopies(Protocol):
    """Copies of state that other processes own."""

    def stale_ms(self, place: SourcePartition, point: int) -> int | None:
        """The greatest possible age of a point's copy, in ms; None: no whole copy exists here."""

    def copied_ranges(self, place: SourcePartition) -> Iterable[KeyRange]:
        """The ranges with a copy here. All points of such a range have the same age."""


class GroupView:
    """The group, as the control log says. ``age_ms``: the age of this view; ``incarnation``: the own incarnation."""

    def __init__(
        self,
        control: Callable[[], Control],
        incarnation: Callable[[], int | None],
        age_ms: Callable[[], int],
        ms_max: int,
    ) -> None:
        self._control = control
        self._incarnation = incarnation
        self._age_ms = age_ms
        self._ms_max = ms_max

    def doubt(self) -> str | None:
        """The reason why this process can answer nothing now; None: the view is young enough."""
        age_ms = self._age_ms()
        if age_ms <= self._ms_max:
            return None
        return (
            f"whether this process still has it is not known: it read the control log {age_ms} ms ago, and "
            f"query_view_ms_max is {self._ms_max}"
        )

    def owners(self, place: SourcePartition) -> Steps[Owner]:
        """The owners of a partition's points by the control log; expelled members are among them."""
        return self._control().owners.get(place, _NOBODYS)

    def owner(self, place: SourcePartition, point: int) -> int | None:
        """The incarnation that owns a point; None: the point has no living owner now."""
        control, owner = self._control(), self.owners(place).at(point)
        return None if owner is None or control.is_expelled(owner.incarnation) else owner.incarnation

    def is_own(self, incarnation: int | None) -> bool:
        """Whether an incarnation is the own one."""
        return incarnation is not None and incarnation == self._incarnation()

    def member(self, incarnation: int) -> Member:
        """The member of an incarnation in the control log."""
        return self._control().members[incarnation]


class LocalAnswers(NamedTuple):
    """A ``Lookup`` in the local state of a source partition. ``stale_ms_max``: None allows no copy."""

    place: SourcePartition
    state: PartitionState
    group: GroupView
    copies: FollowedCopies
    stale_ms_max: int | None = None

    def read_committed(self, key: bytes, point: int) -> bytes | None:
        """See ``Lookup``. Raises StateNotReady, Elsewhere."""
        how = self._how(point)
        if how is None:
            raise self._refusal(KeyRange(point, point + 1))
        return self.state.read_committed(key, point) if how == "owner" else self.state.table.get(key)

    def span_committed(self, first: bytes, end: bytes | None, within: KeyRange) -> Iterator[tuple[bytes, bytes]]:
        """See ``Lookup``. Raises StateNotReady, Elsewhere."""
        return chain.from_iterable(self._walk(first, end, part, how) for part, how in self._whole(within))

    def scan_committed(self, within: KeyRange) -> Iterator[tuple[bytes, bytes]]:
        """The committed entries of a key range in order of state keys. Raises StateNotReady, Elsewhere."""
        return self.span_committed(*bounds_of(within), within)

    def answered_ranges(self) -> list[KeyRange]:
        """The ranges that this process can answer for, with touching ranges joined."""
        return join_neighbours((part for part, how in self._parts(WHOLE) if how is not None), KeyRange.join)

    def _whole(self, within: KeyRange) -> Sequence[tuple[KeyRange, How]]:
        """The parts of a range, each with the source of its answer. Raises where this process can't answer for all."""
        whole = []
        for part, how in self._parts(within):
            if how is None:
                raise self._refusal(part)
            whole.append((part, how))
        return whole

    def _parts(self, within: KeyRange) -> Iterator[tuple[KeyRange, How | None]]:
        """The parts of a range in order, each with the source of its answer; None: this process can't answer."""
        bounds = {within.first, within.end}
        for steps in (self.group.owners(self.place), self.state.ready, self.state.parting):
            bounds.update(first for first, _, _ in steps.all_pieces(within.first, within.end))
        if self.stale_ms_max is not None:
            bounds.update(bound for band in self.copies.copied_ranges(self.place) for bound in (band.first, band.end))
        for first, end in pairwise(bound for bound in sorted(bounds) if within.first <= bound <= within.end):
            yield KeyRange(first, end), self._how(first)

    def _how(self, point: int) -> How | None:
        """The source of the answer for a point; None: this process can't answer."""
        if self.state.answers_for(point) and self.group.is_own(self.group.owner(self.place, point)):
            return "owner"
        if self.stale_ms_max is not None:
            stale_ms = self.copies.stale_ms(self.place, point)
            if stale_ms is not None and stale_ms <= self.stale_ms_max:
                return "copy"
        return None

    def _walk(self, first: bytes, end: bytes | None, part: KeyRange, how: How) -> Iterator[tuple[bytes, bytes]]:
        """The entries of ``[first, end)`` (None: to the last one) that lie in the key range ``part``."""
        part_first, part_end = bounds_of(part)
        first = max(first, part_first)
        if part_end is not None and (end is None or part_end < end):
            end = part_end
        if how == "owner":
            return self.state.span_committed(first, end, part)
        return walk_table(self.state.table, first, end)

    def _refusal(self, part: KeyRange) -> StateNotReady:
        """The error that says why this process does not answer for a range."""
        owner = self.group.owner(self.place, part.first)
        what = f"{self.state.label}: the state of {part}"
        copy = "" if self.stale_ms_max is None else self._copy_of(part)
        if self.group.is_own(owner):
            return StateNotReady(f"{what} is not restored yet, or not held here any more{copy}: ask again")
        if owner is None:
            return StateNotReady(f"{what} is not held here, nor by another member now{copy}: ask again")
        joined = self.group.member(owner).joined
        who = f"incarnation {owner}" + (f" ({joined.instance})" if joined.instance else "")
        where = f"ask it at {joined.endpoint}" if joined.endpoint else "ask it; it has no Settings.endpoint"
        message = f"{what} is not held here{copy}: {who} on {joined.host or 'an unknown host'} has it, {where}"
        return Elsewhere(message, owner, joined.endpoint, self.place[1])

    def _copy_of(self, part: KeyRange) -> str:
        """Why the copy of a range does not answer, in words."""
        stale_ms = self.copies.stale_ms(self.place, part.first)
        if stale_ms is None:
            return ", there is no copy of it here"
        return f", the copy here is {stale_ms} ms old, and {self.stale_ms_max} are allowed"
