"""What a member tells of its load, by the signals of a group on a simulated cluster in virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from keylanes import App, Retry, State
from keylanes.brokers.protocol import Outgoing
from keylanes.group.reports import LITTLE
from keylanes.keyrange.hashing import SPACE_END, point_of_key
from keylanes.keyrange.ranges import KeyRange
from keylanes.offsets.codec import decode_signal
from keylanes.offsets.signals import BandLoad, Load

from ..stage.engine import OUT, SOURCE, application
from .membership.group import Group, coordinators, in_group, share, until

INTERVAL_S = 2.0
COST_S = 0.01


def working(factor: int = 4, **settings: Any) -> App:
    """Takes some time for each record."""
    app = application(commit_interval_ms=100, **settings)

    @app.handler(SOURCE, to=OUT, parallelising_factor=factor)
    async def work(value: bytes) -> bytes:
        await asyncio.sleep(COST_S)
        return value

    return app


def loads(group: Group) -> list[Load]:
    """All that were told, in order of time."""
    rows = [row for place in group.cluster.places("app.signals") for row in group.cluster.rows(place)]
    signals = [decode_signal(row.value or b"") for row in sorted(rows, key=lambda row: row.timestamp)]
    return [signal for signal in signals if isinstance(signal, Load)]


def newest(group: Group) -> dict[tuple[int, int], BandLoad]:
    """What was told last, by partition and first point."""
    return {(band.partition, band.first): band for load in loads(group) for band in load.bands}


async def steadily(group: Group, per_s: int, while_: Callable[[], bool]) -> None:
    """Send so many records a second."""
    while while_():
        group.send(per_s // 10)
        await asyncio.sleep(0.1)


@pytest.mark.parametrize(("factor", "settings"), [(4, {}), (1, {}), (4, {"split_hot_ranges": False})])
@in_group(partitions=2)
async def test_members_tell_what_their_ranges_cost(group: Group, factor: int, settings: dict[str, Any]) -> None:
    """The time of the handlers of all workers, and where it was spent; also where nothing is ever split."""
    await group.sharing("ab", working(factor, **settings))
    told, is_on = len(loads(group)), True
    sending = asyncio.create_task(steadily(group, 40, lambda: is_on))
    await asyncio.sleep(4 * INTERVAL_S)
    seen = newest(group)
    assert len(loads(group)) > told
    assert {partition for partition, _ in seen} == {0, 1}
    for band in seen.values():
        assert (band.first, band.end) == (0, SPACE_END)
        assert 0.8 < band.busy_us / (20 * INTERVAL_S * COST_S * 1e6) < 1.3
        assert 0.8 < band.records / (20 * INTERVAL_S) < 1.2
        assert sum(cost for _, cost in band.points) == band.busy_us
        cells = {point_of_key(b"k%d" % n) * factor // SPACE_END for n in range(50)}
        assert {point * factor // SPACE_END for point, _ in band.points} <= cells
        assert len(band.points) == factor
    is_on = False
    await sending
    await group.done()
    await until(lambda: all(band.busy_us <= LITTLE[0] for band in newest(group).values()), 4 * INTERVAL_S)


@pytest.mark.parametrize("is_async", [True, False])
@in_group(partitions=2)
async def test_a_wait_for_the_next_attempt_is_no_load(group: Group, is_async: bool) -> None:
    """Half of the records fail at once and are tried again a second later; what is told is the time in handlers."""
    app, tried = application(commit_interval_ms=100), set[bytes]()

    def fails_once(value: bytes) -> None:
        if value not in tried:
            tried.add(value)
            raise TimeoutError

    async def in_a_task(value: bytes) -> None:
        fails_once(value)

    app.handler(SOURCE, parallelising_factor=4, retry=Retry(backoff_ms=1_000))(in_a_task if is_async else fails_once)
    engines = await group.sharing("ab", app)
    for n in range(80):
        group.cluster.write([Outgoing(SOURCE, n % 2, b"k%d" % (n % 50), b"%d" % n)], ())
        await asyncio.sleep(4 * INTERVAL_S / 80)
    assert sum(engine.member.statistics(0.0).retries for engine in engines) > 20
    assert any(band.backlog for band in newest(group).values()), "records wait meanwhile"
    assert all(band.busy_us <= LITTLE[0] for told in loads(group) for band in told.bands)


@in_group(partitions=2)
async def test_who_is_alone_tells_nothing_and_tells_who_joins_at_once(group: Group) -> None:
    """What there is to share is known before the first plan with the new member is made."""
    first, second = (group.process(name, working()) for name in "ab")
    await first.start()
    is_on = True
    sending = asyncio.create_task(steadily(group, 40, lambda: is_on))
    await asyncio.sleep(5 * INTERVAL_S)
    assert not loads(group)
    joining = asyncio.create_task(second.start())
    await until(lambda: len(first.member.own_ledger.ledger.control.members) == 2)
    assert await until(lambda: len(loads(group)) > 0) <= 0.2
    assert all(band.busy_us for band in newest(group).values())
    assert set(newest(group)) == {(0, 0), (1, 0)}
    await until(lambda: first.member.group.heard.loads.cost((SOURCE, 0), 0, SPACE_END) is not None)
    await joining
    is_on = False
    await sending


@in_group(partitions=4)
async def test_a_new_coordinator_hears_everything(group: Group) -> None:
    """Also of bands whose load has not changed since it was told."""
    engines = await group.sharing("abc", working())
    await asyncio.sleep(4 * INTERVAL_S)
    (leader,) = coordinators(*engines)
    left = [engine for engine in engines if engine is not leader]
    await leader.stop()
    await until(share(*left))

    def knows_all() -> bool:
        places = [(SOURCE, partition) for partition in range(4)]
        heard = [engine.member.group.heard.loads for engine in coordinators(*left)]
        return bool(heard) and all(heard[0].cost(place, 0, SPACE_END) is not None for place in places)

    assert await until(knows_all) <= 3 * INTERVAL_S


@in_group(partitions=2)
async def test_what_is_left_and_how_large_the_state_is_are_told(group: Group) -> None:
    """The backlog of a band is that of its points; a range's state is looked at once it is there."""
    app = application(commit_interval_ms=100, split_hot_ranges=False)

    @app.handler(SOURCE, parallelising_factor=2)
    async def count(value: bytes, counted: State[bytes]) -> None:
        await asyncio.sleep(COST_S)
        counted.put(value * 100)

    await group.sharing("ab", app)
    group.cluster.write([Outgoing(SOURCE, n % 2, b"k%d" % (n % 500), b"v") for n in range(10_000)], ())
    await asyncio.sleep(4 * INTERVAL_S)
    early = newest(group)
    assert all(2_000 < band.backlog < 5_000 for band in early.values())
    await until(lambda: all(band.backlog == 0 for band in newest(group).values()))
    await until(lambda: all(band.state_bytes > 250 * 100 for band in newest(group).values()))


