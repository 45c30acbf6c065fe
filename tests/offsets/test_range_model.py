"""Key ranges that split, merge, leave and come: the chosen orders keep the tiling exact, every other order breaks it.

A search of a right design sees every interleaving; the number of worlds is pinned so that none is lost unnoticed. The
chosen orders hold although a READ may come to any old end that a broker tells. The other orders fail although each of
their READs comes to a true end; what fails because of old ends has a table of its own.
"""

import pytest

from .range_model import ANYTHING, APART, DOUBLE, GAP, OUTSIDE, SHARED_EPOCH, TILING, TORN, Design
from .range_programs import (
    BY_OFFSET_2,
    COME_BACK,
    EXPEL,
    EXPEL_2,
    GO_ON,
    MOVE,
    RECOVER,
    TAKE_OVER,
    TAKE_OVER_2,
    TWO_LOGS,
    A,
    B,
    assert_none_is_stuck,
    assert_right,
    assert_wrong,
    budget,
    group,
    neighbours,
    steps,
    task,
)
from .range_steps import explore
from .search import params

# --- the chosen orders -----------------------------------------------------------------------------------------------


_RIGHT = {
    "a range moves": (group(MOVE, v=budget(1, 1, 1, 2), n=budget(inits=1)), 7_630),
    "a range moves, two offsets": (group(MOVE, v=budget(1, 1, 1, 1), edge_max=2), 9_831),
    "a range leaves and comes back": (group(COME_BACK, v=budget(1, 1, 1, 1), edge_max=2), 5_982),
    "the middle of three leaves": (group(MOVE, v=budget(1, 1, 1, 1), log_of=(0, 0, 0)), 7_995),
    "an owner is expelled": (group(EXPEL, v=budget(1, 1, 1, 1)), 14_882),
    "an owner is expelled beside another in the same log": (
        neighbours(EXPEL.replace("ab", "b"), v=budget(inits=2)),
        12_056,
    ),
    "two logs, an owner is expelled": (group(EXPEL_2, v=budget(releases=1, inits=1), log_of=TWO_LOGS), 19_098),
    "two logs, two ranges move": (
        group(
            "until_released ab; read 0; read 1; grant ab N",
            v=budget(releases=1, inits=2),
            n=budget(inits=1),
            log_of=TWO_LOGS,
            leaves="ab",
        ),
        5_752,
    ),
    "two logs, the release is seen in one only": (
        group(
            "until_released a; read 0; end 1; read 1; grant ab N",
            v=budget(releases=1, inits=2),
            log_of=TWO_LOGS,
            leaves="ab",
        ),
        3_206,
    ),
    "two logs, late commits": (group(EXPEL_2, v=budget(inits=1), log_of=TWO_LOGS, has_late_commits=True), 6_180),
    "two logs, own outcome to the offsets of the own Produces": (
        group(EXPEL_2, v=budget(inits=2), log_of=TWO_LOGS, by_own_offset=True, recover=steps(BY_OFFSET_2)),
        9_402,
    ),
    "two logs, a stranger fences": (
        group(EXPEL_2, v=budget(inits=1), log_of=TWO_LOGS, strangers_fences=1),
        12_752,
    ),
    "two logs, late commits, a stranger fences": (
        group(EXPEL_2, v=budget(inits=1), log_of=TWO_LOGS, has_late_commits=True, strangers_fences=1),
        12_772,
    ),
    "two logs, an owner that inits twice is expelled": (group(EXPEL_2, v=budget(inits=2), log_of=TWO_LOGS), 12_232),
    "a move given up for an expulsion": (group(MOVE, v=budget(1, 1, 1, 1), when_tired=steps(EXPEL)), 17_802),
    "two grants one after the other": (
        group("until_released ab; read 0; grant a N; grant b M", v=budget(1, 0, 1, 1), leaves="ab", has_m=True),
        7_355,
    ),
}


@pytest.mark.parametrize(("design", "worlds"), params(_RIGHT))
def test_ranges_that_split_merge_and_move_keep_the_tiling_exact(design: Design, worlds: int) -> None:
    """Whatever a generation carries, whatever fails and whenever markers are written, nothing is wrong in any world."""
    assert_right(design, worlds)


