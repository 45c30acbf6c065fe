"""A commit that stays in the network and reaches the cluster in the middle of a later transaction."""

import asyncio

from keylanes.brokers.protocol import TopicPartition
from keylanes.brokers.simulated.network import Fault, Latency, RequestKind
from keylanes.brokers.simulated.virtual_loop import run_virtual

from ...stage.cluster import Cluster
from ...stage.engine import OUT, SOURCE, Engine, application, started

SEEDS = 40
RECORDS = 8
TIMEOUT_MS = 300


def test_a_late_commit_tears_no_later_transaction() -> None:
    """Its answer did not come, so the producer is replaced: whatever it comes upon, each output is there once, in
    a transaction with its event.
    """
    for seed in range(SEEDS):
        run_virtual(commit_late(seed), seed=seed)


async def commit_late(seed: int) -> None:
    """Hold a commit back, then the records of a later transaction; let go of both at once."""
    app = application(commit_interval_ms=50)

    @app.handler(SOURCE, to=OUT, parallelising_factor=4)
    async def copy(value: bytes) -> bytes:
        return value

    engine = await started(app, partitions=2, cluster=Cluster(seed, Latency(timeout_ms=TIMEOUT_MS)))
    network = engine.cluster.network
    network.arm(RequestKind.END_TXN, Fault.HOLD_REQUEST)
    for number in range(RECORDS):
        engine.send(b"k%d" % number, b"%d" % number, partition=number % 2)
    await network.caught()
    await asyncio.sleep(TIMEOUT_MS / 1000 - 0.02)  # its sender is about to give up
    for number in range(RECORDS, 2 * RECORDS):
        engine.send(b"k%d" % number, b"%d" % number, partition=number % 2)
    network.arm(RequestKind.PRODUCE, Fault.HOLD_REQUEST)
    await network.caught()
    network.release()
    await engine.level()
    found = sorted(int(value or b"") for values in engine.values().values() for value in values)
    assert found == list(range(2 * RECORDS)), f"seed {seed}: {found}"
    for partition in range(2):
        check_whole(engine, TopicPartition(OUT, partition), seed)
    await engine.stop()


def check_whole(engine: Engine, out: TopicPartition, seed: int) -> None:
    """Outputs stand in transactions that have an event in the offset log."""
    events = {
        row.transaction
        for place in engine.cluster.places(f"{engine.app.name}.offsets")
        for row in engine.cluster.rows(place)
    }
    alone = [row.value for row in engine.cluster.rows(out) if row.transaction not in events]
    assert not alone, f"seed {seed}: {alone} became visible without their event"