@in_group(partitions=1)
async def test_a_part_of_a_partition_has_workers_for_that_part(group: Group) -> None:
    """The factor is that of the whole partition: who holds a quarter of it splits up to a quarter of the workers."""
    engines = [group.process(name, working(4)) for name in "ab"]
    for engine in engines:
        await engine.start()
    quarter = KeyRange(0, SPACE_END // 4)
    await until(lambda: any(engine.member.runs for engine in engines))
    (other,) = [engine for engine in engines if not engine.member.runs]
    await other.member.work.requests.grant((SOURCE, 0), quarter)
    hot = [key for key in (b"%d" % n for n in range(400)) if point_of_key(key) < quarter.end]
    group.cluster.write([Outgoing(SOURCE, 0, hot[n % len(hot)], b"v") for n in range(6_000)], ())
    most = 0

    def is_done() -> bool:
        nonlocal most
        most = max(most, *(len(run.dispatch.workers) for run in other.member.runs))
        return len(group.cluster.committed_records(OUT)) == 6_000

    await until(is_done)
    assert most == 4


@in_group(partitions=2)
async def test_the_capacity_stands_in_the_control_log(group: Group) -> None:
    """That of each process, for whoever coordinates."""
    engines = [group.process("a", working(capacity=0.5)), group.process("b", working(capacity=3.0))]
    for engine in engines:
        await engine.start()
    members = engines[0].member.own_ledger.ledger.control.members.values()
    assert {member.joined.instance: member.joined.capacity for member in members} == {"a": 0.5, "b": 3.0}
