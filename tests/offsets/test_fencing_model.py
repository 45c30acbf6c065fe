"""The orders that keep two owners of one range apart, searched through every interleaving; and what every other does.

Each table below is a program of the model: the steps of one kind of process, in order. See fencing_model.py for what a
step does.
"""

from dataclasses import replace
from itertools import permutations

import pytest

from .fencing_model import (
    ANYTHING,
    DOUBLE,
    GAP,
    OUTSIDE,
    SHARED_EPOCH,
    Design,
    Fold,
    Grant,
    Process,
    World,
    explore,
)
from .search import Found

# --- the programs ----------------------------------------------------------------------------------------------------

MEMBER = ("init", "wait_grant", "check", "append")
"""A member that has nothing yet: its producer first, then it follows the control log."""

COORDINATOR = ("expel 0", "fence 0", "fenced 0", "high", "read", "grant")
"""The first coordinator takes the range from member 0."""

SUCCESSOR = ("look", "elect", "look", "take_over", "high", "read", "grant")
"""The second one may start at any time, also while the first is only slow."""

START = ("init", "look", "elect", "look", "join", "expel_members", "high", "read", "grant", "look", "check", "append")
"""A process that is its own coordinator, from its start to its work."""

START_REREADING = (
    *("init", "look", "elect", "look", "join", "look_again", "expel_members", "look_again", "high", "read"),
    *("look_again", "grant", "look", "check", "append"),
)
"""The same with more looks between, as a process needs them that folds what it wrote itself from the log."""

RECOVER = ("init", "look", "high", "read", "check", "append")
"""Any member after a failure of its producer, whatever the failure was."""


def group(
    *,
    coordinator: tuple[str, ...] = COORDINATOR,
    successor: tuple[str, ...] = (),
    inits: tuple[int, int, int] = (2, 0, 0),
) -> Design:
    """V owns the range and is at work; A gives it to N; B, if there is one, takes over from A and gives it to M."""
    control = Fold(1, 3, frozenset({0, 1, 2}), grants=(Grant(0, 1, 0),))
    processes = (
        Process(("append",), epoch=1, has_producer=True, inits=inits[0]),
        Process(MEMBER, inits=inits[1]),
        Process(MEMBER if successor else (), inits=inits[2] if successor else 0),
        Process(coordinator, term=1, seen=control),
        Process(successor),
    )
    return Design("VNMAB", World(control, (), processes), grantee=(0, 0, 0, 1, 2), recover=RECOVER)


def starts(*inits: int, program: tuple[str, ...] = START) -> Design:
    """Processes P, Q, R of one application started at any times; each may replace its producer so many times."""
    processes = tuple(Process(program, inits=n) for n in inits)
    return Design("PQR"[: len(inits)], World(Fold(), (), processes), recover=RECOVER, in_order=True)


def assert_wrong(design: Design, wanted: str = DOUBLE) -> None:
    """The search must find the violation; the shortest way to it is what a person wants to read when it doesn't."""
    found = explore(design, (wanted,))
    assert found.wrong == wanted, f"expected: {wanted}\n{found}"


def assert_right(design: Design, worlds: int, workers: set[int]) -> Found[World]:
    """Nothing wrong in any of the worlds; their number and who worked show that the model did not shrink unnoticed."""
    found = explore(design, ANYTHING)
    assert not found.wrong, str(found)
    assert found.worlds == worlds
    assert {entry.owner for end in found.ends for entry in end.log} == workers
    return found


# --- the chosen orders -----------------------------------------------------------------------------------------------


def test_one_coordinator_and_members_that_init_anew_never_double_a_tile() -> None:
    """EXPELLED, FENCE, FENCED, READ, GRANT against INIT, READ, transact: nothing is wrong in any interleaving."""
    assert_right(group(inits=(2, 2, 0)), 10_141, {0, 1})


@pytest.mark.slow
def test_two_coordinators_never_double_a_tile_while_the_old_owner_inits_twice() -> None:
    """A second coordinator at any time, by a higher term, repeats FENCE and READ: nothing is wrong."""
    assert_right(group(successor=SUCCESSOR, inits=(2, 0, 0)), 175_421, {0, 1, 2})


@pytest.mark.slow
def test_two_coordinators_never_double_a_tile_while_all_members_init_anew() -> None:
    """The same with every member replacing its producer once, over one offset."""
    assert_right(replace(group(successor=SUCCESSOR, inits=(1, 1, 1)), edge_max=1), 100_312, {0, 1, 2})


