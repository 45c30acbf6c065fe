"""What was heard in the signals, against a twin that looks through all records each time it is asked."""

from collections.abc import Iterable
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from keylanes.group.signals_fold import (
    COORDINATORS,
    FORGOTTEN_MAX,
    MEMBERS,
    PARTITIONS,
    REQUESTS_MAX,
    Heard,
    News,
    partition_of,
)
from keylanes.offsets.signals import (
    DIED,
    Beat,
    CoordinatorBeat,
    Copies,
    Copy,
    ExpelAsked,
    JoinAsked,
    LeaveAsked,
    MoveAsked,
    Signal,
)

from ..stage.planting import changed
from ..tiers.marks import tier
from .finding import each_is_found

pytestmark = tier("check")

SESSION_MS, INTERVAL_MS = 10_000, 1_000
BIRTHS = ("a", "b", "c")
NEWS = ((0, 0), (5, 2_000), (9, 20_000))
"""Positions of the control log that hold an event, and when it was written."""


def join_asked(birth: str, instance: str = "") -> JoinAsked:
    """A request to take part that asks for little."""
    return JoinAsked(instance, birth, 1, "", "", 1.0, 1, (), (), False, (), 0)


class Record(NamedTuple):
    """One record of the signals."""

    partition: int
    at_ms: int
    signal: Signal


def of(birth: str) -> int:
    """The partition of somebody without a name."""
    return partition_of("", birth)


BIRTH = st.sampled_from(BIRTHS)
SIGNALS = st.one_of(
    st.builds(join_asked, BIRTH),
    st.builds(lambda birth, at: Beat(BIRTHS.index(birth) + 1, birth, at, 0, 0, 0, ()), BIRTH, st.integers(0, 10)),
    st.builds(lambda birth: LeaveAsked(BIRTHS.index(birth) + 1, birth, 0, is_done=False), BIRTH),
    st.builds(
        lambda term, resigns: CoordinatorBeat(term, 1, resigns, INTERVAL_MS, False, (), (), ()),
        st.integers(1, 3),
        st.booleans(),
    ),
    st.builds(lambda n: MoveAsked(f"m{n}", "x", "t", 0, 0, 1, 0, 0), st.integers(0, 2)),
    st.builds(lambda n: ExpelAsked(f"e{n}", "x", n, ""), st.integers(0, 2)),
)


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    """In order of time; who has a partition keeps to it, but the coordinator beats in all."""
    at_ms, found = 0, list[Record]()
    for signal in draw(st.lists(SIGNALS, max_size=25)):
        at_ms += draw(st.sampled_from((0, 400, 1_000, 2_500, 3_001, 15_000)))
        own = of(signal.birth) if isinstance(signal, JoinAsked | Beat | LeaveAsked) else 1
        partition = (
            draw(st.sampled_from((COORDINATORS, COORDINATORS, 1, MEMBERS)))
            if isinstance(signal, CoordinatorBeat)
            else own
        )
        found.append(Record(partition, at_ms, signal))
    return found


def folded(found: Iterable[Record]) -> Heard:
    """The production's fold."""
    heard = Heard(SESSION_MS, INTERVAL_MS)
    for news in NEWS:
        heard.news.add(*news)
    for record in found:
        heard.hear(*record)
    return heard


def is_deaf(record: Record) -> bool:
    """Whether who beats here missed news that are older than a session."""
    beat = record.signal
    assert isinstance(beat, Beat)
    missed = [at_ms for position, at_ms in NEWS if position >= beat.control_position]
    return bool(missed) and record.at_ms - missed[0] >= SESSION_MS


def shows(record: Record, birth: str) -> bool:
    """Whether the record shows that somebody lives and hears."""
    match record.signal:
        case Beat(birth=one):
            return one == birth and not is_deaf(record)
        case JoinAsked(birth=one) | LeaveAsked(birth=one):
            return one == birth
    return False


def answers(record: Record, birth: str) -> bool:
    """Whether the record shows that somebody does not wait to join: it has joined, or leaves."""
    match record.signal:
        case Beat(birth=one):
            return one == birth and record.partition != COORDINATORS
        case LeaveAsked(birth=one):
            return one == birth
    return False


@given(records())
def test_who_is_silent_is_told_by_the_records_of_its_own_partition(found: list[Record]) -> None:
    """Steps of more than three intervals are none, and all begin anew behind one; a deaf beat is no life."""
    heard = folded(found)
    for birth in BIRTHS:
        silent_ms, own = 0, [record for record in found if record.partition == of(birth)]
        for before, record in zip([None, *own], own, strict=False):
            step_ms = 0 if before is None else record.at_ms - before.at_ms
            silent_ms = 0 if step_ms > 3 * INTERVAL_MS or shows(record, birth) else silent_ms + step_ms
        assert heard.silent_ms("", birth) == silent_ms


