"""PURE. What members noted of the records that they handled, what that proves, and how long a range stood still.

Times are nanoseconds of the system's monotonic clock, which all processes of a machine share. The notes of a member lie
in the order in which its records ended.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

WORDS = 8
"""Of 32 bits in a note: see peers/handover_app.py."""
NOTE_BYTES = 4 * WORDS
RUNS_NS_MAX = 1_000_000_000
"""A record runs for so long at most."""


class Unproven(Exception):
    """Records were lost, doubled or reordered."""


class Points(NamedTuple):
    """Points ``[first, end)`` of a source partition."""

    partition: int
    first: int
    end: int


class Notes(NamedTuple):
    """The notes of ``who``, column by column."""

    who: str
    began_ns: "array[int]"
    ended_ns: "array[int]"
    partition: "array[int]"
    key: "array[int]"
    number: "array[int]"
    late_us: "array[int]"
    """By how much each ended behind its due time."""

    def within(self, since_ns: int, until_ns: int) -> range:
        """The places of those that ended in ``[since, until)``."""
        return range(bisect_left(self.ended_ns, since_ns), bisect_left(self.ended_ns, until_ns))


def notes_of(raw: bytes, who: str) -> Notes:
    """The notes in a file: up to the first one that is zero."""
    whole = memoryview(raw)[: len(raw) - len(raw) % NOTE_BYTES]
    wide, narrow = whole.cast("Q"), whole.cast("I")
    count = _count(wide)
    wide, narrow = wide[: count * WORDS // 2], narrow[: count * WORDS]
    times = [array("Q", wide[n :: WORDS // 2].tolist()) for n in range(2)]
    return Notes(who, times[0], times[1], *(array("I", narrow[n::WORDS].tolist()) for n in (4, 6, 7, 5)))


def count_of(raw: "memoryview[int]") -> int:
    """How many notes there are in a file, without reading all of it."""
    return _count(raw[: len(raw) - len(raw) % NOTE_BYTES].cast("B").cast("Q"))


def _count(wide: "memoryview[int]") -> int:
    low, high = 0, len(wide) * 2 // WORDS
    while low < high:
        middle = (low + high) // 2
        if wide[middle * WORDS // 2 + 1]:
            low = middle + 1
        else:
            high = middle
    return low


def prove(notes: Collection[Notes], counts: Sequence[int]) -> int:
    """Every record was handled once, and each key's in their order, none before the one before it had ended.

    ``counts``: how many records each key has. How many records there were. Raises Unproven.
    """
    first = [0, *accumulate(counts)]
    began, ended = (array("Q", bytes(8 * first[-1])) for _ in range(2))
    doubled = unknown = 0
    for of in notes:
        for key, number, began_ns, ended_ns in zip(of.key, of.number, of.began_ns, of.ended_ns, strict=True):
            if key >= len(counts) or number >= counts[key]:
                unknown += 1
                continue
            at = first[key] + number
            doubled += bool(ended[at])
            began[at], ended[at] = began_ns, ended_ns
    missing = sum(not one for one in ended)
    late = sum(
        began[at] < ended[at - 1]
        for key, count in enumerate(counts)
        for at in range(first[key] + 1, first[key] + count)
    )
    wrong = {"doubled": doubled, "unknown": unknown, "missing": missing, "out of order": late}
    if any(wrong.values()):
        raise Unproven(f"of {first[-1]:,} records: " + ", ".join(f"{n:,} {what}" for what, n in wrong.items() if n))
    return int(first[-1])


def prove_all_came(notes: Collection[Notes], counts: Sequence[int]) -> int:
    """Every record was handled, once or, where its process was killed before it committed, again; how many were handled
    again. Raises Unproven.
    """
    seen = [bytearray(count) for count in counts]
    again = 0
    for of in notes:
        for key, number in zip(of.key, of.number, strict=True):
            again += seen[key][number]
            seen[key][number] = 1
    if missing := sum(one.count(0) for one in seen):
        raise Unproven(f"of {sum(counts):,} records {missing:,} are missing")
    return again


def stood_still_ns(
    old: Notes, new: Notes, moved: Points, points: Mapping[int, int], asked_ns: int, until_ns: float
) -> tuple[int, int] | None:
    """When the last record of a range ended that its old owner handled, and when the first one began behind a request
    that its new owner did, which has it until ``until_ns``. ``points``: of the keys. None where one handled none.
    """
    begins = _first_began(new, moved, points, asked_ns)
    if begins is None or begins >= until_ns:
        return None
    for at in reversed(range(bisect_right(old.ended_ns, begins))):
        if _lies_in(old, at, moved, points):
            return old.ended_ns[at], begins
    return None


def _first_began(notes: Notes, moved: Points, points: Mapping[int, int], since_ns: int) -> int | None:
    """When the first record of a range began, behind some time."""
    least: int | None = None
    for at in range(bisect_left(notes.ended_ns, since_ns), len(notes.ended_ns)):
        if least is not None and notes.ended_ns[at] > least + RUNS_NS_MAX:
            break
        began_ns = notes.began_ns[at]
        if began_ns >= since_ns and (least is None or began_ns < least) and _lies_in(notes, at, moved, points):
            least = began_ns
    return least


def _lies_in(notes: Notes, at: int, moved: Points, points: Mapping[int, int]) -> bool:
    return notes.partition[at] == moved.partition and moved.first <= points[notes.key[at]] < moved.end
