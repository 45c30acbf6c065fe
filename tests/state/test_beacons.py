"""Whether a changelog is the one that the logs know: a beacon for each writer, against a model of two logs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylanes.state.changelog import Beacon, beacon_key, encode_beacon
from keylanes.state.keys import state_key
from keylanes.state.memory import MemoryCopy
from keylanes.state.restore import (
    BEACON_NEAR,
    BEACON_STEP,
    BeaconSearch,
    ChangelogUnfit,
    Writers,
    check_beacons,
    check_table,
    spans_from_end,
)


class Entry(NamedTuple):
    """A record of a changelog."""

    offset: int
    key: bytes | None
    value: bytes | None


def writers(changed: dict[int, int], *living: int, highest: int | None = 9) -> Writers:
    """Who changed the state; all beacons are required."""
    return Writers(changed, frozenset(changed), frozenset(living), highest)


def beacon(offset: int, incarnation: int, transaction: int | None) -> Entry:
    """A beacon's record; None: it is deleted."""
    key, value = encode_beacon(Beacon(incarnation, transaction or 0))
    return Entry(offset, key, None if transaction is None else value)


def searched(records: Sequence[Entry], expected: Writers, high: int, batch: int = 1_000) -> BeaconSearch:
    """Search as a reader does: span by span from the end, each in batches, of which the last may go beyond it."""
    search = BeaconSearch(expected, high, 0)
    while (span := search.span()) is not None:
        there = [record for record in records if record.offset >= span[0]]
        for at in range(0, len(there), batch):
            if at and there[at].offset >= span[1]:
                break
            search.read(there[at : at + batch])
    return search


# --- the search ----------------------------------------------------------------------------------------------------


@given(st.integers(0, 1 << 40), st.integers(1, BEACON_NEAR))
def test_spans_cover_the_changelog(high: int, step: int) -> None:
    """They meet from the end to 0, and are few."""
    spans = list(spans_from_end(high, step))
    assert len(spans) < 12
    ends = [high, *(first for first, _ in spans)]
    assert [end for _, end in spans] == ends[:-1]
    assert ends[-1] == 0


@pytest.mark.parametrize("batch", [1, 2, 1_000])
def test_the_newest_of_each_writer(batch: int) -> None:
    """Of each writer the beacon that stands last, wherever the others' stand; none of those at or above the watermark,
    and a deleted one is known as such.
    """
    records = [
        beacon(0, 1, 8),
        beacon(2, 3, 5),
        beacon(3, 2, 1),
        beacon(300, 1, 9),
        Entry(301, state_key(1, 0, b"k"), b"v"),
        beacon(302, 3, None),
        beacon(400, 1, 10),
        beacon(401, 4, 1),
    ]
    assert searched(records, writers({1: 9, 2: 1}), 400, batch).found == {1: 9, 2: 1, 3: None}


def test_no_more_is_read_than_is_needed() -> None:
    """With all that are required in the last records these are enough; a writer that was silent is looked for."""
    records = [beacon(i, 1 if i else 2, i) for i in range(1_000)]
    search = BeaconSearch(writers({1: 999}), 1_000, 1_000)
    assert search.span() == (1_000 - BEACON_STEP, 1_000)
    search.read(records[1_000 - BEACON_STEP :])
    assert search.span() is None
    assert searched(records, writers({1: 999, 2: 0}), 1_000).found == {1: 999, 2: 0}


@given(st.integers(0, 1 << 40), st.data())
def test_a_near_copy_is_looked_at_as_a_whole(high: int, data: st.DataObject) -> None:
    """Whoever made it left its beacon not far below: that and the tail are one span. One that is far is no reason to
    read much.
    """
    position = data.draw(st.integers(0, high))
    span = BeaconSearch(writers({1: 1}), high, position).span()
    lacks = high - position
    reach = lacks + BEACON_STEP if lacks + BEACON_STEP <= BEACON_NEAR else BEACON_STEP
    assert span == ((max(0, high - reach), high) if high else None)


def test_nobody_is_required() -> None:
    """A changelog is read until a beacon is found, or to its start: there should be none."""
    assert searched([beacon(3, 1, 2)], writers({}), 1_000).found == {1: 2}
    assert searched([beacon(3, 1, None)], writers({}), 1_000).found == {1: None}
    assert BeaconSearch(writers({}), 0, 0).span() is None


def test_damaged_beacon() -> None:
    """It is refused with its position; one that a newer one stands over is nothing any more."""
    junk = Entry(4, beacon_key(1), b"junk")
    with pytest.raises(ChangelogUnfit, match="position 4 is no state: a beacon has 8 bytes; seen 4"):
        searched([beacon(0, 1, 1), junk], writers({1: 1}), 5)
    searched([junk, beacon(5, 1, 1)], writers({1: 1}), 6).check()


