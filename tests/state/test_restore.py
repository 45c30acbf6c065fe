"""What a copy lacks of its changelog: the plan against a twin that only knows the last value of each key."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import WHOLE, KeyRange
from keylanes.keyrange.steps import Steps
from keylanes.state.changelog import beacon_key
from keylanes.state.keys import point_in, state_key
from keylanes.state.restore import (
    ChangelogUnfit,
    Cleared,
    Plan,
    plan_restore,
)
from keylanes.state.tables import Change, Mark, Marker

from ..tiers.marks import tier

pytestmark = tier("check")

QUARTER = SPACE_END // 4
QUARTERS = [KeyRange(i * QUARTER, (i + 1) * QUARTER) for i in range(4)]
RETENTION = 100
KEYS = [state_key(quarter.first + near, 0, b"k") for quarter in QUARTERS for near in (0, QUARTER - 1)]


class Entry(NamedTuple):
    """A record of a changelog."""

    offset: int
    key: bytes | None
    value: bytes | None


def plan(
    held: Sequence[KeyRange] = (WHOLE,),
    markers: Steps[Marker] | None = None,
    start: int = 0,
    high: int = 100,
    now_ms: int = 1_000,
) -> Plan:
    """A plan; what is not named is ordinary."""
    return plan_restore(held, Steps() if markers is None else markers, start, high, now_ms, RETENTION)


def at(*pieces: tuple[KeyRange, int, int]) -> Steps[Marker]:
    """Markers from (range, position, time)."""
    return Steps((within.first, within.end, Marker(position, time)) for within, position, time in pieces)


# --- the plan ------------------------------------------------------------------------------------------------------


def test_nothing_is_held() -> None:
    """Without a range there is nothing to read, to clear or to mark."""
    made = plan(held=())
    assert (made.position, made.offsets, made.cleared, made.marks(100)) == (100, 0, (), [])


def test_copy_that_never_was() -> None:
    """Points without a marker are read from 0 on, and cleared without a word: nothing is lost."""
    made = plan()
    assert made.position == 0
    assert made.cleared == (Cleared(WHOLE, ""),)
    assert made.marks(40) == [(0, SPACE_END, Marker(40, 1_000))]


def test_warm_copy_reads_its_tail() -> None:
    """A copy goes on from its marker; that keeps its time until the high watermark is reached."""
    made = plan(markers=at((WHOLE, 90, 970)))
    assert (made.position, made.offsets, made.cleared) == (90, 10, ())
    assert made.marks(95) == [(0, SPACE_END, Marker(95, 970))]
    assert made.marks(101) == [(0, SPACE_END, Marker(101, 1_000))]


def test_each_range_from_its_own_marker() -> None:
    """One pass from the least position; a range's records below its own marker are passed over, and its marker stays
    until the pass has come to it.
    """
    first, second, third, _ = QUARTERS
    made = plan(held=[first, second, third], markers=at((first, 20, 990), (second, 60, 980), (third, 100, 1)))
    assert (made.position, made.cleared) == (20, ())
    records = [Entry(offset, key, b"v") for offset in (19, 20, 59, 60, 99) for key in (KEYS[1], KEYS[3], KEYS[7])]
    changed = [
        (offset, key)
        for offset in (19, 20, 59, 60, 99)
        for key, _ in made.apply([e for e in records if e.offset == offset])
    ]
    assert changed == [(20, KEYS[1]), (59, KEYS[1]), (60, KEYS[1]), (60, KEYS[3]), (99, KEYS[1]), (99, KEYS[3])]
    assert made.apply(records) == [(key, b"v") for _, key in changed]
    assert made.marks(20) == []
    assert made.marks(60) == [(*_ends(first), Marker(60, 980))]
    assert made.marks(61) == [(*_ends(first), Marker(61, 980)), (*_ends(second), Marker(61, 980))]
    assert made.marks(100) == [(0, third.end, Marker(100, 1_000))]


def test_plan_that_goes_on() -> None:
    """From one watermark to the next: the time of a marker is that of the last one that was reached; points that are
    left out have no more marks, and nothing is changed in them.
    """
    first, second = QUARTERS[:2]
    markers = Steps([(*_ends(first), Marker(20, 980)), (*_ends(second), Marker(60, 990))])
    made = plan([first, second], markers, high=100)
    early = made.further(50, 120, 1_100)
    assert (early.position, early.high) == (50, 120)
    assert early.marks(70) == [(*_ends(first), Marker(70, 980)), (*_ends(second), Marker(70, 980))]
    later = made.further(105, 120, 1_100)
    assert later.marks(110) == [(0, second.end, Marker(110, 1_000))]
    assert later.marks(120) == [(0, second.end, Marker(120, 1_100))]
    left = later.without(Steps([(*_ends(first), True)]))
    assert left.marks(120) == [(*_ends(second), Marker(120, 1_100))]
    assert left.apply([Entry(110, state_key(first.first, 0, b"k"), b"v")]) == []
    key = state_key(second.first, 0, b"k")
    assert left.apply([Entry(110, key, b"v"), Entry(104, key, b"old")]) == [(key, b"v")]


def test_whole_partition_from_two_markers() -> None:
    """With all points held, too, records below their range's marker are passed over, and none that begins above all."""
    first, *rest = QUARTERS
    made = plan(markers=at((first, 20, 990), *((within, 60, 990) for within in rest)))
    records = [Entry(offset, key, b"v") for offset in (59, 60) for key in (KEYS[0], KEYS[2])]
    assert made.apply(records) == [(KEYS[0], b"v"), (KEYS[0], b"v"), (KEYS[2], b"v")]
    assert made.apply(records[2:]) == [(KEYS[0], b"v"), (KEYS[2], b"v")]


