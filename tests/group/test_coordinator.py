"""What a coordinator decides when not all is known to it yet, and when those who ask contradict each other."""

import msgspec
import pytest

from keylanes.group.coordinator import decide
from keylanes.group.heard import partition_of
from keylanes.group.members import LEFT
from keylanes.group.view import Seat, View
from keylanes.offsets.control_events import ControlEvent, MemberExpelled, MemberRefused, PlanMade, StoreDeclared
from keylanes.offsets.decide import Turn
from keylanes.offsets.ledger import Ledger
from keylanes.offsets.signals import JoinAsked, LeaveAsked, StoreAsked

from ..tiers.marks import tier
from .stage import Group

pytestmark = tier("check")


def working() -> Group:
    """Two members, of whom each has a partition."""
    group = Group()
    for command in ("topic orders 2", "ask a orders", "ask b orders"):
        group.run(command)
    return group


def successor(group: Group, *, has_read: bool) -> View:
    """What somebody sees who was elected just now."""
    ledger = group.ledger if has_read else Ledger(group.ledger.control)
    ledger.opened |= {0} if has_read else set()
    seat = Seat("app", "c1", group.now_ms, log_partitions=1, found=group.seat.found)
    return View(ledger, group.heard, seat, group.rules, group.position, group.now_ms)


@pytest.mark.parametrize("has_read", [True, False])
def test_who_holds_something_is_not_said_to_have_left_by_who_has_not_read_the_offset_log(*, has_read: bool) -> None:
    """There everything seems to be free; and who leaves may be in the midst of its drain."""
    group = working()
    leaver, birth = group.member("a"), group.asks["a"].birth
    group.heard.hear(partition_of("", birth), group.now_ms, LeaveAsked(leaver, birth, 0, is_done=False))
    batch = decide(successor(group, has_read=has_read), Turn(2))
    assert not [one for one in batch.decisions if isinstance(one, MemberExpelled)]


@pytest.mark.parametrize("has_read", [True, False])
def test_no_plan_is_made_by_who_has_not_read_the_offset_log(*, has_read: bool) -> None:
    """It would have all from nobody, and answer the cause: nothing more would come of that."""
    group = working()
    group.holds.add("decisions")
    group.run("ask c orders")
    assert [type(one).__name__ for one in group._next().decisions] == ["MemberJoined"]
    assert group._next().answered
    group.now_ms += 10 * group.rules.plan_interval_ms
    view = successor(group, has_read=has_read)
    view.seat.began_ms = view.seat.planned_ms = 0
    batch = decide(view, Turn(2))
    plans = [one for one in batch.decisions if isinstance(one, PlanMade)]
    assert bool(plans) is has_read
    assert all(move.origin for plan in plans for move in plan.moves)


def asked_with(asked: JoinAsked, birth: str, store: StoreAsked) -> JoinAsked:
    """The same request, of another process, for another store."""
    return msgspec.structs.replace(asked, birth=birth, stores=(store,))


def test_of_two_who_want_one_store_otherwise_the_first_has_it() -> None:
    """The other is refused when the first has its number; nobody who coordinates ends with them."""
    group = Group()
    for command in ("topic orders 1 stateful", "topic parcels 1 stateful"):
        group.run(command)
    group.holds.add("decisions")
    group.run("ask a orders")
    first = group.asks["a"]
    (store,) = first.stores
    other = asked_with(first, "b1", _of(store, "parcels"))
    group.asks["b"] = other
    group.heard.hear(partition_of("", "b1"), group.now_ms, other)
    group.holds.clear()
    decided: list[ControlEvent] = []
    while decisions := group._next().decisions:
        decided += decisions
        group._do_needs()
    assert [one.name for one in decided if isinstance(one, StoreDeclared)] == [store.name]
    (refused,) = [one for one in decided if isinstance(one, MemberRefused)]
    assert refused.birth == "b1"
    assert store.name in refused.reason


def _of(store: StoreAsked, topic: str) -> StoreAsked:
    return msgspec.structs.replace(store, topic=topic)


def test_who_has_made_its_last_commit_has_left_whatever_was_read() -> None:
    """Its own word is enough: it commits nothing more."""
    group = working()
    leaver, birth = group.member("a"), group.asks["a"].birth
    group.heard.hear(partition_of("", birth), group.now_ms, LeaveAsked(leaver, birth, 0, is_done=True))
    batch = decide(successor(group, has_read=False), Turn(2))
    assert [(one.incarnation, one.cause) for one in batch.decisions if isinstance(one, MemberExpelled)] == [
        (leaver, LEFT)
    ]
