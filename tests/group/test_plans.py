"""When a plan is due, what it is made of, and one that is worked out beside the coordinator."""

from pathlib import Path

import pytest

from keylanes.group.coordinator import decide, needs
from keylanes.group.plans import answered
from keylanes.group.view import Rules
from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.control_events import PlanMade

from ..tiers.marks import tier
from .stage import Group, played, scripts

pytestmark = tier("check")

FOLDER = Path(__file__).parent / "scripts"
LARGE = Rules(inline_max=0, measure_ms=0)
"""Every plan is worked out elsewhere."""


OTHERWISE = ("names", "standbys")
"""A process joins before the plan is made: it answers more; a standby is asked for before it, under another number."""


@pytest.mark.parametrize(
    "path", [path for path in scripts(FOLDER) if path.stem not in OTHERWISE], ids=lambda path: path.stem
)
def test_a_plan_that_is_worked_out_elsewhere_is_the_same(path: Path) -> None:
    """Whatever a script says comes of it, comes of it then, though members may be fenced before the plan is made."""
    text = path.read_text()
    assert [sorted(part.splitlines()) for part in played(text, LARGE).split("\n\n")] == [
        sorted(part.splitlines()) for part in text.strip().split("\n\n")
    ]


SEEN_BEFORE = """
load orders 3 500 1000
pass 2s
silent b
ask b orders as two
pass 2s
load orders 3 300 1000
load orders 0 500 1000
pass 4s
load orders 0 300 1000
pass 30s
"""
"""Behind back.txt: one member has more to do for one look, then a process comes back, and another one has more to do
for one look.
"""


def test_what_was_seen_before_something_moved_is_no_first_look() -> None:
    """Who takes over works off what has waited: it looks as if it had more to do, and has soon what it had before."""
    script = (FOLDER / "back.txt").read_text().partition("# Where it has more")[0]
    said = played(script + SEEN_BEFORE).splitlines()
    assert "GRANT orders[1] to b#6 at epoch 3 from 0" in said
    assert not [line for line in said if "by load" in line]


def asking() -> Group:
    """A group that waits for its first plan to be worked out."""
    group = Group(LARGE)
    for command in ("topic orders 2", "ask a orders", "ask b orders", "hold decisions", "pass 1s"):
        group.run(command)
    return group


def plan_of(group: Group) -> list[PlanMade]:
    """The plan that it decides on now."""
    return [one for one in decide(group.view(), group.turn).decisions if isinstance(one, PlanMade)]


def test_a_plan_waits_for_its_answer() -> None:
    """It is asked for once; with the answer it is made."""
    group = asking()
    question = needs(group.view()).solve
    assert question is not None
    assert not plan_of(group)
    group.seat.answer = answered(question)
    assert needs(group.view()).solve is None
    assert len(plan_of(group)[0].moves) == 1


@pytest.mark.parametrize("command", ["ask c orders", "leave b", "move orders 0 to b"])
def test_an_answer_to_something_else_counts_for_nothing(command: str) -> None:
    """What has changed since: it is worked out anew."""
    group = asking()
    question = needs(group.view()).solve
    assert question is not None
    group.run(command)
    group.holds.clear()
    group.seat.answer = answered(question)
    batch = decide(group.view(), group.turn)
    while batch.decisions and not isinstance(batch.decisions[0], PlanMade):
        group.run("hold decisions")
        for decision in batch.decisions:
            group.write(decision)
            group.position += 1
        batch = decide(group.view(), group.turn)
    assert not batch.decisions
    assert needs(group.view()).solve not in (None, question)


def busy(factor: int) -> Group:
    """Two members and one partition, all of whose load one of them has."""
    group = Group()
    group.run("topic orders 1")
    for name in "ab":
        group.run(f"ask {name} orders factor {factor}")
    for command in ("eager a b", "load orders 0 1600 1000", "pass 20s"):
        group.run(command)
    return group


def owners(group: Group) -> list[tuple[int, int, int]]:
    """Who has what of the partition."""
    return [(cell.first, cell.end, cell.owner) for cell in group.view().cells(("orders", 0))]


def test_a_partition_of_factor_1_is_never_parted() -> None:
    """Whatever its load."""
    assert [cell[:2] for cell in owners(busy(1))] == [(0, SPACE_END)]


def test_a_partition_is_parted_at_the_declared_cut() -> None:
    """Of factor 4, in two; and the plan says what is gained, and what it costs."""
    group = Group()
    made: list[PlanMade] = []
    group.judge = lambda decision: made.extend([decision] if isinstance(decision, PlanMade) else [])  # type: ignore[method-assign]  # to look on
    group.run("topic orders 1")
    for name in "ab":
        group.run(f"ask {name} orders factor 4")
    for command in ("eager a b", "load orders 0 1600 1000", "pass 20s"):
        group.run(command)
    assert {bound for cell in owners(group) for bound in cell[:2]} == {0, SPACE_END // 2, SPACE_END}
    (move,) = made[-1].moves
    assert made[-1].cause == "load"
    assert move.gain > 0.5
    assert move.cost_us > 0


def test_nothing_is_wished_for_in_the_first_two_load_intervals_of_a_term() -> None:
    """Who coordinates next has not heard the loads yet."""
    group = Group()
    for command in ("topic orders 1", "ask a orders", "ask b orders", "pass 3s", "load orders 0 1600 1000"):
        group.run(command)
    group.run("coordinator is b")
    assert not group.run("pass 3s")
    assert group.run("pass 5s")


def test_a_change_waits_for_loads_that_are_told_soon() -> None:
    """So who joins has its part of a partition at once; where nobody tells any it does not wait for long."""
    told, silent = Group(Rules()), Group(Rules())
    for group in (told, silent):
        for command in ("topic orders 1", "ask a orders", "pass 2s", "eager a b"):
            group.run(command)
        assert group.run("ask b orders") == ["JOINED b#2"]
    told.run("load orders 0 1600 1000")
    told.tell_loads("a", 1)
    told.settle()
    assert any("PLAN 2" in line for line in told.said)
    assert told.run("pass 1s")[-1].startswith("GRANT orders[0] 0-50 % to b#2")
    assert silent.run("pass 1s") == ["PLAN 2 for group epoch 4"]
