"""A partition that is shared out by what its records cost, by a group on a simulated cluster in virtual time."""

import asyncio

from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.codec import decode
from keylanes.offsets.control_events import PlanMade
from keylanes.offsets.event_values import PlannedMove

from .membership.group import Group, held, in_group, until
from .test_load_report import steadily, working

JOIN_S = 3.0
"""Who joins works within that."""
IDLE_S = 60.0


def plans(group: Group) -> list[PlanMade]:
    """All that were made."""
    rows = [row for place in group.cluster.places("app.control") for row in group.cluster.rows(place)]
    events = [decode(row.value or b"") for row in rows]
    return [event for event in events if isinstance(event, PlanMade)]


@in_group(partitions=1)
async def test_members_share_one_partition_under_load_and_rest_when_it_is_idle(group: Group) -> None:
    """Who joins has a part of it soon, each record is handled once and in order; then nothing moves."""
    engines = [group.process(name, working(factor=8)) for name in "abc"]
    await engines[0].start()
    is_on = True
    sending = asyncio.create_task(steadily(group, 200, lambda: is_on))
    await asyncio.sleep(6)
    for count, engine in enumerate(engines[1:], 2):
        await engine.start()
        await until(lambda: all(map(held, engines[:count])), JOIN_S)  # noqa: B023  # it is waited for here
        await asyncio.sleep(8)
    points = [sum(w.end - w.first for run in e.member.runs for w in run.dispatch.workers) for e in engines]
    assert sum(points) == SPACE_END
    assert max(points) <= SPACE_END // 2
    is_on = False
    await sending
    await group.done()
    passed = len(plans(group))
    await asyncio.sleep(IDLE_S)
    moves: list[PlannedMove] = [move for plan in plans(group)[passed:] for move in plan.moves]
    assert not [move for move in moves if move.origin != move.target]
