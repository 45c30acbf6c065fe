"""What one member has to do, by what it has read and holds, as scripts (see member_stage.py)."""

import os
from pathlib import Path

import pytest

from keylanes.group import member
from keylanes.group.member import NotJoined, Out, Rejected, Works, state_of
from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.control import Control, evolve_control
from keylanes.offsets.control_events import (
    ControlEvent,
    MemberJoined,
    MemberRefused,
    RangesGranted,
)
from keylanes.offsets.event_values import Band

from ..stage.log_events import (
    NO_NUMBER,
    coordinator_elected,
    in_turn,
    member_expelled,
    member_fenced,
    member_joined,
    ranges_granted,
)
from ..stage.planting import Planting, Put, changed
from ..tiers.marks import tier
from .member_stage import Member
from .stage import play, scripts

pytestmark = tier("check")

PLACE = ("orders", 0)
FOLDER = Path(__file__).parent / "member_scripts"
REWRITES = bool(os.environ.get("REWRITE_SCRIPTS"))
"""Write what comes of each script into it; then look at the difference."""


@pytest.mark.parametrize("path", scripts(FOLDER), ids=lambda path: path.stem)
def test_a_script_comes_to_what_it_says(path: Path) -> None:
    """Each script says which steps its commands lead to."""
    text = path.read_text()
    now = play(text, Member)
    if REWRITES:
        path.write_text(now)
    assert now == text


PLANTED: dict[str, tuple[str, Put]] = {
    "a copy that was followed is taken back": (
        "back",
        changed(member, "_is_unchanged", ("        return False", "        pass")),
    ),
    "a grant is taken back at any edge": (
        "back",
        changed(member, "_is_unchanged", ("ours.is_constant(*piece)", "True")),
    ),
    "a grant does not wait for the own release": (
        "back",
        changed(member, "_lacking_grants", (" if not held.is_uncommitted(place, grant.within)", "")),
    ),
    "a request means later grants, too": ("withdrawn", changed(member, "_points_at_work", ("epoch <= bound", "True"))),
    "what is taken up waits for a restore": (
        "restoring",
        changed(
            member,
            "next_steps",
            ("grants = _lacking_grants(own, held)", "grants = _lacking_grants(own, held) * (not held.restoring)"),
        ),
    ),
    "out waits for a restore": (
        "restoring",
        changed(member, "next_steps", ("isinstance(state, Out)", "isinstance(state, Out) and not held.restoring")),
    ),
    "a withdrawn release goes on": (
        "withdrawn",
        changed(member, "next_steps", ("GoOn(move) for", "HearRequest(move, 0) for")),
    ),
    "who gives all up takes up": (
        "stop",
        changed(member, "next_steps", ("if held.gives_all_up:", "if held.gives_all_up > held.is_giving_all_up:")),
    ),
}


@tier("test")
@pytest.mark.parametrize(("name", "put"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_defect_is_found(name: str, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script comes to something else with it."""
    put(Planting(monkeypatch))
    text = (FOLDER / f"{name}.txt").read_text()
    try:
        now = play(text, Member)
    except AssertionError:
        return
    assert now != text


def fold(*events: ControlEvent) -> Control:
    """The fold of a control log in which each of these counts."""
    control = Control()
    for number, event in enumerate(in_turn([coordinator_elected(1, "c"), *events])):
        assert evolve_control(control, event).number == number
    return control


def joins(incarnation: int, birth: str) -> MemberJoined:
    """A member."""
    return member_joined(1, incarnation, birth, f"x.{incarnation}")


def grants(incarnation: int, epoch: int, end: int = SPACE_END) -> RangesGranted:
    """Points of the one partition."""
    return ranges_granted(1, incarnation, epoch, *PLACE, (Band(0, end, 0),))


def test_it_waits_until_it_is_answered() -> None:
    """JOINED or REFUSED of its own birth, nobody else's."""
    refused = MemberRefused(1, NO_NUMBER, "a", "name in use: x")
    assert state_of(fold(joins(1, "b")), "a", None) == NotJoined()
    assert state_of(fold(joins(1, "b"), refused), "a", None) == Rejected("name in use: x")
    assert state_of(fold(joins(1, "b"), refused), "b", None) == Works(1)


def test_it_is_out_when_it_is_expelled_also_when_that_is_forgotten() -> None:
    """The cause is told as long as the log knows it."""
    log: list[ControlEvent] = [joins(1, "a"), member_expelled(1, 1)]
    for known in (1, None):
        assert state_of(fold(*log), "a", known) == Out("superseded")
    control = fold(*log, member_fenced(1, 1))
    assert 1 not in control.members
    assert state_of(control, "a", 1) == Out("")


def test_it_is_out_although_its_birth_joined_once_more() -> None:
    """A request of its own that came late, behind all that became of it: what was granted to that one is not its own,
    whose transactional ids nobody will fence any more.
    """
    control = fold(joins(1, "a"), member_expelled(1, 1), member_fenced(1, 1), joins(2, "a"), grants(2, 1))
    assert state_of(control, "a", 1) == Out("")
    assert state_of(control, "a", None) == Works(2)
