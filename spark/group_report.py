"""PURE. The report on a group: members, moves with causes and durations, and the share of each member."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..keyrange.hashing import SPACE_END


class Reign(NamedTuple):
    """``incarnation`` owned points of a source partition from one moment to another, in ms since the epoch."""

    topic: str
    partition: int
    first: int
    end: int
    incarnation: int
    from_ms: int
    until_ms: int


class Durations(NamedTuple):
    """The durations of ``moves`` in ms: the median, the 99th percentile, the longest. None: no moves."""

    moves: int
    p50: int | None
    p99: int | None
    longest: int | None


class Unowned(NamedTuple):
    """Points without an owner at work for ``ms``. ``cause``: why the last reign ended; ``is_over``: taken up by now."""

    topic: str
    partition: int
    first: int
    end: int
    from_ms: int
    ms: int
    cause: str
    is_over: bool


class CopyFigures(NamedTuple):
    """Figures of copies: ``asked`` by role, ``ended`` by reason, ``promoted`` by role, and ``standbys`` at the end.

    The member of a promoted copy owns all bands of the copy. ``state_bytes``: the planned bytes of all granted moves,
    each move once. ``learned``: from the request of a learner to the request of the release. ``with_copy`` and
    ``without_copy``: from the release until the range was taken up.
    """

    asked: dict[str, int]
    ended: dict[str, int]
    promoted: dict[str, int]
    standbys: int
    state_bytes: int
    learned: Durations
    with_copy: Durations
    without_copy: Durations

    def to_dict(self) -> dict[str, Any]:
        """The figures as a dict for JSON."""
        return {
            "asked": self.asked,
            "ended": self.ended,
            "promoted": self.promoted,
            "standbys": self.standbys,
            "state_bytes_moved": self.state_bytes,
            "asked_to_release_asked_ms": self.learned._asdict(),
            "released_to_taken_up_with_copy_ms": self.with_copy._asdict(),
            "released_to_taken_up_without_copy_ms": self.without_copy._asdict(),
        }

    def to_lines(self) -> list[str]:
        """The lines for people; empty where no copy was asked for."""
        if not self.asked:
            return []
        counts = f"copies {_by_cause(self.asked)}, ended {_by_cause(self.ended)}, promoted {_by_cause(self.promoted)}"
        with_copy, without_copy = _durations(self.with_copy), _durations(self.without_copy)
        return [
            f"  {counts}, standbys at the end {self.standbys:,}; state moved {self.state_bytes:,} bytes",
            f"  copy asked to release asked: {_durations(self.learned)}",
            f"  released to taken up with a copy: {with_copy}; without: {without_copy}",
        ]


class MemberFigures(NamedTuple):
    """A member. ``share``: of all points over the time; ``ended``: the cause of the expulsion, or "" without one."""

    incarnation: int
    instance: str
    host: str
    joined_ms: int
    share: float
    ended: str


class TermFigures(NamedTuple):
    """An election that counted."""

    term: int
    instance: str
    birth: str
    elected_ms: int


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """The figures of a group. ``expulsions`` and ``moves``: by cause.

    ``from_ms``: the first grant; ``until_ms``: the last event. ``released``: from the release of a range until the
    range was taken up; ``expelled``: from the expulsion of the owner until the range was taken up. ``unowned_longest``:
    time without any member does not count.
    """

    members: tuple[MemberFigures, ...]
    terms: tuple[TermFigures, ...]
    expulsions: dict[str, int]
    moves: dict[str, int]
    released: Durations
    expelled: Durations
    copies: CopyFigures
    unowned_longest: Unowned | None
    from_ms: int
    until_ms: int
    reigns: tuple[Reign, ...]

    def to_dict(self) -> dict[str, Any]:
        """The figures as a dict for JSON, without the reigns."""
        longest = self.unowned_longest
        return {
            "members": [member._asdict() for member in self.members],
            "terms": [term._asdict() for term in self.terms],
            "expulsions": self.expulsions,
            "moves": self.moves,
            "released_to_taken_up_ms": self.released._asdict(),
            "expelled_to_taken_up_ms": self.expelled._asdict(),
            "copies": self.copies.to_dict(),
            "unowned_longest": longest and longest._asdict(),
            "from_ms": self.from_ms,
            "until_ms": self.until_ms,
        }

    def to_lines(self) -> list[str]:
        """The lines for people."""
        lines = [
            f"group: members {len(self.members):,}, terms {len(self.terms):,}",
            f"  expulsions {_by_cause(self.expulsions)}, moves {_by_cause(self.moves)}",
            f"  released to taken up: {_durations(self.released)}; expelled to taken up: {_durations(self.expelled)}",
        ]
        lines += self.copies.to_lines()
        if (one := self.unowned_longest) is not None:
            points = "" if one.end - one.first == SPACE_END else f" {one.first:08x}-{one.end:08x}"
            still = "" if one.is_over else ", and has none yet"
            place = f"{one.topic}[{one.partition}]{points}"
            lines.append(f"  longest without an owner at work: {place}, {one.ms:,} ms ({one.cause}{still})")
        for member in self.members:
            name = f" {member.instance}" if member.instance else ""
            end = f", expelled: {member.ended}" if member.ended else ""
            lines.append(
                f"  incarnation {member.incarnation}{name} on {member.host or '?'}: {member.share:.1%} of the points "
                f"over the time{end}"
            )
        return lines


def _by_cause(counts: Mapping[str, int]) -> str:
    causes = ", ".join(f"{cause} {n:,}" for cause, n in counts.items())
    return f"{sum(counts.values()):,}" + (f" ({causes})" if causes else "")


def _durations(found: Durations) -> str:
    if found.p50 is None:
        return "no move"
    return f"p50 {found.p50:,} ms, p99 {found.p99:,} ms, max {found.longest:,} ms ({found.moves:,})"


class TimeMark(NamedTuple):
    """A moment to be marked with a line and words, in seconds. ``is_loss``: a member went. ``is_step``: the number of
    members was changed on purpose; ``until_s``: the moment at which the group was balanced again.
    """

    at_s: float
    text: str
    is_loss: bool
    is_step: bool = False
    until_s: float | None = None


class OwnershipPicture(NamedTuple):
    """The members of a picture.

    ``names``: by incarnation, in the order of the colours. ``shares``: by name; ``shares_of``: the whole of the shares,
    in words. ``reigns``: in ms of a clock; ``clock``: the clock in words. ``copies``: the copies of state that members
    had before they owned the points, in the same clock.
    """

    names: Mapping[int, str]
    shares: Mapping[str, float]
    shares_of: str
    reigns: Sequence[Reign]
    clock: str
    copies: Sequence[Reign] = ()
    marks: Sequence[TimeMark] = ()

    def numbers(self) -> dict[int, int]:
        """The number of each incarnation's colour. Incarnations of one name have one colour."""
        order = {name: number for number, name in enumerate(dict.fromkeys(self.names.values()))}
        return {incarnation: order[name] for incarnation, name in self.names.items()}
