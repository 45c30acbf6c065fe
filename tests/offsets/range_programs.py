"""The programs of the model of key ranges: what a process does, in order; and what a test asserts of a search.

range_steps.py says what a step is. V owns the points at the start and works; A moves them to N; B, if there is one,
takes over from A at any time and gives them to M; W works beside them on a point of its own.
"""

from dataclasses import replace

from .range_history import assert_ledger_agrees
from .range_model import (
    ANYTHING,
    DOUBLE,
    GAP,
    OUTSIDE,
    Budget,
    Control,
    Design,
    Grant,
    Log,
    Plane,
    Process,
    World,
    cut,
    regranted,
)
from .range_steps import explore, is_at_rest, settled, successors
from .search import Found, stuck_worlds

MOVE = "until_released b; read 0; grant b N"
"""The coordinator moves a range whose owner gives it up."""

COME_BACK = "until_released b; read 0; grant b V"
"""The same, to the member that gave it up: as a process that is its own coordinator does it."""

EXPEL = "expel V; fence V; fenced V; end 0; read 0; grant ab N"
"""The coordinator takes all from a member."""

TAKE_OVER = "look; elect; look; take_over; end 0; read 0; grant ab M"
"""The second coordinator: fences who was expelled, expels and fences every other owner, gives all to M."""

TAKE_OVER_2 = "look; elect; look; take_over; end 0; end 1; read 0; read 1; grant ab M"

GO_ON = "look; elect; look; go_on b; until_released b; read 0; grant b M"
"""The second coordinator goes on with the move, to M, unless the first one came to its grant."""

EXPEL_2 = "expel V; fence V; fenced V; end 0; end 1; read 0; read 1; grant ab N"
"""The points lie in two partitions of the offset log: each has an own append, and is read."""

RECOVER = "init; declare; look; end 0; read 0; check"
RECOVER_2 = "init; declare; look; end 0; end 1; read 0; read 1; check"
BY_OFFSET_2 = "init; declare; look; read 0; read 1; check"
"""With ``Design.by_own_offset``."""

V, N, M, A, B, OTHER = range(6)
NAMES = "VNMAB"
ONE_LOG, TWO_LOGS = (0, 0), (0, 1)
NOTHING = Budget()


def steps(text: str) -> tuple[str, ...]:
    """A program as people write it."""
    return tuple(step.strip() for step in text.split(";") if step.strip())


def group(
    coordinator: str = "",
    successor: str = "",
    *,
    v: Budget = NOTHING,
    n: Budget = NOTHING,
    has_m: bool = False,
    log_of: tuple[int, ...] = ONE_LOG,
    grants: tuple[Grant, ...] = (),
    beside: Process | None = None,
    strangers_fences: int = 0,
    **rules: object,
) -> Design:
    """The world at the start. ``grants``: V has all points when there are none; ``beside``: W, or a task of A.

    X, who is not of the group, makes producers of V's id at any time, so often.
    """
    nothing = (0,) * len(log_of)
    grants = grants or (Grant(V, 1, nothing),)
    control = Control(1, A, grants=grants)
    plane = Plane(nothing)
    for grant in grants:
        plane = regranted(log_of, Control(), plane, grant)
    processes = [
        working(grants[-1], log_of, v),
        Process(("init", "work"), budget=n),
        Process(("init", "work") if has_m else ()),
        Process(steps(coordinator), term=1, seen=control),
        Process(steps(successor)),
    ]
    if beside is not None:
        processes.append(beside._replace(seen=control) if beside.term else beside)
    if strangers_fences:
        processes.append(Process(("fence V",) * strangers_fences))
    rules.setdefault("recover", steps(RECOVER_2 if 1 in log_of else RECOVER))
    names = NAMES + ("" if beside is None else "T" if beside.term else "W") + ("X" if strangers_fences else "")
    world = World((control,), plane, tuple(Log(nothing) for _ in range(max(log_of) + 1)), tuple(processes))
    return replace(Design(names, world, log_of), **rules)  # type: ignore[arg-type]  # tests only


def working(grant: Grant, log_of: tuple[int, ...] = ONE_LOG, budget: Budget = NOTHING) -> Process:
    """A member at work on a grant."""
    workers = tuple(cut(log_of, grant))
    return Process(("work",), epoch=grant.epoch, has_producer=True, workers=workers, budget=budget)


def task(text: str) -> Process:
    """One more task of the first coordinator, beside its program: what it does not wait for."""
    return Process(steps(text), term=1)


def neighbours(coordinator: str, *, v: Budget = NOTHING, recover: str = RECOVER) -> Design:
    """W has a, V has b, and both are written to one log: what W has open hides what V committed behind it."""
    of_w, of_v = Grant(OTHER, 1, (0, None)), Grant(V, 2, (None, 0))
    return group(coordinator, v=v, grants=(of_w, of_v), beside=working(of_w), recover=steps(recover))


def budget(splits: int = 0, merges: int = 0, releases: int = 0, inits: int = 0) -> Budget:
    """How often V may do what."""
    return Budget(splits, merges, releases, inits)


def labels(found: Found[World]) -> str:
    """All that was done in any world."""
    return "\n".join({step[1] for step in found.came_from.values() if step is not None})


def assert_right(design: Design, worlds: int) -> Found[World]:
    """Nothing wrong in any world; at the ends nothing is undecided, and only who has no work, or no answer, waits.

    All that V may do was done, and all that may fail did. The real ledger folds the history of every end to the model's
    edges, without a complaint.
    """
    found = explore(design, ANYTHING)
    assert not found.wrong, str(found)
    for end in found.ends:
        assert is_over(end), "somebody waits for ever"
    done = labels(found)
    wanted = design.start.processes[V].budget
    assert (" split at" in done, " merge" in done, " release" in done) == tuple(count > 0 for count in wanted[:3])
    assert all(fault in done for fault in ("request lost", "done, answer lost", "broker times out V"))
    assert not wanted.inits or "is fenced" in done
    is_late = any(world.processes[V].is_late for world in found.came_from)
    assert is_late is design.has_late_commits
    assert found.worlds == worlds, f"{found.worlds} worlds"
    for end in found.ends:
        assert_ledger_agrees(design, found.path_to(end), is_wrong=False)
    return found


def is_over(world: World) -> bool:
    """Whether nothing is undecided, and nobody waits but for work or for a release."""
    waiting = {process.todo[0].split()[0] for process in world.processes if process.todo}
    return is_at_rest(world) and waiting <= {"work", "until_released"}


def assert_wrong(design: Design, wanted: str) -> Found[World]:
    """The search must find the violation, and the real ledger complain of the tile: a runtime would stop there."""
    found = explore(design, (wanted,))
    assert found.wrong == wanted, f"expected: {wanted}\n{found}"
    if wanted in (DOUBLE, GAP, OUTSIDE):
        assert_ledger_agrees(design, found.path, is_wrong=True)
    return found


def assert_none_is_stuck(design: Design) -> None:
    """From every world there is a way to an end at which nothing is undecided and nobody waits for ever."""
    start = settled(design, design.start)
    assert not stuck_worlds(start, lambda world: successors(design, world), is_over)