_TWO_COORDINATORS = {
    "two logs, a move, then all is taken": (
        group(
            "until_released ab; read 0; read 1; grant ab N",
            TAKE_OVER_2,
            v=budget(releases=1, inits=1),
            log_of=TWO_LOGS,
            leaves="ab",
        ),
        20_819,
    ),
    "two logs, an expulsion, then all is taken": (
        group(EXPEL_2, TAKE_OVER_2, v=budget(inits=1), log_of=TWO_LOGS),
        81_271,
    ),
    "a move, then all is taken": (group(MOVE, TAKE_OVER, v=budget(1, 1, 1, 1)), 40_835),
    "a return, then all is taken": (group(COME_BACK, TAKE_OVER, v=budget(1, 1, 1, 1)), 27_190),
    "a move that the second one goes on with": (group(MOVE, GO_ON, v=budget(1, 1, 1, 1), has_m=True), 33_916),
    "an expulsion amid splits and merges, then all is taken": (group(EXPEL, TAKE_OVER, v=budget(1, 1, 0, 1)), 81_734),
    "an expulsion amid a release, then all is taken": (group(EXPEL, TAKE_OVER, v=budget(0, 0, 1, 1)), 28_749),
}


@pytest.mark.parametrize(("design", "worlds"), params(_TWO_COORDINATORS))
def test_two_coordinators_at_once_keep_the_tiling_exact(design: Design, worlds: int) -> None:
    """The term may change before, between and after all steps of the first coordinator, while V splits, merges,
    releases and fails: nothing is wrong in any world. A READ that need not wait happens with the step before it.
    """
    found = assert_right(design, worlds)
    chances = (world.processes[A] for world in found.came_from if world.processes[B].todo[:1] == ("elect",))
    interrupted = {step for process in chances for step in process.todo[:1]}
    at_once = {step for step in design.start.processes[A].todo if step.startswith("read ")}
    assert interrupted | at_once == set(design.start.processes[A].todo)


_IN_SMALL = {
    "all is taken": (group(EXPEL, TAKE_OVER, v=budget(1, 1, 1, 0)), 4_318),
    "a move goes on": (group(MOVE, GO_ON, v=budget(0, 0, 1, 1), has_m=True), 8_718),
}


@pytest.mark.parametrize(("design", "worlds"), params(_IN_SMALL))
def test_two_coordinators_in_small(design: Design, worlds: int) -> None:
    """The same with less that V may do, quick enough to be tried at every change."""
    assert_right(design, worlds)


# --- every other order -----------------------------------------------------------------------------------------------

_UNREAD = steps("init; declare; look; check")
_RELEASES = budget(releases=1, inits=1)


def _goes_on(text: str) -> Design:
    return group(MOVE, text, v=_RELEASES, has_m=True)


_DOUBLES = {
    "a grant before the release's transaction is done": group(
        "until_announced b; end 0; read 0; grant b N", v=_RELEASES
    ),
    "a grant to oneself while the own release is in flight": group(
        "end 0; read 0; until_announced b; grant b V", v=_RELEASES
    ),
    "a grant from edges read before the release": group(
        "end 0; read 0; until_released b; grant b N", v=budget(releases=1)
    ),
    "a release that takes too long taken for done": group(
        MOVE, v=_RELEASES, when_tired=steps("end 0; read 0; grant b N")
    ),
    "a grant without a release": group("end 0; read 0; grant b N"),
    "a merge of workers that are not level, the left one behind": group(v=budget(1, 1), merges_level=False),
    "a split with its parent's tile sent again without reading": group(v=budget(splits=1, inits=1), recover=_UNREAD),
    "the coordinator reads to the last stable offset": neighbours(
        "expel V; fence V; fenced V; read_stable 0; grant b N"
    ),
    "a member reads to the last stable offset": neighbours(
        "", v=budget(inits=1), recover="init; declare; look; read_stable 0; check"
    ),
    "a release that is visible in one log, the other read as far as it is stable": group(
        "until_released a; read_stable 0; read_stable 1; grant ab N", v=budget(releases=1), log_of=TWO_LOGS, leaves="ab"
    ),
    "the coordinator reads one log only": group(EXPEL, log_of=TWO_LOGS),
    "a member reads one log only": group(v=budget(inits=1), log_of=TWO_LOGS, recover=steps(RECOVER)),
    "FENCE while EXPELLED is not acknowledged": group(
        "fence V; fenced V; end 0; read 0; grant ab N", v=budget(splits=1, inits=1), beside=task("expel V")
    ),
    "READ while FENCE is not acknowledged": group(
        "expel V; end 0; read 0; grant ab N", v=budget(1, 1, 1), beside=task("fence V")
    ),
    "a move that goes on without waiting for the release": _goes_on(
        "look; elect; look; go_on b; end 0; read 0; grant b M"
    ),
    "a move that goes on from edges read before the release": _goes_on(
        "look; elect; look; go_on b; end 0; read 0; until_released b; grant b M"
    ),
}
"""What doubles a tile."""
_WRONG = {name: (design, DOUBLE) for name, design in _DOUBLES.items()} | {
    "two grants at once from one reading of the control log": (
        group(
            "until_released ab; read 0; grant a N",
            v=budget(releases=1),
            leaves="ab",
            has_m=True,
            beside=task("until_released ab; read 0; grant b M"),
        ),
        SHARED_EPOCH,
    ),
    "a merge of workers that are not level, the left one ahead": (
        group(v=budget(1, 1), merges_level=False, edge_max=2),
        GAP,
    ),
    "a merge across two grants": (group(COME_BACK, v=budget(0, 1, 1), merges_one_grant=False), OUTSIDE),
    "a split of unknown outcome sent again without reading": (
        group(v=budget(splits=1, inits=1), edge_max=0, recover=_UNREAD),
        TILING,
    ),
    "a split of unknown outcome taken for committed": (
        group(v=budget(splits=1, inits=1), edge_max=0, recover=_UNREAD, unknown_is_done=True),
        APART,
    ),
    "a merge of children whose split is not in the log": (
        group(v=budget(1, 1, 0, 1), edge_max=0, recover=_UNREAD, unknown_is_done=True),
        TILING,
    ),
    "a tile of unknown outcome taken for committed": (
        group(v=budget(splits=1, inits=1), edge_max=2, recover=_UNREAD, unknown_is_done=True),
        GAP,
    ),
    "the same producer after a commit of unknown outcome": (
        group(
            v=budget(inits=1),
            log_of=TWO_LOGS,
            has_late_commits=True,
            recover=steps("abort; declare; look; end 0; read 0; end 1; read 1; check"),
        ),
        TORN,
    ),
    "a move that goes on without a look after the election": (
        _goes_on("look; elect; go_on b; until_released b; read 0; grant b M"),
        SHARED_EPOCH,
    ),
}
"""Who may fence, take over and read what, and in which order, is in the tables of the model of fencing."""


