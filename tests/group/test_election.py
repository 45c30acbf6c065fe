"""Who stands for coordinator: several processes on one control log and one partition of the signals."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.group import election
from keylanes.group.election import Candidate, is_coordinator, probes, rank_of, stands, wait_ms
from keylanes.group.signals_fold import COORDINATORS, Heard
from keylanes.group.silence import Silence
from keylanes.offsets.control import Control, evolve_control
from keylanes.offsets.control_events import AppCreated, ControlEvent, CoordinatorElected
from keylanes.offsets.signals import Beat, CoordinatorBeat, ExpelAsked, Signal

from ..stage.log_events import coordinator_elected, in_turn, member_expelled, member_fenced, member_joined
from ..stage.planting import Planting, mutated
from ..tiers.marks import tier

pytestmark = tier("check")

SESSION_MS, INTERVAL_MS = 10_000, 1_000
TICK_MS = 250
"""So often everybody is asked in quiet times."""
QUIET_TICKS = 3 * SESSION_MS // TICK_MS
NAMES = ("a", "b", "c")


@dataclass
class Place:
    """What all share."""

    control: list[ControlEvent] = field(default_factory=list)
    signals: list[tuple[int, Signal]] = field(default_factory=list)
    now_ms: int = 0


class Process:
    """One that may stand, as its host runs it."""

    def __init__(self, place: Place, birth: str, instance: str = "") -> None:
        self.place, self.candidate = place, Candidate(instance, birth)
        self.fold, self.heard = Control(), Heard(SESSION_MS, INTERVAL_MS)
        self.control_read = self.signals_read = self.term = 0
        self.told_ms, self.read_ms = -INTERVAL_MS, 0

    def reads_control(self, count: int = 1_000) -> None:
        """So many more events."""
        for event in self.place.control[self.control_read :][:count]:
            evolve_control(self.fold, event)
            self.control_read += 1

    def reads_signals(self, count: int = 1_000) -> None:
        """So many more records."""
        for at_ms, signal in self.place.signals[self.signals_read :][:count]:
            self.heard.hear(COORDINATORS, at_ms, signal)
            self.signals_read, self.read_ms = self.signals_read + 1, self.place.now_ms

    @property
    def coordinates(self) -> bool:
        """Whether it decides, as far as it knows."""
        return is_coordinator(self.fold, self.candidate.birth, self.term)

    def acts(self) -> None:
        """It beats, stands or probes, when that is due."""
        of = (self.fold, self.heard, self.candidate, self.term)
        hears = self.heard.silences[COORDINATORS].was_heard(self.fold.term)
        silent_ms = self.heard.silences[COORDINATORS].silent_ms(self.fold.term)
        if stands(*of):
            assert not (hears and silent_ms < 2 * INTERVAL_MS), "it stands while the coordinator is heard"
            self.term = self.fold.term + 1
            self.place.control.append(CoordinatorElected(self.term, self.candidate.instance, self.candidate.birth, "x"))
        elif self.place.now_ms - self.told_ms >= INTERVAL_MS and self._is_to_tell():
            self.told_ms = self.place.now_ms
            beat = CoordinatorBeat(self.term, 0, False, INTERVAL_MS, False, (), (), ())
            self.place.signals.append((self.place.now_ms, beat if self.coordinates else Beat(0, "", 0, 0, 0, 0, ())))

    def _is_to_tell(self) -> bool:
        quiet_ms = self.place.now_ms - self.read_ms
        return self.coordinates or probes(self.fold, self.heard, self.candidate, self.term, quiet_ms=quiet_ms)


def begun(members: Sequence[str]) -> Place:
    """Logs of an application whose coordinator is gone, with these members; without any: nobody was ever elected."""
    joined = [member_joined(1, n, birth, f"x.{n}") for n, birth in enumerate(members, 1)]
    elected: list[ControlEvent] = [coordinator_elected(1, "gone"), *joined] if members else []
    return Place([AppCreated("x", "hash", 1), *in_turn(elected, "x")])


def passes(place: Place, processes: Sequence[Process], ticks: int, orders: Sequence[int]) -> None:
    """Quiet times: everybody reads all and acts once a tick, in an order that changes."""
    for tick in range(ticks):
        place.now_ms += TICK_MS
        order = orders[tick % len(orders)]
        turned = [processes[(i + order) % len(processes)] for i in range(len(processes))]
        for process in turned if order % 2 else reversed(turned):
            reads = [process.reads_control, process.reads_signals]
            for read in reads if order % 3 else reversed(reads):
                read()
            process.acts()


WHO = st.integers(0, len(NAMES) - 1)
STEP = st.one_of(
    st.tuples(st.just("control"), WHO, st.integers(1, 3)),
    st.tuples(st.just("signals"), WHO, st.integers(1, 9)),
    st.tuples(st.just("acts"), WHO, st.just(0)),
    st.tuples(st.just("passes"), st.just(0), st.sampled_from((TICK_MS, INTERVAL_MS, SESSION_MS))),
)


@given(st.integers(0, 3), st.lists(STEP, max_size=60), st.lists(st.integers(0, 11), min_size=1, max_size=6))
def test_candidates_come_to_rest_with_one_coordinator(
    members: int, steps: list[tuple[str, int, int]], orders: list[int]
) -> None:
    """However their reads were interleaved before: within a few sessions one coordinates, and nobody stands again."""
    place = begun(NAMES[:members])
    processes = [Process(place, name) for name in NAMES]
    for kind, who, count in steps:
        match kind:
            case "control":
                processes[who].reads_control(count)
            case "signals":
                processes[who].reads_signals(count)
            case "acts":
                processes[who].acts()
            case _:
                place.now_ms += count
    passes(place, processes, 2 * QUIET_TICKS, orders)
    elections = len(place.control)
    passes(place, processes, QUIET_TICKS, orders)
    assert [process.coordinates for process in processes].count(True) == 1
    assert len(place.control) == elections, "somebody stood although one coordinates"


@pytest.mark.parametrize("members", [0, 3])
def test_whoever_is_elected_is_waited_for_before_its_first_beat(members: int) -> None:
    """Two that read the election before they hear the winner do not stand in their turn."""
    place = begun(NAMES[:members])
    processes = [Process(place, name) for name in NAMES]
    passes(place, processes, QUIET_TICKS, [0])
    winner = next(process for process in processes if process.coordinates)
    others = [process for process in processes if process is not winner]
    for _ in range(2 * QUIET_TICKS):  # the winner dies; the first to stand is read of before it has beaten
        passes(place, others, 1, [0])
        if len(place.control) > winner.control_read:
            break
    elections = len(place.control)
    for process in others:
        process.reads_control()
        process.acts()
    assert len(place.control) == elections == winner.control_read + 1


def test_without_that_wait_they_duel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: it does when nobody waits for who was just elected."""
    Planting(monkeypatch).setattr(Silence, "wait_for", lambda self, voice: None)
    with pytest.raises(AssertionError):
        test_whoever_is_elected_is_waited_for_before_its_first_beat(3)


