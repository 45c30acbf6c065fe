"""PURE. What a report says of a group: who took part, what moved and why, how long that took, who owned how much."""

from collections.abc import Mapping
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
    """Of ``moves``, in ms: the middle one, the 99th of 100, the longest. None: there was none."""

    moves: int
    p50: int | None
    p99: int | None
    longest: int | None


class Unowned(NamedTuple):
    """Points that nobody worked on for ``ms``. ``cause``: why their last owner ended; ``is_over``: or not yet."""

    topic: str
    partition: int
    first: int
    end: int
    from_ms: int
    ms: int
    cause: str
    is_over: bool


class MemberFigures(NamedTuple):
    """A member. ``share``: of all points over the time; ``ended``: why it was expelled, or "" if it was not."""

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
    """All of it. ``expulsions`` and ``moves`` by cause; ``from_ms``, ``until_ms``: the first grant and the last event.

    ``released``: from when a range was released to when it was taken up; ``expelled``: from when its owner was.
    """

    members: tuple[MemberFigures, ...]
    terms: tuple[TermFigures, ...]
    expulsions: dict[str, int]
    moves: dict[str, int]
    released: Durations
    expelled: Durations
    unowned_longest: Unowned | None
    from_ms: int
    until_ms: int
    reigns: tuple[Reign, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it; without the reigns."""
        longest = self.unowned_longest
        return {
            "members": [member._asdict() for member in self.members],
            "terms": [term._asdict() for term in self.terms],
            "expulsions": self.expulsions,
            "moves": self.moves,
            "released_to_taken_up_ms": self.released._asdict(),
            "expelled_to_taken_up_ms": self.expelled._asdict(),
            "unowned_longest": longest and longest._asdict(),
            "from_ms": self.from_ms,
            "until_ms": self.until_ms,
        }

    def to_lines(self) -> list[str]:
        """For people."""
        lines = [
            f"group: members {len(self.members):,}, terms {len(self.terms):,}",
            f"  expulsions {_by_cause(self.expulsions)}, moves {_by_cause(self.moves)}",
            f"  released to taken up: {_durations(self.released)}; expelled to taken up: {_durations(self.expelled)}",
        ]
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
