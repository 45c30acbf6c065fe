"""How it stands with each point, against a twin that asks the events of that point alone."""

from hypothesis import given
from hypothesis import strategies as st

from keylanes.group.cells import Standing, cells
from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.control_events import (
    ControlEvent,
    MemberExpelled,
    MemberFenced,
    MemberJoined,
    RangesGranted,
)
from keylanes.offsets.decide import Turn
from keylanes.offsets.event_values import Band, Edge
from keylanes.offsets.events import RangesReleased
from keylanes.offsets.ledger import Ledger, evolve

from ..stage.log_events import coordinator_elected
from ..tiers.marks import tier

pytestmark = tier("check")

PLACE = ("orders", 0)
BOUNDS = (0, 1 << 29, 1 << 30, 3 << 30, SPACE_END)
WHO = st.integers(1, 3)
SPAN = st.tuples(st.integers(0, 3), st.integers(1, 4)).map(lambda n: (n[0], min(4, n[0] + n[1])))
STEP = st.one_of(
    st.tuples(st.just("grant"), WHO, SPAN),
    st.tuples(st.just("grant"), WHO, SPAN),
    st.tuples(st.just("release"), WHO, SPAN),
    st.tuples(st.just("expel"), WHO, SPAN),
    st.tuples(st.just("fence"), WHO, SPAN),
    st.tuples(st.just("read"), WHO, SPAN),
)


@given(st.lists(STEP, max_size=14))
def test_each_point_stands_as_its_own_events_say(steps: list[tuple[str, int, tuple[int, int]]]) -> None:
    """Held until its owner is expelled, leaving until it is fenced, unread until it was read; free from its release on,
    and before the first grant.
    """
    ledger, turn = Ledger(), Turn(1)
    had: list[tuple[int, int]] = [(0, 0)] * 4
    released: set[tuple[int, int]] = set()
    gone: dict[str, set[int]] = {"expel": set(), "fence": set()}
    read: set[tuple[tuple[str, int], int]] = set()
    evolve(ledger, coordinator_elected(1, "c", "x"))

    def says(event: ControlEvent) -> None:
        evolve(ledger, event)

    for n in (1, 2, 3):
        says(MemberJoined(*turn.next(), n, "", str(n), (f"x.{n}",), "", "", 1.0, 1, (), (), until_level=False))
    epoch = 0
    for kind, who, (a, b) in steps:
        if kind == "grant":
            epoch += 1
            says(RangesGranted(*turn.next(), 0, who, epoch, *PLACE, (Band(BOUNDS[a], BOUNDS[b], 0),), (), ()))
            had[a:b] = [(who, epoch)] * (b - a)
        elif kind == "release":
            for cell in range(a, b):
                if had[cell][1]:
                    band = (Edge(BOUNDS[cell], BOUNDS[cell + 1], 0),)
                    evolve(ledger, RangesReleased(had[cell][0], 1, had[cell][1], *PLACE, 0, band, ()))
                    released.add((cell, had[cell][1]))
        elif kind == "read":
            read |= {(PLACE, had[cell][1]) for cell in range(a, b)}
        else:
            of = MemberExpelled(*turn.next(), who, "", 0) if kind == "expel" else MemberFenced(*turn.next(), who)
            says(of)
            if who in ledger.control.members or kind == "fence":
                gone[kind].add(who)
    found = cells(ledger.control, ledger.partitions, PLACE, read)
    assert [cell.first for cell in found] == [0, *(cell.end for cell in found[:-1])]
    for n, (owner, at) in enumerate(had):
        if not at or (n, at) in released:
            wanted = Standing.FREE
        elif owner not in gone["expel"] and owner in ledger.control.members:
            wanted = Standing.HELD
        elif owner not in gone["fence"]:
            wanted = Standing.LEAVING
        else:
            wanted = Standing.FREE if (PLACE, at) in read else Standing.UNREAD
        over = [cell for cell in found if cell.first <= BOUNDS[n] and BOUNDS[n + 1] <= cell.end]
        assert [(cell.owner, cell.epoch, cell.standing) for cell in over] == [(owner, at, wanted)]
