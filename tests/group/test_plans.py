"""When a plan is due, what it is made of, and one that is worked out beside the coordinator."""

from pathlib import Path

import pytest

from keylanes.group.coordinator import decide, needs
from keylanes.group.plans import answer_of
from keylanes.group.view import Rules
from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.control_events import PlanMade

from ..tiers.marks import tier
from .stage import Group, played, scripts

pytestmark = tier("check")

FOLDER = Path(__file__).parent / "scripts"
LARGE = Rules(inline_max=0, measure_ms=0)
"""Every plan is worked out elsewhere."""


OTHERWISE = ("features", "look", "names", "standbys")
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
    group.seat.answer = answer_of(question)
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
    group.seat.answer = answer_of(question)
    batch = decide(group.view(), group.turn)
    while batch.decisions and not isinstance(batch.decisions[0], PlanMade):
        group.run("hold decisions")
        for decision in batch.decisions:
            group.write(decision)
            group.position += 1
        batch = decide(group.view(), group.turn)
    assert not batch.decisions
    assert needs(group.view()).solve not in (None, question)


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
    cells = group.view().cells(("orders", 0))
    assert {bound for cell in cells for bound in cell[:2]} == {0, SPACE_END // 2, SPACE_END}
    (move,) = made[-1].moves
    assert made[-1].cause == "load"
    assert move.gain > 0.5
    assert move.cost_us > 0
