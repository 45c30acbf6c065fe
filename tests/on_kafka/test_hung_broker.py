"""One of three brokers hangs, instead of dying: it accepts connections and says nothing. The work goes on beside it."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from keylanes.devkafka.cluster import KafkaCluster
from keylanes.devkafka.node import KafkaNode

from ..stage.hanging import (
    LIMIT_S,
    OUT,
    SOURCE,
    Gaps,
    Lateness,
    Load,
    counting,
    create,
    expected,
    is_controller,
    leader_of,
    leaders_of,
    read,
)
from ..stage.waiting import reached
from ..tiers.marks import tier

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

HANGS_S, STARTS, MEMBERS, LATE_S_MAX = 30.0, 2, 4, 20.0
SESSION_MS = 9_000
"""Kafka's default."""
STOPS_S_MAX = SESSION_MS / 1000 + 3
"""By then another node leads, and the application has found it."""
QUORUM_S_MAX = 3.0
"""Where the node is the active controller: another one is elected first (controller.quorum.fetch.timeout.ms), which
takes 1.6 to 2.1 s on two cores, and the sessions of the brokers begin anew.
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three nodes."""
    with KafkaCluster(tmp_path_factory.mktemp("hung") / "kafka", session_ms=SESSION_MS) as cluster:
        yield cluster


def stops_s_max(cluster: KafkaCluster, node: KafkaNode) -> float:
    """For how long nothing may be committed when a node hangs."""
    return STOPS_S_MAX + QUORUM_S_MAX * is_controller(node, cluster)


async def until_end(cluster: KafkaCluster, folder: Path, name: str) -> float:
    """A fresh application works a topic to its end; how long that took."""
    began = time.monotonic()
    await asyncio.to_thread(lambda: counting(cluster, folder, name, "few", f"few-{name}").run(until="level"))
    return time.monotonic() - began


async def hang(cluster: KafkaCluster, node: KafkaNode, folder: Path) -> tuple[float, float]:
    """The node hangs for a while in which applications begin; from when to when.

    One of them is new. It needs topics, which only the controller makes. When that is the node that hangs, the brokers
    wait for it before they ask its successor (controller.socket.timeout.ms).
    """
    began = time.monotonic()
    node.suspend()
    new = asyncio.ensure_future(until_end(cluster, folder, "new"))
    try:
        for number in range(STARTS):
            assert await until_end(cluster, folder, f"fresh-{number}") < HANGS_S
        await asyncio.sleep(began + HANGS_S - time.monotonic())
    finally:
        node.resume()
    ended = time.monotonic()
    await new
    return began, ended


@tier("proof", "hung-broker")
async def test_commits_go_on_while_a_broker_hangs(cluster: KafkaCluster, tmp_path: Path) -> None:
    """The worst stop is that of the fail-over, commits go on while it hangs, fresh starts beside it succeed, and
    nothing is lost, doubled or out of order.
    """
    await create(cluster, SOURCE, OUT, "few")
    with Load(cluster, "few") as few:
        await reached(lambda: few.written > 100, LIMIT_S)
    for number in range(STARTS):
        await until_end(cluster, tmp_path, f"fresh-{number}")
    with Load(cluster, "few", few.written) as few:
        await reached(lambda: few.written > 200, LIMIT_S)
    app = counting(cluster, tmp_path, "hung")
    with Load(cluster) as load:
        async with app:
            commits = Gaps(lambda: app.statistics().commits)
            await reached(lambda: app.statistics().commits > 20, LIMIT_S)
            node = await asyncio.to_thread(leader_of, cluster, "hung.control")
            limit_s = stops_s_max(cluster, node)
            began, ended = await hang(cluster, node, tmp_path)
            stopped = commits.longest(began, ended)
            assert stopped <= limit_s
            assert commits.between(began + stopped, ended) > 10
            await asyncio.sleep(5)
    await asyncio.to_thread(lambda: counting(cluster, tmp_path, "hung").run(until="level"))
    found = await asyncio.to_thread(read, cluster, OUT)
    assert found == expected(load.written)
    for name in ("new", *(f"fresh-{number}" for number in range(STARTS))):
        assert await asyncio.to_thread(read, cluster, f"few-{name}") == expected(few.written)


async def node_of(cluster: KafkaCluster, case: str, name: str) -> KafkaNode:
    """The node that leads a log of the application, or coordinates transactions, of those that do not lead control."""
    if case != "transactions":
        return await asyncio.to_thread(leader_of, cluster, f"{name}.{case}")
    (control,) = await asyncio.to_thread(leaders_of, cluster, f"{name}.control")
    states = Counter(await asyncio.to_thread(leaders_of, cluster, "__transaction_state"))
    del states[control]
    return cluster.nodes[states.most_common(1)[0][0] - 1]


@tier("proof", "hung-leaders")
@pytest.mark.parametrize("case", ["control", "offsets", "transactions"])
async def test_a_group_goes_on_while_a_broker_hangs(cluster: KafkaCluster, tmp_path: Path, case: str) -> None:
    """Whatever it led: somebody commits within the session of brokers and 3 s, and no record is late by 20 s."""
    source, out, name = f"{case}-in", f"{case}-out", f"group-{case}"
    await create(cluster, source, message_timestamp_type="LogAppendTime")
    await create(cluster, out)
    members = [
        counting(cluster, tmp_path, name, source, out, group_instance_id=f"member-{number}")
        for number in range(MEMBERS)
    ]
    with Load(cluster, source) as load, Lateness(cluster, out) as late:
        async with AsyncExitStack() as at_work:
            await asyncio.gather(*(at_work.enter_async_context(member) for member in members))
            commits = Gaps(lambda: sum(member.statistics().commits for member in members))
            await reached(lambda: all(member.statistics().commits > 20 for member in members), LIMIT_S)
            late.latest_s = 0.0
            node = await node_of(cluster, case, name)
            limit_s, began = stops_s_max(cluster, node), time.monotonic()
            node.suspend()
            try:
                await asyncio.sleep(HANGS_S)
            finally:
                node.resume()
            assert commits.longest(began, time.monotonic()) <= limit_s
            load.end()
    assert late.latest_s <= LATE_S_MAX
    await asyncio.to_thread(lambda: counting(cluster, tmp_path, name, source, out).run(until="level"))
    assert await asyncio.to_thread(read, cluster, out) == expected(load.written)