@pytest.mark.parametrize(
    ("design", "worlds"),
    [
        pytest.param(replace(starts(2, 2), edge_max=3), 62_076, id="two processes, two re-inits each, three offsets"),
        pytest.param(
            replace(starts(1, 0, 0), edge_max=1),
            252_865,
            id="three processes, a re-init, one offset",
            marks=pytest.mark.slow,
        ),
        pytest.param(starts(2, 2, program=START_REREADING), 33_996, id="two processes that look more often"),
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
    "read": ("high", "read"),
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
    design = group(coordinator=("expel 0", "high", "read", "fence 0", "fenced 0", "grant"))
    assert explore(design, (DOUBLE,)).trace == (
        "N init",
        "A expel V",
        "A high: watermark 0",
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


_MEMBER_STEPS = {"init": ("init",), "control": ("look",), "offsets": ("high", "read")}


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


_ONE_TILE = replace(group(successor=SUCCESSOR, inits=(0, 0, 0)), edge_max=1)


def _successor(*steps: str) -> Design:
    return replace(group(successor=steps, inits=(0, 0, 0)), edge_max=1)


_WRONG_SUCCESSIONS = {
    "a fold that counts events of a lower term": replace(_ONE_TILE, terms_rule=False),
    "no fence for those the first one expelled": replace(_ONE_TILE, successor_fences=False),
    "no look after the election": _successor("look", "elect", "take_over", "high", "read", "grant"),
    "no read of its own": _successor("look", "elect", "look", "take_over", "grant"),
    "read before the fence": _successor("look", "elect", "look", "high", "read", "take_over", "grant"),
    "FENCED appended before the fence": replace(
        group(
            coordinator=("expel 0", "fenced 0", "fence 0", "high", "read", "grant"),
            successor=SUCCESSOR,
            inits=(0, 0, 0),
        ),
        edge_max=1,
    ),
}


@pytest.mark.parametrize("design", _WRONG_SUCCESSIONS.values(), ids=_WRONG_SUCCESSIONS.keys())
def test_every_other_succession_of_coordinators_doubles_a_tile(design: Design) -> None:
    """What the second coordinator may not leave out, and why events carry the term."""
    assert_wrong(design)


@pytest.mark.slow
@pytest.mark.parametrize(
    "coordinator",
    [
        ("expel 0", "fence 0", "high", "read", "fenced 0", "grant"),
        ("expel 0", "fence 0", "high", "read", "grant", "fenced 0"),
    ],
    ids=["before the grant", "after the grant"],
)
def test_fenced_may_be_appended_at_any_time_after_the_fence(coordinator: tuple[str, ...]) -> None:
    """FENCED only saves the next coordinator a fence: its place after the fence makes no odds."""
    design = group(coordinator=coordinator, successor=SUCCESSOR, inits=(1, 0, 0))
    assert not explore(replace(design, edge_max=1), ANYTHING).wrong


def _program(text: str) -> Design:
    return starts(1, 1, program=tuple(text.split()))


_WRONG_STARTS = {
    "no look after the grant": (_program("init look elect look join expel_members high read grant append"), DOUBLE),
    "no look after the election": (
        _program("init look elect join expel_members high read grant look check append"),
        DOUBLE,
    ),
    "goes on although another was first in its term": (replace(starts(1, 1), first_wins=False), DOUBLE),
    "init after the last look": (
        _program("look elect look join expel_members high read grant look check init append"),
        DOUBLE,
    ),
    "joined after the grant": (
        _program("init look elect look expel_members high read grant join look check append"),
        DOUBLE,
    ),
    "read before the fences": (
        _program("init look elect look join high read expel_members grant look check append"),
        DOUBLE,
    ),
    "grant before the read": (
        _program("init look elect look join expel_members grant high read look check append"),
        OUTSIDE,
    ),
    "writes at the term it read last, not at its own": (
        replace(starts(0, 0, program=START_REREADING), own_term=False),
        OUTSIDE,
    ),
    "no fence": (replace(starts(1, 1), per_victim=("expel", "fenced")), DOUBLE),
    "no expulsion": (replace(starts(1, 1), per_victim=("fence", "fenced")), DOUBLE),
    "fence before the expulsion": (replace(starts(1, 1), per_victim=("fence", "expel", "fenced")), DOUBLE),
    "FENCED appended before the fence": (
        replace(starts(0, 0, 0), per_victim=("expel", "fenced", "fence"), edge_max=1),
        DOUBLE,
    ),
    "an expelled process goes on": (replace(starts(1, 1), expulsion_stops=False), DOUBLE),
    "a fold that counts events of a lower term": (replace(starts(0, 0), terms_rule=False), SHARED_EPOCH),
    "a re-send without a look into any log": (replace(starts(1, 1), recover=_recovery(("init",))), DOUBLE),
    "a re-send without the offset log": (replace(starts(1, 1), recover=_recovery(("init", "control"))), DOUBLE),
    "a re-send without the control log": (replace(starts(1, 1), recover=_recovery(("init", "offsets"))), DOUBLE),
    "an unknown outcome taken for a commit": (
        replace(starts(1, 1), recover=_recovery(("init", "control")), unknown_is_done=True),
        GAP,
    ),
    "control log read before the re-init": (
        replace(starts(1, 1), recover=_recovery(("control", "init", "offsets"))),
        DOUBLE,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("design", "wanted"), _WRONG_STARTS.values(), ids=_WRONG_STARTS.keys())
def test_every_other_order_of_a_start_is_wrong(design: Design, wanted: str) -> None:
    """Each step of a start stands where it stands because of a history that ends badly otherwise."""
    assert_wrong(design, wanted)
