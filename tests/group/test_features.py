"""Who may take part: each verdict, and when it is reached."""

import pytest
from msgspec.structs import replace

from keylanes.group.features import Joins, Ousts, Refused, Verdict, Waits, judge, kind_of
from keylanes.group.heard import Heard, partition_of
from keylanes.offsets.control import Control, evolve_control
from keylanes.offsets.control_events import (
    ControlEvent,
    EndsPinned,
    LevelRaised,
    MemberExpelled,
    MemberFenced,
    MemberJoined,
    PartitionStarted,
    StoreDeclared,
)
from keylanes.offsets.decide import Turn
from keylanes.offsets.event_values import LEVEL, PinnedEnd, Sourced
from keylanes.offsets.signals import Beat, JoinAsked, StoreAsked

from ..stage.log_events import coordinator_elected
from ..tiers.marks import tier

pytestmark = tier("check")

SESSION_MS, INTERVAL_MS = 10_000, 1_000
TOPIC = Sourced("orders", 8, "earliest", 0, 0.0)
STORE = StoreAsked("sums", "orders", "value", "", "int", "json")


def asks(
    instance: str = "", topic: Sourced = TOPIC, *, level: int = LEVEL, store: StoreAsked | None = None
) -> JoinAsked:
    """What a process asks."""
    stores = () if store is None else (store,)
    return JoinAsked(instance, "new", 1, "", "", 1.0, level, (topic,), (), False, stores, 0)


class Case:
    """A group with one member, ``old``, that beat at the start; then the new process asked."""

    def __init__(self, instance: str = "", topic: Sourced = TOPIC, *, until_level: bool = False) -> None:
        self.control, self.turn, self.now_ms = Control(), Turn(1), 0
        self.heard = Heard(SESSION_MS, INTERVAL_MS)
        self.instance = instance
        evolve_control(self.control, coordinator_elected(1, "c", "x"))
        ids = ("x.1",)
        self.says(
            LevelRaised(*self.turn.next(), LEVEL),
            MemberJoined(
                *self.turn.next(), 1, instance, "old", ids, "host", "", 1.0, 1, (topic,), (), until_level=until_level
            ),
        )
        self.beats()

    def says(self, *events: ControlEvent) -> "Case":
        """In the control log."""
        for event in events:
            evolve_control(self.control, event)
        return self

    def beats(self) -> None:
        """The old member does."""
        self.heard.hear(partition_of(self.instance, "old"), self.now_ms, Beat(1, "old", 0, 0, 0, 0, ()))

    def judged(self, asked: JoinAsked, *, silent_ms: int = 0, beats: bool = False) -> Verdict:
        """It asks; so much time passes, and the old one beats at its end or not."""
        for at_ms in range(0, silent_ms + 1, INTERVAL_MS):
            self.now_ms = at_ms
            for partition in {partition_of(self.instance, "old"), partition_of(asked.instance, "new")}:
                self.heard.hear(partition, at_ms, asked)
        if beats:
            self.now_ms += 1
            self.beats()
        return judge(self.control, self.heard, asked)


def expelled(case: Case) -> Case:
    """The old member is to commit no more."""
    return case.says(MemberExpelled(*case.turn.next(), 1, "silent", 0))


def fenced(case: Case) -> Case:
    """Nor can it."""
    return expelled(case).says(MemberFenced(*case.turn.next(), 1))


@pytest.mark.parametrize(
    ("instance", "silent_ms", "wanted"),
    [
        pytest.param("blue", 0, Waits(1), id="its name is in use, or was a moment ago"),
        pytest.param("blue", 1_000, Waits(1), id="one beat is missing"),
        pytest.param("blue", 2_000, Ousts(1), id="two are"),
        pytest.param("red", 2_000, Joins(), id="another name"),
        pytest.param("", 2_000, Joins(), id="no name"),
    ],
)
def test_a_name_belongs_to_who_is_heard(instance: str, silent_ms: int, wanted: Verdict) -> None:
    """It is the same place, started again: it ousts a predecessor that is silent for two intervals."""
    assert Case("blue").judged(asks(instance), silent_ms=silent_ms) == wanted