# --- the comparison ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({}, writers({})),
        ({1: 7}, writers({1: 7})),
        ({1: 7, 2: 3}, writers({1: 7, 2: 3}, 2)),
        ({1: 7, 2: 4}, writers({1: 7, 2: 3}, 2)),  # it goes on writing
        ({1: 7, 2: 1}, writers({1: 7}, 2)),  # its first change was not read yet
        ({1: None, 2: 7}, writers({2: 7})),  # was succeeded
        ({1: None, 2: 4}, writers({1: 7, 2: 3}, 2)),  # was succeeded since
        ({1: None, 2: 1}, writers({1: 7}, 2)),
        ({1: 8, 2: 3}, writers({1: 7, 2: 3}, highest=None)),
        ({1: 8, 20: 3}, writers({1: 7}, highest=None)),
        ({1: 7}, Writers({1: 7, 2: 3}, frozenset([1]), frozenset(), 9)),  # 2 is none of the newest
    ],
)
def test_beacons_in_order(found: dict[int, int | None], expected: Writers) -> None:
    """Of a fenced writer its last transaction, of one that lives that or a later one."""
    check_beacons(found, expected)


@pytest.mark.parametrize(
    ("found", "expected", "words"),
    [
        ({}, writers({1: 7}), "up to no transaction of incarnation 1.*says that transaction 7 was the last of that"),
        ({}, writers({1: 7}, 1), "up to no transaction of incarnation 1"),
        ({}, writers({1: 7}, highest=None), "up to no transaction of incarnation 1"),
        ({1: 6}, writers({1: 7}), "up to transaction 6 of incarnation 1.*says that transaction 7 was the last of that"),
        ({1: 8}, writers({1: 7}), "up to transaction 8 of incarnation 1.*says that transaction 7 was the last of that"),
        ({1: 6}, writers({1: 7}, 1), "up to transaction 6 of incarnation 1"),
        ({1: 6}, writers({1: 7}, highest=None), "up to transaction 6 of incarnation 1"),
        ({1: 7}, writers({1: 7, 2: 3}), "up to no transaction of incarnation 2"),
        ({1: None}, writers({1: 7}), "up to no transaction of incarnation 1"),
        ({1: None, 2: 3}, writers({1: 7, 2: 3}, 2), "up to no transaction of incarnation 1"),  # nobody went on
        ({1: None, 2: 4}, writers({1: 7, 2: 3}), "up to no transaction of incarnation 1"),
        ({2: 4}, writers({1: 7, 2: 3}, 2), "up to no transaction of incarnation 1"),  # not deleted, but lost
        ({1: 7, 2: 3}, writers({1: 7}), "transaction 3 of incarnation 2.*has changed nothing, or that another writer"),
        ({1: 7, 10: 3}, writers({1: 7}), "transaction 3 of incarnation 10.*only incarnations up to 9 have ever taken"),
        ({1: 6}, Writers({1: 7, 2: 3}, frozenset([2]), frozenset(), 9), "transaction 6 of incarnation 1"),
        ({1: None, 2: 1}, Writers({1: 7}, frozenset([1]), own=2), "up to no transaction of incarnation 1"),  # not by us
    ],
)
def test_beacons_that_differ(found: dict[int, int | None], expected: Writers, words: str) -> None:
    """Missing, lower or of another transaction than the last, and of a writer that changed nothing: both logs' word is
    in the message.
    """
    with pytest.raises(ChangelogUnfit, match=words):
        check_beacons(found, expected)


def test_a_table_has_all_beacons() -> None:
    """Where the broker keeps a changelog by key they are read among the state of the first point, and judged alike."""
    table = MemoryCopy()
    state = [(state_key(0, store, b"%d" % i), b"v") for store in range(3) for i in range(700)]
    table.write([*state, (state_key(1, 0, b"k"), b"v")])
    check_table(table, writers({}))
    table.write([encode_beacon(Beacon(1, 7)), encode_beacon(Beacon(70_000, 3))])
    check_table(table, writers({1: 7, 70_000: 3}, highest=70_000))
    with pytest.raises(ChangelogUnfit, match="transaction 3 of incarnation 70000"):
        check_table(table, writers({1: 7}, highest=70_000))
    with pytest.raises(ChangelogUnfit, match="no transaction of incarnation 3"):
        check_table(table, writers({1: 7, 3: 1, 70_000: 3}, highest=70_000))
    table.write([(beacon_key(1), b"junk")])
    with pytest.raises(ChangelogUnfit, match="its key 000000000000000001 is no state: a beacon has 8 bytes; seen 4"):
        check_table(table, writers({}))


