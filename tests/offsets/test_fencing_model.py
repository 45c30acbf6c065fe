"""The orders that keep two owners of one range apart, searched through every interleaving; and what every other does.

The chosen orders hold although a READ may come to any old end that a broker tells: what a READ has to come to is the
offset of an own append. The other orders below fail although each of their READs comes to a true end.
test_deposed_leaders.py has what fails because of old ends.
"""

from dataclasses import replace
from itertools import permutations

import pytest

from .fencing_model import ANYTHING, DOUBLE, GAP, OUTSIDE, SHARED_EPOCH, Design
from .fencing_programs import (
    START_REREADING,
    SUCCESSOR,
    assert_right,
    assert_wrong,
    group,
    starts,
)
from .fencing_steps import explore
from .search import LARGE

# --- the chosen orders -----------------------------------------------------------------------------------------------


def test_one_coordinator_and_members_that_init_anew_never_double_a_tile() -> None:
    """EXPELLED, FENCE, FENCED, own append, READ, GRANT against INIT, READ, transact: nothing is ever wrong."""
    assert_right(group(inits=(2, 2, 0)), 11_000, {0, 1})


@pytest.mark.parametrize(
    ("inits", "edge_max", "worlds"),
    [
        pytest.param((0, 0, 0), 2, 8_173, id="no INIT"),
        pytest.param((0, 1, 0), 1, 7_354, id="the first new owner inits"),
        pytest.param((1, 0, 0), 1, 100_570, id="the old owner inits", marks=LARGE),
    ],
)
def test_two_coordinators_never_double_a_tile(inits: tuple[int, int, int], edge_max: int, worlds: int) -> None:
    """A second coordinator at any time, by a higher term, appends and reads itself: nothing is wrong.

    It fences who was expelled, and nobody anew where FENCED stands.
    """
    assert_right(group(successor=SUCCESSOR, inits=inits, edge_max=edge_max), worlds, {0, 1, 2})


@pytest.mark.parametrize(
    ("design", "worlds"),
    [
        pytest.param(
            starts(2, 2, edge_max=3),
            63_744,
            id="two processes, two re-inits each, three offsets",
            marks=LARGE,
        ),
        pytest.param(
            starts(0, 0, 0, edge_max=1),
            136_417,
            id="three processes, one offset",
            marks=LARGE,
        ),
        pytest.param(starts(1, 1, program=START_REREADING), 15_240, id="two processes that look more often"),
    ],
)
def test_processes_that_start_beside_each_other_never_double_a_tile(design: Design, worlds: int) -> None:
    """However starts overlap, nothing is wrong, none waits for ever, and the holder of the last term has the range."""
    found = assert_right(design, worlds, set(range(len(design.start.processes))))
    for end in found.ends:
        assert not any(process.todo for process in end.processes)
        assert end.control.grants[-1].member == end.control.holder


# --- every other order -----------------------------------------------------------------------------------------------

_COORDINATOR_STEPS = {
    "expel": ("expel 0",),
    "fence": ("fence 0", "fenced 0"),
    "read": ("end", "read"),
    "grant": ("grant",),
}
_OTHER_COORDINATORS = [
    order
    for names in (("expel", "fence", "read", "grant"), ("fence", "read", "grant"), ("expel", "read", "grant"))
    for order in permutations(names)
    if order != ("expel", "fence", "read", "grant")
]


@pytest.mark.parametrize("order", _OTHER_COORDINATORS, ids=" ".join)
def test_every_other_order_of_the_coordinator_doubles_a_tile(order: tuple[str, ...]) -> None:
    """All 23 other orders of the four steps, and all orders without the fence or without the expulsion."""
    assert_wrong(group(coordinator=tuple(step for name in order for step in _COORDINATOR_STEPS[name])))


def test_the_shortest_way_to_a_double_tile_can_be_read() -> None:
    """READ before FENCE, as the search tells it: V commits behind the coordinator's back, N commits the same again."""
    design = group(coordinator=("expel 0", "end", "read", "fence 0", "fenced 0", "grant"))
    assert explore(design, (DOUBLE,)).trace == (
        "N init",
        "A expel V",
        "V append: [0, 1) epoch 1",
        "V commit",
        "broker marks V",
        "A read: edge 0",
        "A fence V",
        "A fenced V",
        "A grant: epoch 2 from 0 to N",
        "N wait_grant",
        "N append: [0, 1) epoch 2",
        "N commit",
    )


_MEMBER_STEPS = {"init": ("init",), "control": ("declare", "look"), "offsets": ("end", "read")}


def _recovery(order: tuple[str, ...]) -> tuple[str, ...]:
    steps = tuple(step for name in order for step in _MEMBER_STEPS[name])
    return (*steps, "check", "append") if "control" in order else (*steps, "append")


@pytest.mark.parametrize(
    "order",
    [
        ("control", "init", "offsets"),
        ("control", "offsets", "init"),
        ("offsets", "control", "init"),
        ("init", "control"),
        ("control", "init"),
        ("init", "offsets"),
        ("offsets", "init"),
        ("init",),
    ],
    ids=" ".join,
)
def test_a_member_that_reads_before_its_init_or_not_at_all_doubles_a_tile(order: tuple[str, ...]) -> None:
    """Without the offset log 'fenced' is taken for 'aborted'; with a control log read too early an owner lives on."""
    assert_wrong(replace(group(), recover=_recovery(order)))