def test_a_name_in_use_is_refused() -> None:
    """When its owner was heard after the other one had asked, however late."""
    for silent_ms in (0, 5_000):
        verdict = Case("blue").judged(asks("blue"), silent_ms=silent_ms, beats=True)
        assert isinstance(verdict, Refused)
        assert kind_of(verdict.reason) == "name in use"


def test_nobody_is_in_its_own_way() -> None:
    """A request that comes once more, or whose stores have no number yet: who asks has joined, and is silent."""
    case = Case("blue")
    assert case.judged(replace(asks("blue"), birth="old"), silent_ms=5_000) == Joins()


def test_no_name_is_nobodys() -> None:
    """Two without a name are no namesakes."""
    assert Case("").judged(asks(""), beats=True) == Joins()


def test_a_name_is_free_when_its_owner_is_fenced() -> None:
    """Not before: the old one may still commit."""
    assert expelled(Case("blue")).judged(asks("blue"), silent_ms=5_000, beats=True) == Waits(1)
    assert fenced(Case("blue")).judged(asks("blue"), beats=True) == Joins()


def test_who_runs_to_the_level_waits_for_a_sign_of_others_that_do() -> None:
    """Else one that is gone would leave its ends behind: what was written since would not be processed."""
    to_level = replace(asks(), until_level=True)
    assert Case().judged(to_level) == Joins()
    case = Case(until_level=True)
    assert case.judged(to_level) == Joins()
    case.says(EndsPinned(*case.turn.next(), (PinnedEnd("orders", 0, 12),)))
    assert case.judged(to_level, silent_ms=2_000) == Waits(1)
    assert case.judged(asks()) == Joins()
    assert case.judged(to_level, beats=True) == Joins()
    assert expelled(Case(until_level=True)).judged(to_level) == Joins()


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        (Sourced("orders", 2, "earliest", 0, 0.0), "parallelising_factor=2"),
        (Sourced("orders", 8, "latest", 0, 0.0), "start='latest'"),
        (Sourced("orders", 8, "earliest", 7, 0.0), "other stores"),
    ],
)
def test_handlers_of_a_topic_agree(topic: Sourced, words: str) -> None:
    """Else it waits for the other one to be heard or to go; then it is refused, in words that say what differs."""
    assert Case().judged(asks(topic=topic)) == Waits(1)
    assert Case().judged(asks(topic=topic), silent_ms=9_000) == Waits(1), "it does not oust who bears another name"
    verdict = Case().judged(asks(topic=topic), beats=True)
    assert isinstance(verdict, Refused)
    assert kind_of(verdict.reason) == "contradicts"
    assert words in verdict.reason
    assert expelled(Case()).judged(asks(topic=topic)) == Joins(), "who is expelled is contradicted by nobody"


def test_a_topic_of_its_own_contradicts_nobody() -> None:
    """Only handlers of one topic are compared."""
    assert Case().judged(asks(topic=Sourced("bills", 2, "latest", 7, 0.0)), beats=True) == Joins()


def test_who_reads_less_than_is_written_is_refused_at_once() -> None:
    """Whoever is there."""
    verdict = Case().judged(asks(level=0))
    assert isinstance(verdict, Refused)
    assert kind_of(verdict.reason) == "level too low"


def test_what_was_started_or_declared_stays() -> None:
    """A start, and what a store is: refused at once, for no member's going changes it."""
    case = Case()
    case.says(
        PartitionStarted(*case.turn.next(), "orders", 0, 0, "earliest", 1),
        StoreDeclared(*case.turn.next(), 0, *(getattr(STORE, field) for field in STORE.__struct_fields__)),
    )
    assert case.judged(asks(store=STORE)) == Joins()
    other = StoreAsked("sums", "orders", "map", "str", "int", "json")
    for asked in (asks(store=other), asks(topic=Sourced("orders", 8, "latest", 0, 0.0))):
        verdict = case.judged(asked)
        assert isinstance(verdict, Refused)
        assert kind_of(verdict.reason) == "contradicts"