def test_marker_ahead_of_the_changelog() -> None:
    """A copy that knows more than its changelog holds is cleared, and the reason names both positions."""
    first, second, *_ = QUARTERS
    made = plan(held=[first, second], markers=at((first, 101, 1_000), (second, 100, 1_000)))
    assert made.position == 0
    (cleared,) = made.cleared
    assert cleared.within == first
    assert "position 101" in cleared.reason
    assert "ends at 100" in cleared.reason


@pytest.mark.parametrize(("time_ms", "is_cleared"), [(950, False), (949, True), (1_051, True)])
def test_old_marker(time_ms: int, is_cleared: bool) -> None:
    """Older than half of delete.retention.ms is too old, and so is a time that far ahead: the clock was set back."""
    made = plan(markers=at((WHOLE, 99, time_ms)))
    assert bool(made.cleared) == is_cleared
    assert all("h old" in cleared.reason for cleared in made.cleared)
    assert made.position == (0 if is_cleared else 99)


def test_old_marker_at_the_end() -> None:
    """A copy that lacks nothing can't have missed a tombstone, however old it is; its time is renewed."""
    made = plan(markers=at((WHOLE, 100, 1)))
    assert (made.position, made.cleared) == (100, ())
    assert made.marks(100) == [(0, SPACE_END, Marker(100, 1_000))]


def test_changelog_without_its_head() -> None:
    """Nothing can be made whole from a changelog that does not begin at 0, not even a copy that is."""
    with pytest.raises(ChangelogUnfit, match="begins at position 7"):
        plan(markers=at((WHOLE, 100, 1_000)), start=7)


@pytest.mark.parametrize("key", [None, b"", b"\x00", b"user-7", state_key(1, 1, b"abc")[:-1]])
@pytest.mark.parametrize("held", [WHOLE, QUARTERS[1]])
def test_record_that_is_no_state(key: bytes | None, held: KeyRange) -> None:
    """A record without a state key is refused with its position, whichever ranges are held."""
    records = [Entry(3, KEYS[0], b"v"), Entry(4, beacon_key(1), b""), Entry(5, key, b"v")]
    with pytest.raises(ChangelogUnfit, match="position 5"):
        plan(held=[held]).apply(records)


def test_beacon_is_no_change() -> None:
    """Beacons don't enter the copy."""
    beacons = [Entry(1, beacon_key(1), b""), Entry(2, beacon_key(2), None)]
    assert plan().apply([*beacons, Entry(3, KEYS[0], None)]) == [(KEYS[0], None)]


# --- against the twin ----------------------------------------------------------------------------------------------