# --- against a model of both logs ----------------------------------------------------------------------------------


@dataclass
class Member:
    """A writer: ``open`` is the transaction whose records are in the changelog and whose outcome is open."""

    transaction: int = 0
    open: int | None = None
    succeeds: frozenset[int] = frozenset()
    named: frozenset[int] = frozenset()
    """Whom the open transaction succeeds."""


@dataclass
class Logs:
    """A changelog and an offset log that several members write to, each in transactions of its own: first to the
    changelog, then to the offset log, and then it is visible. So the two have no common order.
    """

    members: dict[int, Member] = field(default_factory=dict)
    living: set[int] = field(default_factory=set)
    changelog: list[tuple[Entry, tuple[int, int]]] = field(default_factory=list)
    """Records with (incarnation, transaction)."""
    visible: set[tuple[int, int]] = field(default_factory=set)
    changed: dict[int, int] = field(default_factory=dict)
    """The fold of the offset log."""

    def writers(self) -> Writers:
        """What a member reads of the logs."""
        changed, highest = dict(self.changed), max(self.members, default=0)
        return Writers(changed, frozenset(changed), frozenset(self.living), highest)

    def records(self) -> list[Entry]:
        """What a committed reader sees of the changelog."""
        return [record for record, written_by in self.changelog if written_by in self.visible]

    def join(self, expected: Writers, found: bool) -> None:
        """A member that restored."""
        fenced = {i for i in expected.changed if expected.is_fenced(i)} if found else set()
        incarnation = len(self.members) + 1
        self.members[incarnation] = Member(succeeds=frozenset(fenced))
        self.living.add(incarnation)

    def change(self, incarnation: int) -> None:
        """A transaction begins: its records are in the changelog."""
        member = self.members[incarnation]
        if member.open is None:
            member.transaction += 1
            member.open, member.named = member.transaction, member.succeeds
            for record in (
                *(beacon(0, other, None) for other in sorted(member.named)),
                beacon(0, incarnation, member.open),
            ):
                entry = record._replace(offset=len(self.changelog))
                self.changelog.append((entry, (incarnation, member.open)))

    def commit(self, incarnation: int) -> None:
        """It ends: the offset log has it, and both are visible."""
        member = self.members[incarnation]
        if member.open is not None:
            self.visible.add((incarnation, member.open))
            for other in member.named:
                self.changed.pop(other, None)
            self.changed[incarnation] = member.open
            member.open, member.succeeds = None, member.succeeds - member.named

    def fence(self, incarnation: int) -> None:
        """What is open is aborted; it writes no more."""
        self.members[incarnation].open = None
        self.living.discard(incarnation)


STEPS = st.lists(
    st.tuples(st.sampled_from(["change", "commit", "change", "commit", "fence", "join"]), st.integers(0, 2)),
    max_size=40,
)


def step(logs: Logs, name: str, which: int) -> None:
    """A step of one of the living, or one more member, which finds the changelog in order."""
    if name == "join":
        if len(logs.living) < 3:
            expected = logs.writers()
            searched(logs.records(), expected, len(logs.changelog)).check()
            logs.join(expected, found=True)
    elif logs.living:
        living = sorted(logs.living)
        getattr(logs, name)(living[which % len(living)])


@settings(max_examples=1_000)
@given(STEPS, STEPS, st.data())
def test_several_writers(
    before: Sequence[tuple[str, int]], meanwhile: Sequence[tuple[str, int]], data: st.DataObject
) -> None:
    """Whatever the members' transactions do between each other, whoever is fenced, and whatever happens after the logs
    were read: the whole changelog is taken. One that lost its tail with the last change of a fenced writer is not.
    """
    logs = Logs()
    logs.join(logs.writers(), found=True)
    for name, which in before:
        step(logs, name, which)
    expected = logs.writers()
    last = {
        incarnation: max(record.offset for record, written_by in logs.changelog if written_by == (incarnation, number))
        for incarnation, number in logs.changed.items()
    }
    if last:
        cut = data.draw(st.sampled_from(sorted(last.values())))
        with pytest.raises(ChangelogUnfit, match="it holds state up to"):
            searched([record for record in logs.records() if record.offset < cut], expected, cut).check()
    known = max(logs.members)
    for name, which in meanwhile:
        if name != "join":
            step(logs, name, which)
    assert max(logs.members) == known
    searched(logs.records(), expected, len(logs.changelog)).check()