@given(records())
def test_requests_are_known_until_they_are_answered(found: list[Record]) -> None:
    """To join, to move, to expel, to leave: the last word of each, in the order in which they came first. Who beats has
    joined, and who leaves does not want to any more.
    """
    heard, signals = folded(found), [record.signal for record in found]
    asked: dict[str, None] = {}
    for record in found:
        if isinstance(record.signal, JoinAsked):
            asked.setdefault(record.signal.birth)
        for birth in BIRTHS:
            if answers(record, birth):
                asked.pop(birth, None)
    assert list(heard.join_requests) == list(asked)
    assert set(heard.moves) == {s.request for s in signals if isinstance(s, MoveAsked)}
    assert set(heard.expels) == {s.request for s in signals if isinstance(s, ExpelAsked)}
    assert set(heard.leaving) == {s.incarnation for s in signals if isinstance(s, LeaveAsked)}
    for request in (*heard.join_requests, *heard.moves, *heard.expels):
        heard.drop_request(request)
    assert not any((heard.join_requests, heard.join_request_ms, heard.moves, heard.expels))


@given(st.lists(st.tuples(BIRTH, st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=3)), max_size=8))
def test_of_copies_the_last_word_of_each_member_counts(said: list[tuple[str, list[tuple[int, bool]]]]) -> None:
    """What it does not name any more is not ready; and nothing is when its partition was not listened to."""
    heard = Heard(SESSION_MS, INTERVAL_MS)
    last: dict[str, dict[int, bool]] = {birth: {} for birth in BIRTHS}
    for birth, told in said:
        last[birth] = dict(told)
        copies = tuple(Copy(move, 1, 2, 3, is_ready) for move, is_ready in told)
        heard.hear(of(birth), 0, Copies(BIRTHS.index(birth) + 1, copies))
    for birth in BIRTHS:
        for move in range(1, 6):
            assert heard.is_ready(BIRTHS.index(birth) + 1, move) is last[birth].get(move, False)
    heard.begin_anew(of("a"))
    assert set(heard.copies) == {BIRTHS.index(birth) + 1 for birth, _ in said if of(birth) != of("a")}
    heard.keep({})
    assert not heard.copies


@given(records())
def test_the_last_beat_of_the_highest_term_is_the_coordinators(found: list[Record]) -> None:
    """In its own partition alone, and never one of a term before."""
    wanted: CoordinatorBeat | None = None
    for record in found:
        if record.partition == COORDINATORS and isinstance(record.signal, CoordinatorBeat):
            wanted = record.signal if wanted is None or record.signal.term >= wanted.term else wanted
    assert folded(found).coordinator == wanted


@given(records(), BIRTH, BIRTH)
def test_whoever_is_heard_behind_a_request_lives_beside_it(found: list[Record], birth: str, other: str) -> None:
    """By the time of its own partition, from the first request on that waits; before an outage counts for nothing."""
    since = max([n for n, r in enumerate(found) if answers(r, other)], default=-1)
    first = next((n for n, r in enumerate(found) if n > since and r.signal == join_asked(other)), None)
    if first is None:
        return
    own = [r for r in found if r.partition == of(birth)]
    time_ms, times = 0, {}
    for before, record in zip([None, *own], own, strict=False):
        step_ms = 0 if before is None else record.at_ms - before.at_ms
        time_ms += 0 if step_ms > 3 * INTERVAL_MS else step_ms
        times[id(record)] = time_ms
    since_ms = max([times[id(r)] for r in found[: first + 1] if id(r) in times], default=0)
    gaps = [n for n in range(1, len(own)) if own[n].at_ms - own[n - 1].at_ms > 3 * INTERVAL_MS]
    behind = own[gaps[-1] :] if gaps else own
    wanted = any(shows(r, birth) and times[id(r)] > since_ms for r in behind)
    assert folded(found).beats_since("", birth, other) is wanted


@given(records(), st.lists(BIRTH, unique=True))
def test_what_was_said_before_shows_who_lived_and_no_more(found: list[Record], asking: list[str]) -> None:
    """Silence is what it would be had that been heard, once something is. Nothing is asked for by it, and who asks does
    so behind it.
    """
    heard, whole = folded(Record(of(birth), 0, join_asked(birth)) for birth in asking), folded([])
    for partition in range(COORDINATORS + 1, PARTITIONS):
        heard.begin_anew(partition)
    for birth in asking:
        heard.hear(COORDINATORS, 0, join_asked(birth))
    for record in found:
        if record.partition != COORDINATORS:
            heard.recall(*record)
            whole.hear(*record)
    for birth in BIRTHS:
        assert heard.silent_ms("", birth) == 0, "it may be heard further on"
    for partition in range(COORDINATORS + 1, PARTITIONS):
        at_ms = max([record.at_ms for record in found if record.partition == partition], default=0)
        for one in (heard, whole):
            one.hear(partition, at_ms, Beat(0, "of another", 0, 0, 0, 0, ()))
    for birth in BIRTHS:
        assert heard.silent_ms("", birth) == whole.silent_ms("", birth)
        assert heard.lives("", birth) is whole.lives("", birth)
        assert not any(heard.beats_since("", birth, other) for other in asking)
    assert heard.join_requests.keys() == {*asking}
    assert not any((heard.moves, heard.expels, heard.leaving, heard.release_partitions))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=12), st.integers(0, 25))