@dataclass
class World:
    """A changelog that is compacted, a copy that follows it, and the plain truth: the last value of each key.

    A compaction keeps of each key the newest record. A tombstone that it meets for the first time stays for
    ``RETENTION`` from then on; a later compaction takes it away.
    """

    now: int = 1_000
    high: int = 0
    log: list[Entry] = field(default_factory=list)
    horizons: dict[int, int] = field(default_factory=dict)
    truth: dict[bytes, bytes | None] = field(default_factory=dict)
    copied: dict[bytes, bytes] = field(default_factory=dict)
    markers: Steps[Marker] = field(default_factory=Steps)
    whole: frozenset[int] = frozenset()
    """Quarters that the copy follows."""

    def write(self, key: int, value: bytes | None) -> None:
        """A transaction; behind its record stands its own marker, a hole."""
        self.log.append(Entry(self.high, KEYS[key], value))
        self.truth[KEYS[key]] = value
        self.high += 2

    def commit(self, key: int, value: bytes | None) -> None:
        """A transaction that the copy follows at once."""
        self.write(key, value)
        self.follow(key // 2, 2)

    def wait(self, time: int) -> None:
        """Time passes."""
        self.now += time

    def vanish(self) -> None:
        """So long that no tombstone is left."""
        self.compact()
        self.wait(RETENTION)
        self.compact()

    def compact(self) -> None:
        """See the class."""
        newest = {entry.key: entry.offset for entry in self.log}
        self.log = [entry for entry in self.log if newest[entry.key] == entry.offset]
        dropped = {offset for offset, horizon in self.horizons.items() if horizon <= self.now}
        self.log = [entry for entry in self.log if entry.offset not in dropped]
        for entry in self.log:
            if entry.value is None:
                self.horizons.setdefault(entry.offset, self.now + RETENTION)

    def follow(self, quarter: int, keys: int) -> None:
        """After commits: the values of all keys of a quarter and its marker; or of one key, and the marker is late."""
        if quarter in self.whole:
            mine = KEYS[2 * quarter : 2 * quarter + (2 if keys == 2 else 1)]
            self.put([(key, self.truth.get(key)) for key in mine])
            if keys == 2:
                self.mark([(*_ends(QUARTERS[quarter]), Marker(max(0, self.high - 1), self.now))])

    def put(self, changes: Sequence[Change]) -> None:
        """Write into the copy."""
        for key, value in changes:
            if value is None:
                self.copied.pop(key, None)
            else:
                self.copied[key] = value

    def mark(self, marks: Sequence[Mark | tuple[int, int, None]]) -> None:
        """Set markers, or take them away."""
        self.markers = self.markers.replace(marks)

    def restore(self, held: frozenset[int], batch: int, batches_max: int) -> None:
        """Restore, up to a crash after so many batches. Whoever comes to the end has the truth of what is held, and of
        the rest what was there.
        """
        ranges = [QUARTERS[quarter] for quarter in held]
        others = {key: value for key, value in self.copied.items() if not _is_in(key, ranges)}
        outside = self.markers.replace((*_ends(within), None) for within in ranges)
        made = plan_restore(ranges, self.markers, 0, self.high, self.now, RETENTION)
        self.whole = frozenset()
        for within, _ in made.cleared:
            self.put([(key, None) for key in KEYS if within.contains(point_in(key))])
            self.mark([(*_ends(within), None)])
        records = [entry for entry in self.log if entry.offset >= made.position]
        for i in range(0, len(records), batch):
            if i >= batch * batches_max:
                break
            taken = records[i : i + batch]
            position = self.high if i + batch >= len(records) else taken[-1].offset + 1
            self.put(made.apply(taken))
            self.mark(made.marks(position))
        else:
            self.mark(made.marks(self.high))
            self.whole = held
            assert {k: v for k, v in self.copied.items() if _is_in(k, ranges)} == {
                k: v for k, v in self.truth.items() if v is not None and _is_in(k, ranges)
            }
            for within in ranges:
                assert self.markers.is_constant(*_ends(within), Marker(self.high, self.now))
        assert {key: value for key, value in self.copied.items() if not _is_in(key, ranges)} == others
        assert self.markers.replace((*_ends(within), None) for within in ranges) == outside


def _ends(within: KeyRange) -> tuple[int, int]:
    return within.first, within.end


def _is_in(key: bytes, ranges: Sequence[KeyRange]) -> bool:
    return any(within.contains(point_in(key)) for within in ranges)


HELD = st.frozensets(st.sampled_from(range(2)), min_size=1)
_keys, _values = st.sampled_from(range(4)), st.sampled_from([None, b"a", b"b"])
STEPS = st.one_of(
    st.tuples(st.just("write"), _keys, _values),
    st.tuples(st.just("commit"), _keys, _values),
    st.tuples(st.just("follow"), st.sampled_from(range(2)), st.sampled_from([1, 2])),
    st.tuples(st.just("compact")),
    st.tuples(st.just("wait"), st.sampled_from([30, 50, 60, 101])),
    st.tuples(st.just("vanish")),
    st.tuples(st.just("restore"), HELD, st.integers(1, 2), st.sampled_from([0, 1, 2, 99])),
)


@settings(max_examples=1_000)
@given(st.lists(STEPS, max_size=25), HELD)
def test_restored_copies_hold_the_truth(steps: Sequence[tuple[object, ...]], held: frozenset[int]) -> None:
    """Whatever was compacted, deleted, followed in part, broken off and how old it is: who restores to the end holds
    the last values of the ranges that are held, and touched no other.
    """
    world = World()
    world.restore(frozenset(range(2)), 1, 1)
    for name, *arguments in steps:
        getattr(world, str(name))(*arguments)
    world.restore(held, 3, 99)
