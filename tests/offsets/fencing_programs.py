"""The programs of the fencing model: what a process does, in order; and what a test asserts of a search.

See fencing_steps.py for what a step does. A READ that has no own append before it comes to whatever end a broker tells.
"""

from dataclasses import replace

from .fencing_model import ANYTHING, DOUBLE, HANGING, Design, Fold, Grant, Process, World
from .fencing_steps import explore, is_at_rest, settled, successors
from .search import Found, stuck_worlds

V, N, M, A, B, X = range(6)

MEMBER = ("init", "declare", "wait_grant", "check", "append")
"""A member that has nothing yet: its producer first, then it follows the control log, to behind an own append."""

COORDINATOR = ("expel 0", "fence 0", "fenced 0", "end", "read", "grant")
"""The first coordinator takes the range from member 0."""

READS_BACK = ("expel 0", "look", "fence 0", "fenced 0", "look", "end", "read", "grant")
"""The same as the real one does it: each step begins when the event before it was read back."""

SUCCESSOR = ("look", "elect", "look", "take_over", "end", "read", "grant")
"""The second one may start at any time, also while the first is only slow."""

START = ("init", "look", "elect", "look", "join", "expel_members", "end", "read", "grant", "look", "check", "append")
"""A process that is its own coordinator, from its start to its work. Its own GRANT is the append behind its INIT."""

START_REREADING = (
    *("init", "look", "elect", "look", "join", "look_again", "expel_members", "look_again"),
    *("end", "read", "look_again", "grant", "look", "check", "append"),
)
"""The same with more looks between, as a process needs them that folds what it wrote itself from the log."""

RECOVER = ("init", "declare", "look", "end", "read", "check", "append")
"""Any member after a failure of its producer, whatever the failure was."""

RECOVER_BY_OFFSET = tuple(step for step in RECOVER if step != "end")
"""The same with ``Design.by_own_offset``."""


def group(
    coordinator: tuple[str, ...] = COORDINATOR,
    successor: tuple[str, ...] = (),
    *,
    inits: tuple[int, int, int] = (2, 0, 0),
    member: tuple[str, ...] = MEMBER,
    strangers_victims: tuple[int, ...] = (),
    **rules: object,
) -> Design:
    """V owns the range and is at work; A gives it to N; B, if there is one, takes over from A and gives it to M.

    X, who is not of the group, makes producers of these victims' ids, each at any time.
    """
    control = Fold(1, A, frozenset({V, N, M}), grants=(Grant(V, 1, 0),))
    processes = (
        Process(("append",), epoch=1, has_producer=True, inits=inits[V]),
        Process(member, inits=inits[N]),
        Process(member if successor else (), inits=inits[M] if successor else 0),
        Process(coordinator, term=1, seen=control),
        Process(successor),
        Process(tuple(f"fence {victim}" for victim in strangers_victims)),
    )
    rules.setdefault("recover", RECOVER)
    design = Design("VNMABX", World((control,), (), processes), grantee=(0, 0, 0, N, M))
    return replace(design, **rules)  # type: ignore[arg-type]  # tests only


def starts(*inits: int, program: tuple[str, ...] = START, **rules: object) -> Design:
    """Processes P, Q, R of one application started at any times; each may replace its producer so many times."""
    processes = tuple(Process(program, inits=n) for n in inits)
    rules.setdefault("recover", RECOVER)
    design = Design("PQR"[: len(inits)], World((Fold(),), (), processes), in_order=True)
    return replace(design, **rules)  # type: ignore[arg-type]  # tests only


def assert_wrong(design: Design, wanted: str = DOUBLE) -> None:
    """The search must find the violation; the shortest way to it is what a person wants to read when it doesn't."""
    found = explore(design, (wanted,))
    assert found.wrong == wanted, f"expected: {wanted}\n{found}"


def assert_right(design: Design, worlds: int, workers: set[int]) -> Found[World]:
    """Nothing wrong in any of the worlds; their number and who worked show that the model did not shrink unnoticed.

    No batch hangs. At every end all is done: no process waits but for a grant that goes to another, and nothing is
    undecided.
    """
    found = explore(design, ANYTHING)
    assert not found.wrong, str(found)
    assert not any(entry.status == HANGING for world in found.came_from for entry in world.log)
    assert found.worlds == worlds, f"{found.worlds} worlds"
    assert {entry.owner for end in found.ends for entry in end.log} == workers
    for end in found.ends:
        assert is_at_rest(end)
    return found


def stuck(design: Design) -> list[World]:
    """The worlds from which no way leads to an end at which all is done."""
    return stuck_worlds(settled(design, design.start), lambda world: successors(design, world), is_at_rest)


def assert_none_is_stuck(design: Design) -> None:
    """From every world there is a way to an end at which all is done, whatever was repeated before."""
    assert not stuck(design)


def without(program: tuple[str, ...], *names: str) -> tuple[str, ...]:
    """The program without some of its steps."""
    return tuple(step for step in program if step.partition(" ")[0] not in names)