@pytest.mark.parametrize("order", [("init", "offsets", "control"), ("offsets", "init", "control")], ids=" ".join)
def test_only_the_control_log_must_be_read_after_the_init(order: tuple[str, ...]) -> None:
    """The offset log may be read earlier: the wait for its end is a wait for the member's own transaction, too."""
    assert not explore(replace(group(), recover=_recovery(order)), ANYTHING).wrong


def test_a_member_that_goes_on_after_its_own_expulsion_doubles_a_tile() -> None:
    """The next grant is not there yet when the expelled one reads the control log: EXPELLED itself must stop it."""
    assert_wrong(replace(group(), expulsion_stops=False))


_ONE_TILE = group(successor=SUCCESSOR, inits=(0, 0, 0), edge_max=1)


def _successor(*steps: str) -> Design:
    return group(successor=steps, inits=(0, 0, 0), edge_max=1)


_WRONG_SUCCESSIONS = {
    "a fold that counts events of a lower term": replace(_ONE_TILE, terms_rule=False),
    "no fence for those the first one expelled": replace(_ONE_TILE, successor_fences=False),
    "FENCED before the fence": group(
        ("expel 0", "fenced 0", "fence 0", "end", "read", "grant"), SUCCESSOR, inits=(0, 0, 0), edge_max=1
    ),
    "no look after the election": _successor("look", "elect", "take_over", "end", "read", "grant"),
    "no read of its own": _successor("look", "elect", "look", "take_over", "grant"),
    "read before the fence": _successor("look", "elect", "look", "end", "read", "take_over", "grant"),
}


@pytest.mark.parametrize("design", _WRONG_SUCCESSIONS.values(), ids=_WRONG_SUCCESSIONS.keys())
def test_every_other_succession_of_coordinators_doubles_a_tile(design: Design) -> None:
    """What the second coordinator may not leave out, and why events carry the term."""
    assert_wrong(design)


@pytest.mark.parametrize(
    "coordinator",
    [
        pytest.param(("expel 0", "fence 0", "end", "fenced 0", "read", "grant"), id="behind the own append"),
        pytest.param(("expel 0", "fence 0", "end", "read", "fenced 0", "grant"), id="behind the read"),
        pytest.param(("expel 0", "fence 0", "end", "read", "grant", "fenced 0"), id="behind the grant"),
    ],
)
def test_fenced_may_be_appended_at_any_time_behind_the_fence(coordinator: tuple[str, ...]) -> None:
    """A successor fences again where no FENCED stands, and appends and reads in any case."""
    assert not explore(group(coordinator, SUCCESSOR, inits=(0, 0, 0), edge_max=1), ANYTHING).wrong


def steps(text: str) -> tuple[str, ...]:
    """A program as people write it."""
    return tuple(text.split())


def _program(text: str) -> Design:
    return starts(1, 1, program=steps(text))


_DOUBLING_STARTS = {
    "no look after the grant": _program("init look elect look join expel_members end read grant append"),
    "no look after the election": _program("init look elect join expel_members end read grant look check append"),
    "goes on although another was first in its term": replace(starts(1, 1), first_wins=False),
    "init after the last look": _program("look elect look join expel_members end read grant look check init append"),
    "joined after the grant": _program("init look elect look expel_members end read grant join look check append"),
    "read before the fences": _program("init look elect look join end read expel_members grant look check append"),
    "no fence": replace(starts(1, 1), per_victim=("expel", "fenced")),
    "no expulsion": replace(starts(1, 1), per_victim=("fence", "fenced")),
    "fence before the expulsion": replace(starts(1, 1), per_victim=("fence", "expel", "fenced")),
    "FENCED appended before the fence": starts(0, 0, 0, per_victim=("expel", "fenced", "fence"), edge_max=1),
    "an expelled process goes on": replace(starts(1, 1), expulsion_stops=False),
    "a re-send without a look into any log": replace(starts(1, 1), recover=_recovery(("init",))),
    "a re-send without the offset log": replace(starts(1, 1), recover=_recovery(("init", "control"))),
    "a re-send without the control log": replace(starts(1, 1), recover=_recovery(("init", "offsets"))),
    "control log read before the re-init": replace(starts(1, 1), recover=_recovery(("control", "init", "offsets"))),
}
"""What doubles a tile."""
_WRONG_STARTS = {name: (design, DOUBLE) for name, design in _DOUBLING_STARTS.items()} | {
    "grant before the read": (
        _program("init look elect look join expel_members grant end read look check append"),
        OUTSIDE,
    ),
    "writes at the term it read last, not at its own": (
        replace(starts(0, 0, program=START_REREADING), own_term=False),
        OUTSIDE,
    ),
    "a fold that counts events of a lower term": (replace(starts(0, 0), terms_rule=False), SHARED_EPOCH),
    "an unknown outcome taken for a commit": (
        replace(starts(1, 1), recover=_recovery(("init", "control")), unknown_is_done=True),
        GAP,
    ),
}


_SLOW_TO_FIND = "FENCED appended before the fence"


@pytest.mark.parametrize(
    ("design", "wanted"),
    [pytest.param(*row, id=name, marks=LARGE if name == _SLOW_TO_FIND else ()) for name, row in _WRONG_STARTS.items()],
)
def test_every_other_order_of_a_start_is_wrong(design: Design, wanted: str) -> None:
    """Each step of a start stands where it stands because of a history that ends badly otherwise."""
    assert_wrong(design, wanted)
