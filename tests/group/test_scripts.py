"""What a coordinator decides, as scripts that can be checked by eye (see stage.py)."""

import os
from pathlib import Path

import pytest

from keylanes.group import copies, copy_requests, features, moves, plan_moves, standbys
from keylanes.group.coordinator import decide
from keylanes.group.view import CoordinatorMemory, DecisionBatch
from keylanes.offsets.decide import Turn

from ..stage.planting import Planting, Put, changed
from ..tiers.marks import tier
from .finding import row
from .stage import Group, played, scripts

pytestmark = tier("check")

FOLDER = Path(__file__).parent / "scripts"
REWRITES = bool(os.environ.get("REWRITE_SCRIPTS"))
"""Write what comes of each script into it; then look at the difference."""


@pytest.mark.parametrize("path", scripts(FOLDER), ids=lambda path: path.stem)
def test_a_script_comes_to_what_it_says(path: Path) -> None:
    """Each script says what its commands lead to."""
    text = path.read_text()
    now = played(text)
    if REWRITES:
        path.write_text(now)
    assert now == text


class RepeatingGroup(Group):
    """Each decision is asked for twice before the first is noted."""

    def _next(self) -> DecisionBatch:
        first, again = (decide(self.view(), Turn(self.turn.term, self.turn.number)) for _ in range(2))
        assert first == again
        return super()._next()


@pytest.mark.parametrize("name", ["cools", "measured", "renamed", "skew"])
def test_a_decision_that_is_not_noted_is_the_same_again(name: str) -> None:
    """The rows change nothing in what they are given: what a look leaves for later looks is part of its answer."""
    text = (FOLDER / f"{name}.txt").read_text()
    assert played(text, of=RepeatingGroup) == text


PLANTED: dict[str, tuple[str, Put]] = {
    "who has come least far is to have what has no owner": (
        "nearest",
        changed(copies, "heir", ("-k.position", "k.position")),
    ),
    "a move of who has died keeps standbys away": (
        "overtaken",
        changed(standbys, "ranges_with_state", (" and move.origin == owner", "")),
    ),
    "a learner takes the place of a standby": (
        "kept",
        changed(standbys, "unused_copies", ("if kept.asked.role == STANDBY]", "]")),
    ),
    "moves to who has a copy need no turn": (
        "parked_standby",
        row(moves, "ask_releases", ("or budget.take(move)", "or True")),
    ),
    "a standby takes the slot of a move that waits for its turn": (
        "turn_first",
        row(copy_requests, "ask_copies", ("    for move, _ in lacking:", "    for move, _ in ():")),
    ),
    "who leaves is given more": ("leave", row(moves, "grant_ranges", ("view.present.staying", "view.present.living"))),
    "two of one name": (
        "names",
        changed(
            features,
            "_in_the_way",
            ("if _is_namesake(member, asked):", "if member.expelled and _is_namesake(member, asked):"),
        ),
    ),
    "any members halve": ("halves", changed(plan_moves, "_places_to_halve", ("not question.halves or ", ""))),
    "the other part is the larger one": (
        "halves",
        changed(plan_moves, "_halves", ("factor // 2", "factor // 2 - 1 or 1")),
    ),
    "what was granted is halved": ("halves", changed(plan_moves, "_places_to_halve", ("== [0]", "!= []"))),
    "what nobody else can handle is halved": (
        "halves",
        changed(plan_moves, "_places_to_halve", ("len(topics) != 1", "False")),
    ),
    "the cool-down halves nothing": (
        "cools",
        changed(CoordinatorMemory, "left_of_budget", ("if self.cools(now_ms):", "if False:")),
    ),
}


@tier("test")
@pytest.mark.parametrize(("name", "put"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_defect_is_found(name: str, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script comes to something else with it."""
    put(Planting(monkeypatch))
    text = (FOLDER / f"{name}.txt").read_text()
    assert played(text) != text


def test_there_are_scripts() -> None:
    """They are found."""
    assert len(scripts(FOLDER)) >= 10