def test_news_say_since_when_somebody_has_not_read(steps: list[tuple[int, int]], position: int) -> None:
    """The first event at or behind where it stands."""
    news = News()
    added = sorted({at: 100 * at + n for at, n in steps}.items())
    for one in added:
        news.add(*one)
    assert news.unread_since_ms(position) == next((ms for at, ms in added if at >= position), None)


@given(st.text(), st.text(), st.text())
def test_a_name_keeps_to_its_partition(instance: str, birth: str, later: str) -> None:
    """Whoever comes back under a name is heard where its predecessor was; nobody in the coordinator's."""
    assert partition_of(instance or "x", birth) == partition_of(instance or "x", later)
    assert COORDINATORS < partition_of(instance, birth) < PARTITIONS


def test_who_was_heard_a_moment_ago_lives() -> None:
    """Who was never heard, or not since two intervals, is not known to."""
    heard, at = Heard(SESSION_MS, INTERVAL_MS), partition_of("", "a")
    assert not heard.lives("", "a")
    heard.hear(at, 0, Beat(1, "a", 0, 0, 0, 0, ()))
    heard.hear(at, 2 * INTERVAL_MS - 1, Beat(2, "of another", 0, 0, 0, 0, ()))
    assert heard.lives("", "a")
    heard.hear(at, 2 * INTERVAL_MS, Beat(2, "of another", 0, 0, 0, 0, ()))
    assert not heard.lives("", "a")


def test_requests_do_not_pile_up() -> None:
    """What comes beyond some number is asked for again by who wants it."""
    heard = Heard(SESSION_MS, INTERVAL_MS)
    for n in range(REQUESTS_MAX + 5):
        heard.hear(1, n, ExpelAsked(f"e{n}", "x", n, ""))
    assert len(heard.expels) == REQUESTS_MAX


def test_who_has_died_stays_dead_when_a_partition_is_listened_to_anew() -> None:
    """Whoever stands because the coordinator has died listens to the members anew: what it stands for is not lost."""
    heard = Heard(SESSION_MS, INTERVAL_MS)
    heard.hear(COORDINATORS, 0, ExpelAsked("dead", "its parent", 1, DIED))
    heard.hear(COORDINATORS, 0, ExpelAsked("asked", "an operator", 2, "slow"))
    heard.begin_anew(1)
    assert heard.expels.keys() == {"dead"}
    for n in range(FORGOTTEN_MAX):
        heard.hear(COORDINATORS, n, ExpelAsked(f"gone {n}", "its parent", 10 + n, DIED))
    heard.keep({1: "a", 2: "b"})
    assert heard.expels.keys() == {"dead"}


def test_who_is_over_is_forgotten_when_many_are() -> None:
    """What is kept of those who are over does not grow with their number; who is there stays."""
    heard = Heard(SESSION_MS, INTERVAL_MS)
    for n in range(1, 10 * FORGOTTEN_MAX):
        for signal in (Beat(n, f"m{n}", 0, 0, 0, 0, ()), LeaveAsked(n, f"m{n}", 0, is_done=True)):
            heard.hear(of(f"m{n}"), 0, signal)
        heard.keep({1: "m1"})
    assert len(heard.beats) + len(heard.leaving) <= 2 + FORGOTTEN_MAX
    assert heard.silence_of("", "m1").was_heard("m1")
    assert not heard.silence_of("", "m2").was_heard("m2")


PLANTED = {
    "a deaf beat is a life": (
        changed(Heard, "_voices", ("if self.is_deaf(signal, append_ms):", "if False:")),
        test_who_is_silent_is_told_by_the_records_of_its_own_partition,
    ),
    "the last beat of any term": (
        changed(Heard, "hear", ("signal.term >= self.coordinator.term", "True")),
        test_the_last_beat_of_the_highest_term_is_the_coordinators,
    ),
    "a request counts from its last word on": (
        changed(
            Heard,
            "hear",
            ("self.join_request_ms.setdefault(signal.birth,", "self.join_request_ms.__setitem__(signal.birth,"),
        ),
        test_whoever_is_heard_behind_a_request_lives_beside_it,
    ),
}


test_a_planted_defect_is_found = each_is_found(PLANTED)
