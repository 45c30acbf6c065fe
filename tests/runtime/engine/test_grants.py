"""Which grants a process takes up."""

import asyncio
from typing import Any

import pytest

from keylanes.keyrange.ranges import WHOLE
from keylanes.runtime.partition.dispatch import PartitionDispatch
from keylanes.runtime.partition.worker import WorkerNumbers

from ...stage.engine import Engine
from ...stage.virtual import virtual
from ..membership.group import passing_on, until


def holds_one(engine: Engine) -> bool:
    """Whether a process works on one partition."""
    return [bool(run.dispatch.workers) for run in engine.member.runs] == [True]


@virtual
async def test_who_is_slow_to_write_its_copy_lets_go_of_what_is_granted_to_another_already() -> None:
    """The release is visible, and the range granted on, before its transaction is through here: nothing is left of it,
    and nothing more of its records is read.
    """
    first = Engine(passing_on(), partitions=2, name="first")
    second = Engine(passing_on(), partitions=2, cluster=first.cluster, name="second")
    await first.start()
    await until(lambda: bool(first.member.statistics(0.0).commits))
    keeper, is_written = first.member.keeper, asyncio.Event()
    committed = keeper.note_commit

    async def slowly(*given: Any, **named: Any) -> None:
        await committed(*given, **named)
        await is_written.wait()

    keeper.note_commit = slowly  # type: ignore[method-assign]  # a disk that takes its time
    await second.start()
    await until(lambda: holds_one(second), 60)
    assert not first.member.own_ledger.ledger.control.moves.release_requests, "it has read the grant"
    is_written.set()
    await until(lambda: holds_one(first), 10)
    assert len(first.member.statistics(0.0).partitions) == 1


@virtual
async def test_a_grant_to_another_process_is_not_taken_up() -> None:
    """Told to work on a grant that names another incarnation, or on none, a process refuses; what it holds goes on."""
    first = Engine(passing_on(), partitions=2, name="first")
    second = Engine(passing_on(), partitions=2, cluster=first.cluster, name="second")
    await first.start()
    await second.start()
    await until(lambda: all(holds_one(engine) for engine in (first, second)), 60)
    (held,), (of_other,) = first.member.runs, second.member.runs
    cycle, foreign = first.member.work.cycle, of_other.dispatch
    await first.member.own_ledger.read()
    foreign_epoch = foreign.epoch
    assert first.member.own_ledger.ledger.partition(foreign.place).parts[foreign_epoch].incarnation == 2
    parts = first.member.own_ledger.ledger.partition(foreign.place).parts
    for epoch in (foreign_epoch, 99):
        dispatch = PartitionDispatch(*foreign.place, 0, 1_000, WorkerNumbers())
        dispatch.incarnation = held.dispatch.incarnation
        with pytest.raises(ValueError, match=f"epoch {epoch} is no grant to this process"):
            cycle.range_changes.add_grant(dispatch, epoch, parts.get(epoch), [WHOLE], ())
    assert first.member.runs == [held]
