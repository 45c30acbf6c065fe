"""A member in small, told by a script: what its logs say in, which steps it begins out. No broker, no loop.

The member is ``a``, incarnation 1, born as "a"; ``b`` is another one, incarnation 2. Points are named by halves:
``low`` and ``high``; no name means all of them. Commands:

    topic orders [stateful]             a source topic that the member handles, from here on
    join                                both are members; the commands below come behind it
    plan 4 orders 0 b a                 a whole plan of one move, 4, from b (nobody: -) to a, answers all before
    grant a orders 0 [low] at 3 from 5  points are granted at epoch 3, with all done below 5
    ask 7 orders 0 [low] at 3           move 7 asks the owner at epoch 3 to release points; ``ask b 7 …`` asks b
    withdraw 7                          the request is withdrawn
    copy 9 orders 0 [low]               the member is asked for a copy; ``end 9``: no longer
    expel CAUSE, forget                 the member is expelled; it is fenced and forgotten
    sends orders 0 [low]                a transaction that releases points is under way
    released 7 orders 0 [low] to 8      it is committed, for move 7 (0: none), with all done below 8
    settled                             what the transaction changed is through
    wound 7 orders 0                    no release for move 7 is open any more
    restored orders 0                   the state of all that is restored there is whole
    looked [orders 0]                   a look at the sources has ended, the first one at that place
    stop                                the member is to give all up
    fails                               a step has failed for good

After each command the steps are begun and noted until there is none.
"""

from collections.abc import Iterator

from keylanes.group.held_ranges import HeldRanges
from keylanes.group.member import (
    ExpectMore,
    Fail,
    FollowCopies,
    GiveUpAll,
    GoOn,
    HearGrants,
    HearRequest,
    LogEnds,
    Out,
    OwnProcess,
    RestoreState,
    SayReleased,
    Step,
    TakeBack,
    TakeUp,
    WindDown,
    next_steps,
    note_step,
)
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import KeyRange
from keylanes.offsets.control import LEARNER
from keylanes.offsets.control_events import (
    CopyAsked,
    CopyEnded,
    MemberExpelled,
    PlanMade,
    ReleaseAsked,
    ReleaseWithdrawn,
)
from keylanes.offsets.event_values import Band, Edge, PlannedMove, Span
from keylanes.offsets.events import Event
from keylanes.offsets.ledger import Ledger, SourcePartition
from keylanes.offsets.signals import ReleaseTold

from ..stage.log_events import (
    NO_NUMBER,
    coordinator_elected,
    fold_in_turn,
    member_fenced,
    member_joined,
    ranges_granted,
)

HALF = SPACE_END // 2
NUMBERS = {"-": 0, "a": 1, "b": 2}
RANGES = {"low": KeyRange(0, HALF), "high": KeyRange(HALF, SPACE_END), "": KeyRange(0, SPACE_END)}
NAMES = {HearGrants: "HEAR of", TakeBack: "TAKE BACK", RestoreState: "RESTORE", TakeUp: "TAKE UP"}
STEPS_MAX = 9
"""So many rounds at most: a member that never comes to rest is wrong."""


