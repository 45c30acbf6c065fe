"""Appends to the simulated cluster: what a fault of the network does to one of them, and what to those beside it."""

import asyncio
from collections import Counter

import pytest

from keylanes.brokers.protocol import BrokerError, BrokerTimeout
from keylanes.brokers.simulated.broker import Fault, Latency, RequestKind
from keylanes.brokers.simulated.virtual_loop import run_virtual

from ..stage.virtual import virtual
from ..tiers.marks import tier
from .clusters import cluster_of, committed, of
from .test_simulated_network import LOST

pytestmark = tier("check")

TIMEOUT_MS = 1_000


@pytest.mark.parametrize("fault", LOST)
@virtual
async def test_a_lost_append_is_written_once_and_in_order(fault: Fault) -> None:
    """It is sent again under the same sequence number. Those of one appender wait for whichever is first."""
    cluster = cluster_of()
    appender = cluster.connect("one").appender()
    cluster.network.arm(RequestKind.PRODUCE, fault)
    await asyncio.gather(appender.append(of(1, 2)), appender.append(of(3)))
    assert committed(cluster) in ([1, 2, 3], [3, 1, 2])


def test_a_late_append_may_come_after_newer_ones() -> None:
    """Sessions do not keep each other's order: what was given up lands behind what was sent after it, or before."""

    async def main(seed: int) -> tuple[int, ...]:
        cluster = cluster_of(seed, latency=Latency(timeout_ms=1_000))
        appender = cluster.connect("one").appender()
        await appender.append([])
        cluster.faults.request_late, cluster.faults.request_late_ms = 0.5, 3_000
        for value in (1, 2):
            try:
                await appender.append(of(value))
            except BrokerTimeout:
                cluster.faults.heal()
        await asyncio.sleep(5)
        return tuple(committed(cluster))

    found = Counter(run_virtual(main(seed), seed=seed) for seed in range(60))
    assert {(1, 2), (2, 1)} <= set(found)


@virtual
async def test_an_append_without_an_answer_holds_up_its_own_appender_only() -> None:
    """Another one of the connection goes on, and what was held comes late, behind what was written meanwhile."""
    cluster, loop = cluster_of(latency=Latency(timeout_ms=TIMEOUT_MS)), asyncio.get_running_loop()
    connection = cluster.connect("one")
    one, other = connection.appender(), connection.appender()
    await one.append(of(1))
    await other.append(of(2))
    cluster.network.arm(RequestKind.PRODUCE, Fault.HOLD_REQUEST)
    held = asyncio.create_task(one.append(of(9)))
    await cluster.network.caught()
    beside = asyncio.create_task(other.append(of(3, 4, 5)))
    done, _ = await asyncio.wait({beside}, timeout=TIMEOUT_MS / 2_000)
    assert done, "it waited for another appender"
    assert not held.done()
    began = loop.time()
    with pytest.raises(BrokerTimeout):
        await held
    assert loop.time() - began < TIMEOUT_MS / 1000
    await one.append(of(6))
    cluster.network.release()
    await asyncio.sleep(1)
    assert committed(cluster) == [1, 2, 3, 4, 5, 6, 9]


@virtual
async def test_who_waits_in_line_waits_no_longer_than_its_own_time() -> None:
    """It ends with those in front of it, not one time-out behind each of them, and has sent nothing."""
    cluster, loop = cluster_of(latency=Latency(timeout_ms=TIMEOUT_MS)), asyncio.get_running_loop()
    appender = cluster.connect("one").appender()
    await appender.append(of(1))
    cluster.network.arm(RequestKind.PRODUCE, Fault.HOLD_REQUEST)
    began = loop.time()
    ended = await asyncio.gather(*(appender.append(of(2)) for _ in range(6)), return_exceptions=True)
    assert loop.time() - began == pytest.approx(TIMEOUT_MS / 1000, abs=0.01)
    assert [type(error) for error in ended] == [BrokerTimeout] * 6
    assert sum("others were in front of it" in str(error) for error in ended) == 5
    cluster.network.release()
    await appender.append(of(3))
    await asyncio.sleep(1)
    assert sorted(committed(cluster)) == [1, 2, 3]


@pytest.mark.parametrize("kind", [RequestKind.INIT, RequestKind.PRODUCE])
@virtual
async def test_a_close_ends_what_is_under_way(kind: RequestKind) -> None:
    """Whoever is at an append, or waits in line, gets a BrokerError then; other appenders go on."""
    cluster, loop = cluster_of(), asyncio.get_running_loop()
    connection = cluster.connect("one")
    appender, other = connection.appender(), connection.appender()
    await other.append(of(1))
    cluster.network.arm(kind, Fault.HOLD_REQUEST)
    running = [asyncio.create_task(appender.append(of(9))) for _ in range(3)]
    await cluster.network.caught()
    began = loop.time()
    await appender.close()
    cluster.network.release()
    ended = await asyncio.gather(*running, return_exceptions=True)
    assert all(isinstance(error, BrokerError) for error in ended), ended
    assert loop.time() - began < 1
    await other.append(of(2))
    await asyncio.sleep(1)
    written = committed(cluster)
    assert [value for value in written if value != 9] == [1, 2]
    assert written.count(9) <= (kind is RequestKind.PRODUCE), "what was sent may come late, and nothing else is sent"