@pytest.mark.parametrize(("design", "wanted"), _WRONG.values(), ids=_WRONG.keys())
def test_every_other_order_is_wrong(design: Design, wanted: str) -> None:
    """Each rule is there because of a history that ends badly without it."""
    assert_wrong(design, wanted)


# --- old ends --------------------------------------------------------------------------------------------------------

_OLD_ENDS = {
    "own outcome to a told end in one partition of two": group(
        v=budget(inits=1), log_of=TWO_LOGS, recover=steps("init; declare; look; end 0; read 0; read 1; check")
    ),
    "own append in one partition of two": group(
        "expel V; fence V; fenced V; end 0; read 0; read 1; grant ab N", log_of=TWO_LOGS
    ),
    "a release that is visible in one log, the other read to a told end": group(
        "until_released a; read 0; read 1; grant ab N", v=budget(releases=1), log_of=TWO_LOGS, leaves="ab"
    ),
}


@pytest.mark.parametrize("design", _OLD_ENDS.values(), ids=_OLD_ENDS.keys())
def test_a_decision_on_an_old_end_doubles_a_tile(design: Design) -> None:
    """A broker that was deposed tells an earlier end, and nothing that the reader waits for lies behind that end."""
    assert_wrong(design, DOUBLE)


@pytest.mark.parametrize(
    "design",
    [
        pytest.param(group(EXPEL, v=budget(inits=1), strangers_fences=1), id="one log"),
        pytest.param(group(EXPEL_2, v=budget(inits=1), log_of=TWO_LOGS), id="two logs"),
        pytest.param(group(EXPEL, TAKE_OVER), id="two coordinators"),
        pytest.param(
            group(EXPEL_2, TAKE_OVER_2, log_of=TWO_LOGS, strangers_fences=1),
            id="two logs, two coordinators, a stranger fences",
        ),
    ],
)
def test_no_world_is_stuck(design: Design) -> None:
    """From every world there is a way out, whoever fences whom."""
    assert_none_is_stuck(design)


def test_the_way_to_a_double_tile_can_be_read() -> None:
    """A grant while the release is in flight, as the search tells it: the release fails and is sent again later."""
    design, wanted = _WRONG["a grant before the release's transaction is done"]
    assert assert_wrong(design, wanted).trace == (
        "V work: ab [0, 1) release b",
        "V commit: request lost",
        "N init",
        "A until_announced b",
        "V init",
        "V look",
        "V end 0",
        "A end 0",
        "V send",
        "V commit",
        "A grant b N: epoch 2, b from 0",
        "N work: takes up epoch 2",
        "N work: b [0, 1)",
        "N commit",
    )


def test_after_a_release_the_last_stable_offset_is_far_enough() -> None:
    """Whoever sees RELEASED has seen all that its writer committed there: it lies before it in the same log."""
    for v in (budget(1, 1, 1, 1), budget(releases=1, inits=2)):
        assert not explore(group("until_released b; read_stable 0; grant b N", v=v), ANYTHING).wrong
