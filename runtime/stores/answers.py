"""Who answers a question for state: this process from what it owns or from a copy, or whoever is named to be asked.

1. A process that has not read the control log for ``query_view_ms_max`` answers nothing: others may have what it had.
2. It answers for points that are its own by that log, restored, and not in a transaction under way that gives them up.
   Others change them from the commit of that on, which may be known there before it is here.
3. A copy answers where it is asked to, if it is no older than it may be.
4. Else the owner by the control log is named, or nobody where there is none.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from ...errors import Elsewhere, StateNotReady
from ...keyrange.ranges import WHOLE, KeyRange
from ...keyrange.steps import Steps
from ...offsets.control import Control, Member, Owner
from ...offsets.ledger import Place
from ...state.keys import bounds_of
from ...state.lookup import walk_table
from ..handlers.partition_state import PartitionState

_NOBODYS: Final[Steps[Owner]] = Steps()

How: TypeAlias = Literal["owner", "copy"]
"""Out of what a point is answered."""


class Followed(Protocol):
    """Copies of what others own."""

    def stale_ms(self, place: Place, point: int) -> int | None:
        """How old the copy of a point is at most; None: there is none that is whole."""

    def followed(self, place: Place) -> Iterable[KeyRange]:
        """The ranges of which there are copies. One of them is of one age."""


class GroupView:
    """The group as this process has followed it. ``age_ms``: how old that is; ``incarnation``: of this process."""

    def __init__(
        self,
        control: Callable[[], Control],
        incarnation: Callable[[], int | None],
        age_ms: Callable[[], int],
        ms_max: int,
    ) -> None:
        self._control, self._incarnation, self._age_ms, self._ms_max = control, incarnation, age_ms, ms_max

    def doubt(self) -> str | None:
        """Why nothing can be answered; None: it can."""
        age_ms = self._age_ms()
        if age_ms <= self._ms_max:
            return None
        return (
            f"whether this process still has it is not known: it read the control log {age_ms} ms ago, and "
            f"query_view_ms_max is {self._ms_max}"
        )

    def owners(self, place: Place) -> Steps[Owner]:
        """By the log; some of them may have been expelled."""
        return self._control().owners.get(place, _NOBODYS)

    def owner(self, place: Place, point: int) -> int | None:
        """The incarnation that has a point; None: nobody has it now."""
        control, owner = self._control(), self.owners(place).at(point)
        return None if owner is None or control.is_expelled(owner.incarnation) else owner.incarnation

    def is_own(self, incarnation: int | None) -> bool:
        """Whether that is this process."""
        return incarnation is not None and incarnation == self._incarnation()

    def member(self, incarnation: int) -> Member:
        """Of the log."""
        return self._control().members[incarnation]


class Answering(NamedTuple):
    """A ``Lookup``: one source partition as it can be asked here now. ``stale_ms_max``: None asks for no copy."""

    place: Place
    state: PartitionState
    group: GroupView
    copies: Followed
    stale_ms_max: int | None = None

    def read_committed(self, key: bytes, point: int) -> bytes | None:
        """See ``Lookup``; raises Elsewhere, too."""
        how = self._how(point)
        if how is None:
            raise self._refusal(KeyRange(point, point + 1))
        return self.state.read_committed(key, point) if how == "owner" else self.state.table.get(key)

    def span_committed(self, first: bytes, end: bytes | None, within: KeyRange) -> Iterator[tuple[bytes, bytes]]:
        """The same."""
        return chain.from_iterable(self._walk(first, end, part, how) for part, how in self._whole(within))

    def scan_committed(self, within: KeyRange) -> Iterator[tuple[bytes, bytes]]:
        """The committed entries of a key range in order of state keys. Raises as the others do."""
        return self.span_committed(*bounds_of(within), within)

    def answered(self) -> list[KeyRange]:
        """The ranges that can be asked for here, touching ones as one."""
        found: list[KeyRange] = []
        for part, how in self._parts(WHOLE):
            if how is not None and found and found[-1].end == part.first:
                found[-1] = found[-1].join(part)
            elif how is not None:
                found.append(part)
        return found

    def _whole(self, within: KeyRange) -> Sequence[tuple[KeyRange, How]]:
        whole = []
        for part, how in self._parts(within):
            if how is None:
                raise self._refusal(part)
            whole.append((part, how))
        return whole

    def _parts(self, within: KeyRange) -> Iterator[tuple[KeyRange, How | None]]:
        """All of a range, in order, and out of what each part is answered; None: it is not."""
        edges = {within.first, within.end}
        for steps in (self.group.owners(self.place), self.state.ready, self.state.parting):
            edges.update(first for first, _, _ in steps.all_pieces(within.first, within.end))
        if self.stale_ms_max is not None:
            edges.update(edge for band in self.copies.followed(self.place) for edge in (band.first, band.end))
        for first, end in pairwise(edge for edge in sorted(edges) if within.first <= edge <= within.end):
            yield KeyRange(first, end), self._how(first)

    def _how(self, point: int) -> How | None:
        if self.state.is_answered(point) and self.group.is_own(self.group.owner(self.place, point)):
            return "owner"
        if self.stale_ms_max is not None:
            stale_ms = self.copies.stale_ms(self.place, point)
            if stale_ms is not None and stale_ms <= self.stale_ms_max:
                return "copy"
        return None

    def _walk(self, first: bytes, end: bytes | None, part: KeyRange, how: How) -> Iterator[tuple[bytes, bytes]]:
        low, high = bounds_of(part)
        low = max(low, first)
        high = end if high is None or (end is not None and end < high) else high
        if how == "owner":
            return self.state.span_committed(low, high, part)
        return walk_table(self.state.table, low, high)

    def _refusal(self, part: KeyRange) -> StateNotReady:
        """Why a range that is not answered is not."""
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
        stale_ms = self.copies.stale_ms(self.place, part.first)
        if stale_ms is None:
            return ", there is no copy of it here"
        return f", the copy here is {stale_ms} ms old, and {self.stale_ms_max} are allowed"
