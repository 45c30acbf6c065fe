"""Moves and expulsions that are asked for from outside, of processes at work on a simulated cluster."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from keylanes import SettingsError
from keylanes.group.requests import Request, make_expulsion, make_move_request
from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.control import Control
from keylanes.runtime.logs.own_ledger import Expelled
from keylanes.runtime.outside_requests import NotDone, send_request

from ..stage.cluster import fold_of
from ..stage.engine import SOURCE
from ..stage.virtual import virtual
from .test_group_logs import Group, runs_with

REQUEST, BY = "r1", "a test"


def owners(group: Group, partition: int) -> list[tuple[int, int, int]]:
    """Who owns which points of a partition, by the control log."""
    found = fold_of(group.cluster, "app").control.owners[SOURCE, partition]
    pieces: list[tuple[int, int, int]] = []
    for first, end, owner in found.pieces(0, SPACE_END):
        if pieces and pieces[-1][1:] == (first, owner.incarnation):
            first = pieces.pop()[0]
        pieces.append((first, end, owner.incarnation))
    return pieces


async def asked(group: Group, make: Callable[[Control], Request], timeout_s: float = 60.0) -> list[str]:
    """Ask; the stages that were told."""
    said: list[str] = []
    await send_request(await group.logs(), make, REQUEST, timeout_s, said.append)
    return said


def move(partition: int, to: str, **more: str) -> Callable[[Control], Request]:
    """Of a partition of the source."""
    return lambda control: make_move_request(control, REQUEST, BY, (SOURCE, partition), to, **more)


@virtual
async def test_a_partition_goes_where_it_is_asked_to_go() -> None:
    """Whole, or some cells of it; each step is told. What is there already is done at once."""
    group = Group()
    first, second = await group.start("a"), await group.start("b")
    await group.until(runs_with("a", "b"))
    ((_, _, owner),) = owners(group, 0)
    other = 3 - owner
    said = await asked(group, move(0, "ab"[other - 1]))
    assert said[0] == "in[0] waits for the coordinator to plan it"
    assert said[-1] == f"in[0] belongs to incarnation {other} {'ab'[other - 1]}"
    assert owners(group, 0) == [(0, SPACE_END, other)]
    assert await asked(group, move(0, str(other))) == said[-1:]
    await asked(group, move(0, str(owner), cells="1..2"))
    quarter = SPACE_END // 4
    assert owners(group, 0) == [
        (0, quarter, other),
        (quarter, 3 * quarter, owner),
        (3 * quarter, SPACE_END, other),
    ]
    for engine in (second, first):
        await engine.stop()


@virtual
async def test_for_anybody_it_goes_to_another_one() -> None:
    """Once, however often it is said."""
    group = Group()
    engines = [await group.start(name) for name in "abc"]
    await group.until(runs_with("a", "b", "c"))
    ((_, _, owner),) = owners(group, 0)
    await asked(group, move(0, "any"))
    ((_, _, after),) = owners(group, 0)
    assert after != owner
    await asyncio.sleep(30)
    for engine in engines:
        await engine.stop()


@virtual
async def test_a_request_that_is_lost_is_said_again() -> None:
    """The coordinator that might have heard it is killed; its successor does it."""
    group = Group()
    engines = [await group.start(name) for name in "abc"]
    await group.until(runs_with("a", "b", "c"))
    leader = next(engine for engine in engines if engine.member.group.coordinating.is_coordinator)
    left = [engine for engine in engines if engine is not leader]
    partition = next(p for p in range(4) if owners(group, p)[0][2] == engines.index(left[0]) + 1)
    await leader.crash()
    said = await asked(group, move(partition, left[1].name), 120)
    assert said[-1].startswith(f"in[{partition}] belongs to")
    for engine in left:
        await engine.stop()


@virtual
async def test_what_takes_too_long_may_still_be_done() -> None:
    """It is said so, with how far it is."""
    group = Group()
    first, second = await group.start("a"), await group.start("b")
    await group.until(runs_with("a", "b"))
    await first.crash()
    await second.crash()
    with pytest.raises(NotDone, match=r"not done after 5 s: in\[0\] waits for the coordinator to plan it\. It may"):
        await asked(group, move(0, "any"), 5.0)


@virtual
async def test_a_member_is_expelled_on_request() -> None:
    """The others have its ranges; its process notices, and may come back as a new incarnation."""
    group = Group()
    _, second = await group.start("a"), await group.start("b")
    await group.until(runs_with("a", "b"))
    said = await asked(group, partial(make_expulsion, request=REQUEST, by=BY, who="b"))
    assert said[-1] == "incarnation 2 b is expelled; its ranges go to the others"
    await group.until(runs_with("a"))
    await second.fails(Expelled, r"was expelled \(operator\)")


@virtual
async def test_nothing_is_asked_where_nobody_can_run() -> None:
    """A broker that proves that it is used here alone has no member; one that never had any has no signals."""
    group = Group()
    first = await group.start("a")
    logs = await group.logs()
    with pytest.raises(SettingsError, match=r"app.signals does not exist: no process of this version has run"):
        await send_request(logs._replace(has_signals=False), move(0, "a"), REQUEST, 1.0, lambda _: None)
    logs.broker.is_alone = True
    with pytest.raises(SettingsError, match=r"no process of the application runs"):
        await send_request(logs, move(0, "a"), REQUEST, 1.0, lambda _: None)
    await first.stop()