class Member:
    """The logs, and what the member holds."""

    def __init__(self) -> None:
        self.ledger, self.held = Ledger(opened={0}), HeldRanges()
        self.topics, self.stateful = set[str](), set[str]()
        self.plans = 0
        fold_in_turn(self.ledger, coordinator_elected(1, "c", "app"))

    @property
    def own(self) -> OwnProcess:
        """The member, as it knows itself."""
        incarnation = 1 if self.ledger.control.incarnation_max else None
        return OwnProcess("a", incarnation, frozenset(self.topics), frozenset(self.stateful))

    def run(self, command: str) -> list[str]:
        """Do what a command says; the steps that are begun then, a line each."""
        first, *words = command.split()
        getattr(self, f"_do_{first}")(*words)
        said: list[str] = []
        for _ in range(STEPS_MAX):
            steps = next_steps(self.ledger, self.own, self.held)
            for step in steps:
                note_step(self.held, self.own, step)
                said += told_of(step)
            if not steps or isinstance(steps[0], Out | Fail):
                return said
        raise AssertionError(f"no rest: {said}")

    def write(self, event: Event) -> None:
        """An event is read."""
        fold_in_turn(self.ledger, event)

    # --- the logs ----------------------------------------------------------------------------------------------------

    def _do_topic(self, topic: str, kind: str = "") -> None:
        self.topics.add(topic)
        if kind:
            self.stateful.add(topic)

    def _do_join(self) -> None:
        for name in ("a", "b"):
            self.write(member_joined(1, NUMBERS[name], name, f"x.{name}"))

    def _do_plan(self, move: str, topic: str, partition: str, origin: str, target: str) -> None:
        self.plans += 1
        ends = (NUMBERS[origin], NUMBERS[target])
        planned = PlannedMove(int(move), topic, int(partition), 0, SPACE_END, *ends, 0, 0.0, 0)
        epoch = self.ledger.control.group_epoch
        self.write(PlanMade(1, NO_NUMBER, self.plans, epoch, "join", 0, 0, 1, (planned,)))

    def _do_grant(self, name: str, topic: str, partition: str, *words: str) -> None:
        within, (_, epoch, _, offset) = _points(words)
        band = Band(within.first, within.end, int(offset))
        self.write(ranges_granted(1, NUMBERS[name], int(epoch), topic, int(partition), (band,)))

    def _do_ask(self, *words: str) -> None:
        name, (move, topic, partition, *rest) = ("b", words[1:]) if words[0] == "b" else ("a", words)
        within, (_, epoch) = _points(rest)
        at = (topic, int(partition), within.first, within.end)
        self.write(ReleaseAsked(1, NO_NUMBER, int(move), NUMBERS[name], int(epoch), *at, 1_000))

    def _do_withdraw(self, move: str) -> None:
        self.write(ReleaseWithdrawn(1, NO_NUMBER, int(move), "deadline"))

    def _do_copy(self, move: str, topic: str, partition: str, *words: str) -> None:
        within, _ = _points(words)
        bands = (Span(within.first, within.end),)
        self.write(CopyAsked(1, NO_NUMBER, int(move), 1, topic, int(partition), bands, LEARNER, 0))

    def _do_end(self, move: str) -> None:
        self.write(CopyEnded(1, NO_NUMBER, int(move), "no use"))

    def _do_expel(self, cause: str) -> None:
        self.write(MemberExpelled(1, NO_NUMBER, 1, cause, 0))

    def _do_forget(self) -> None:
        self.write(member_fenced(1, 1))

    # --- what ends ---------------------------------------------------------------------------------------------------

    def _do_sends(self, topic: str, partition: str, *words: str) -> None:
        self.held.uncommitted = [((topic, int(partition)), _points(words)[0])]

    def _do_released(self, move: str, topic: str, partition: str, *words: str) -> None:
        within, (_, edge) = _points(words)
        bands = (Edge(within.first, within.end, int(edge)),)
        told = ReleaseTold(1, 1, int(move), topic, int(partition), bands)
        self.held.note_released(told, is_stateful=topic in self.stateful)

    def _do_settled(self) -> None:
        self.held.uncommitted, self.held.copies = (), None

    def _do_wound(self, move: str, topic: str, partition: str) -> None:
        self.held.note_release_ended(int(move), (topic, int(partition)))

    def _do_restored(self, topic: str, partition: str) -> None:
        self.held.note_restored(list(self.held.restoring.get((topic, int(partition)), ())))

    def _do_looked(self, *words: str) -> None:
        self.held.looks -= 1
        self.held.new_places += [(words[0], int(words[1]))] if words else []

    def _do_stop(self) -> None:
        self.held.gives_all_up = True

    def _do_fails(self) -> None:
        self.held.has_failed = True


def _points(words: tuple[str, ...] | list[str]) -> tuple[KeyRange, list[str]]:
    """The points that are named first, and the other words."""
    name = words[0] if words and words[0] in RANGES else ""
    return RANGES[name], list(words[1:] if name else words)


def points(place: SourcePartition, within: KeyRange) -> str:
    """Points of a partition, as a script names them."""
    name = next((name for name, known in RANGES.items() if known == within), str(within))
    return f"{place[0]}[{place[1]}] {name}".rstrip()


def told_of(step: Step) -> Iterator[str]:
    """A step, a line for each of its ranges."""
    match step:
        case HearGrants(grants) | TakeBack(grants) | RestoreState(grants) | TakeUp(grants):
            yield from (f"{NAMES[type(step)]} {points(one.place, one.within)} at epoch {one.epoch}" for one in grants)
        case WindDown(move, place, _, _, ranges):
            yield from (f"WIND DOWN {points(place, one)} for move {move}" for one in ranges)
        case GiveUpAll(ranges):
            yield from (f"GIVE UP {points(place, one)}" for place, one in ranges)
        case LogEnds(places):
            yield from (f"LOG the end of {place[0]}[{place[1]}]" for place in places)
        case SayReleased(told):
            bands = [(points(told.topic_partition, KeyRange(band.first, band.end)), band.edge) for band in told.bands]
            yield from (f"SAY RELEASED {name} to {edge}" for name, edge in bands)
        case _:
            yield said_of(step)


def said_of(step: Step) -> str:
    """A step without ranges in a line."""
    match step:
        case Out(cause):
            return f"OUT {cause}".rstrip()
        case GoOn(move):
            return f"GO ON with move {move}"
        case HearRequest(move, epoch):
            return f"HEAR of move {move}, up to epoch {epoch}"
        case ExpectMore(moves):
            return f"EXPECT move {', '.join(map(str, sorted(moves)))}"
        case FollowCopies(copies):
            return "FOLLOW " + (", ".join(f"move {copy.move}" for copy in copies) or "nothing")
        case _:
            return type(step).__name__.upper()
