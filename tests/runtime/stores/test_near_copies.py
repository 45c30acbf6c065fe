"""Restores whose readers were opened before there was a plan, as who takes up ranges does it."""

import asyncio

import pytest

from keylanes.brokers.protocol import BrokerError, TopicPartition
from keylanes.keyrange.hashing import SPACE_END
from keylanes.runtime.stores import changelogs, copy_pass
from keylanes.state import restore as plans
from keylanes.state.tables import Marker

from ...tiers.marks import tier
from .test_restore import TOPIC, Readers, World, in_world, key_of

pytestmark = tier("check")


async def restored(world: World, connection: Readers, partitions: int = 1) -> int:
    """Open what is restored, and restore it; how many records were read for it."""
    await connection.open()
    world.progress.clear()
    restore, passes = world.restoring(connection), [world.source(partition) for partition in range(partitions)]
    for one in passes:
        await restore.open(one)
    await restore.run(passes)
    for partition in range(partitions):
        assert world.entries(partition) == world.truth[partition]
    return world.progress[-1].records


@pytest.mark.parametrize("lacks", [0, 1, 30])
@in_world()
async def test_a_near_copy_has_one_reader(world: World, lacks: int) -> None:
    """The beacons lie in what is read for the copy; what it has already is not counted, and not read again."""
    await world.fill()
    await world.restore(world.source())
    for i in range(lacks):
        await world.commit([(i, b"new")])
    connection = Readers(world)
    assert await restored(world, connection) == 2 * lacks
    assert len(connection.made) == 1


@in_world()
async def test_a_tail_that_is_too_large_is_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not kept is read once more, by the same reader or another, and each record counts once."""
    monkeypatch.setattr(copy_pass, "TAIL_BYTES_MAX", 2_000)
    monkeypatch.setattr(changelogs, "FETCH_RECORDS_MAX", 20)
    await world.fill()
    await world.restore(world.source())
    for i in range(100):
        await world.commit([(i, b"new")])
    assert await restored(world, Readers(world)) == 200


@in_world()
async def test_a_copy_that_is_far_has_its_beacons_looked_for_at_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all of its changelog would be read before anything is written. Its reader goes back then."""
    monkeypatch.setattr(plans, "BEACON_NEAR", 100)
    await world.fill()
    connection = Readers(world)
    assert await restored(world, connection) == 20 * 51
    assert len(connection.made) == 1


@in_world()
async def test_a_copy_that_is_thrown_away_is_read_from_the_start(world: World) -> None:
    """Its reader was opened where the copy seemed to go on."""
    await world.fill()
    for position in (world.cluster.watermarks(TopicPartition(TOPIC, 0)).high, 100_000):
        marker = Marker(position, world.now_ms - 1_000 * 3_600_000 * (position < 100_000))
        world.copy().write([(key_of(999), b"of another life")], [(0, SPACE_END, marker)])
        await world.commit([(1, b"one more")])
        await restored(world, Readers(world))


@in_world(5, restore_partitions_max=2)
async def test_more_copies_than_may_be_read_at_once(world: World) -> None:
    """So many are opened as may be read at once; the others come behind them."""
    for partition in range(5):
        await world.fill(partition=partition)
        world.transaction = 0
    connection = Readers(world)
    world.transaction = 20
    await restored(world, connection, 5)
    assert len(connection.made) <= 2 + 5


@in_world()
async def test_no_opened_reader_is_left(world: World) -> None:
    """Whenever it is given up, also before there was a plan."""
    await world.fill()
    for after_ms in (0.0, 0.1, 1.0, 5.0, 20.0):
        connection = Readers(world)
        await connection.open()
        restore = world.restoring(connection)
        await restore.open(world.source())
        await asyncio.sleep(after_ms / 1000)
        await restore.close()
        await asyncio.sleep(1)
        for reader in connection.made:
            with pytest.raises(BrokerError):
                await reader.fetch([], records_max=1, wait_ms=0)
