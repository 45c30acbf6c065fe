"""Permits: never more than there are, in turn by place, in order within one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.runtime.partition.pace import AttemptPace
from keylanes.runtime.partition.permits import Permits

from ...tiers.marks import tier

pytestmark = tier("check")

PLACES = ("a", "b", "c")


class Twin:
    """The same, without any cleverness: one list of who waits, and the places in the order of their turns."""

    def __init__(self, most: int) -> None:
        self.free = most
        self.waiting: list[tuple[str, int]] = []
        self.turns: list[str] = []

    def give_back(self) -> int | None:
        if not self.turns:
            self.free += 1
            return None
        place = self.turns.pop(0)
        who = next(who for at, who in self.waiting if at == place)
        self.waiting.remove((place, who))
        if any(at == place for at, _ in self.waiting):
            self.turns.append(place)
        return who


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(("ask", "ask", "back", "forget")), st.sampled_from(PLACES), st.integers(0, 9))),
)
def test_permits_are_what_their_twin_is(most: int, steps: list[tuple[str, str, int]]) -> None:
    """Whatever is asked for, given back and forgotten."""
    permits: Permits[int] = Permits(most)
    twin = Twin(most)
    for number, (what, place, pick) in enumerate(steps):
        if what == "ask":
            has_one = permits.take()
            assert has_one is (twin.free > 0)
            if has_one:
                twin.free -= 1
            else:
                permits.wait(place, number)
                twin.waiting.append((place, number))
                if place not in twin.turns:
                    twin.turns.append(place)
        elif what == "back" and permits.out:
            permits.give_back()
            assert permits.serve() == twin.give_back()
        elif what == "forget" and twin.waiting:
            at, who = twin.waiting[pick % len(twin.waiting)]
            permits.forget(at, who)
            twin.waiting.remove((at, who))
            if not any(other == at for other, _ in twin.waiting):
                twin.turns.remove(at)
        assert permits.out == most - twin.free <= most
        assert permits.is_awaited is bool(twin.waiting)


def test_a_pace_holds_back_who_waits() -> None:
    """A permit is there, and its time is not: nobody overtakes who waits for that."""
    pace = AttemptPace(0.0)
    pace.change(10.0, 0.0)
    permits: Permits[str] = Permits(2, pace)
    assert not permits.take(0.05)
    permits.wait("a", "first")
    assert permits.due_s(0.05) == pytest.approx(0.05)
    assert permits.serve(0.09) is None
    assert not permits.take(0.2), "somebody waits"
    assert permits.serve(0.2) == "first"
    assert permits.due_s(0.2) is None, "nobody waits"
    assert permits.take(0.3)
    permits.wait("a", "second")
    assert permits.due_s(0.9) is None, "all are given out"
    permits.give_back()
    assert permits.due_s(0.9) == 0.0
    assert permits.serve(0.9) == "second"