def test_whose_process_is_known_to_have_died_is_not_waited_for() -> None:
    """Whoever is first by rank stands at once; of another member, or for another cause, it says nothing."""
    place = begun((*NAMES, "gone"))
    first, second = (Process(place, name) for name in NAMES[:2])
    for process in (first, second):
        process.reads_control()
        for incarnation, cause in ((3, "died"), (4, "operator")):
            asked = ExpelAsked(f"r{incarnation}", "somebody", incarnation, cause)
            process.heard.hear(COORDINATORS, 0, asked)
        assert not stands(process.fold, process.heard, process.candidate, 0)
        process.heard.hear(COORDINATORS, 0, ExpelAsked("r5", "its parent", 4, "died"))
    assert stands(first.fold, first.heard, first.candidate, 0)
    assert wait_ms(second.fold, second.heard, second.candidate) == election.RANK_MS


def test_an_idle_coordinator_that_beats_stays() -> None:
    """Nothing stands in the control log for an hour: its beats are heard, so nobody stands."""
    place = begun(NAMES)
    processes = [Process(place, name) for name in NAMES]
    passes(place, processes, QUIET_TICKS, [0])
    elections = len(place.control)
    passes(place, processes, 3_600_000 // TICK_MS, [0])
    assert len(place.control) == elections


def test_an_outage_of_the_signals_elects_nobody() -> None:
    """However long nothing can be appended, and nothing is read."""
    place = begun(NAMES)
    processes = [Process(place, name) for name in NAMES]
    passes(place, processes, QUIET_TICKS, [0])
    elections = len(place.control)
    for _ in range(5):
        place.now_ms += 6 * SESSION_MS
        passes(place, processes, INTERVAL_MS // TICK_MS, [0])
    assert len(place.control) == elections


def control_of(*events: ControlEvent) -> Control:
    """A fold."""
    control = Control()
    for event in in_turn(events, "x"):
        evolve_control(control, event)
    return control


ELECTED = coordinator_elected(1, "a")
JOINED = [member_joined(1, n, birth, f"x.{n}") for n, birth in enumerate(NAMES, 1)]


@pytest.mark.parametrize(
    ("control", "candidate", "wanted_ms"),
    [
        pytest.param(Control(), Candidate("", "b"), 0, id="nobody was ever elected"),
        pytest.param(
            control_of(ELECTED, *JOINED), Candidate("", "d", is_alone=True), 0, id="no other process is there"
        ),
        pytest.param(control_of(ELECTED, *JOINED, member_expelled(1, 1)), Candidate("", "b"), 0, id="it is expelled"),
        pytest.param(control_of(ELECTED), Candidate("", "b"), 2_000, id="nobody could commit"),
        pytest.param(control_of(ELECTED, *JOINED), Candidate("a", "d"), 2_000, id="the same place, started again"),
        pytest.param(control_of(ELECTED, *JOINED), Candidate("d", "d"), 10_060, id="one that has not joined"),
        pytest.param(control_of(ELECTED, *JOINED), Candidate("b", "b"), 10_020, id="the second member"),
        pytest.param(
            control_of(ELECTED, JOINED[0], member_expelled(1, 1), member_fenced(1, 1), coordinator_elected(2, "b")),
            Candidate("", "c"),
            2_000,
            id="all are fenced",
        ),
    ],
)
def test_how_long_the_coordinator_is_waited_for(control: Control, candidate: Candidate, wanted_ms: int) -> None:
    """The table in the module's head, row by row."""
    assert wait_ms(control, Heard(SESSION_MS, INTERVAL_MS), candidate) == wanted_ms


def test_whoever_resigned_is_followed_at_once() -> None:
    """By a beat of its term; one of an older term says nothing."""
    control, heard = control_of(coordinator_elected(2, "a"), *JOINED), Heard(SESSION_MS, INTERVAL_MS)
    for term, is_over in ((1, False), (2, True)):
        heard.hear(COORDINATORS, 0, CoordinatorBeat(term, 1, True, INTERVAL_MS, False, (), (), ()))
        assert stands(control, heard, Candidate("", "b"), 0) is is_over
    assert not stands(control, heard, Candidate("", "a"), 2)


def test_who_was_expelled_does_not_stand() -> None:
    """It hears nobody, perhaps, and what it writes stays in the log for ever; who has not joined may stand."""
    control = control_of(ELECTED, *JOINED, member_expelled(1, 1), member_expelled(1, 2))
    for incarnation, may in ((2, False), (3, True), (0, True)):
        candidate = Candidate("", f"b{incarnation}", incarnation)
        assert stands(control, Heard(SESSION_MS, INTERVAL_MS), candidate, 0) is may


def test_members_stand_in_their_order_and_others_behind_them() -> None:
    """By incarnation, those who were expelled left out."""
    control = control_of(ELECTED, *JOINED, member_expelled(1, 1))
    assert [rank_of(control, birth) for birth in ("b", "c", "a", "d")] == [0, 1, 2, 2]


def test_a_term_is_not_resumed_by_who_forgot_it() -> None:
    """The same process may have stood for it before it crashed: only who knows it decides."""
    control = control_of(coordinator_elected(3, "a"))
    assert is_coordinator(control, "a", 3)
    assert not is_coordinator(control, "a", 0)
    assert not is_coordinator(control, "b", 3)


def test_silence_that_control_events_end_would_elect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats in the signals are what an idle coordinator is heard by: who listens to its decisions alone stands."""
    deaf = mutated(election._awaited_silence, ("silence.wait_for(control.term)", "silence.keep((), 0)"))
    Planting(monkeypatch).setattr(election, "_awaited_silence", deaf)
    with pytest.raises(AssertionError):
        test_an_idle_coordinator_that_beats_stays()
