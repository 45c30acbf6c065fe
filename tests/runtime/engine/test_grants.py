"""Which grants a process takes up."""

import pytest

from keylanes.brokers.protocol import Outgoing, TopicPartition
from keylanes.brokers.simulated.virtual_loop import run_virtual
from keylanes.keyrange.ranges import WHOLE, KeyRange
from keylanes.offsets.codec import encode
from keylanes.offsets.decide import decide_grant

from ...stage.engine import OUT, SOURCE, Engine, application

PLACE = TopicPartition(SOURCE, 0)
LOWER = KeyRange(0, WHOLE.size // 2)


def test_a_grant_to_another_process_is_not_taken_up() -> None:
    """Told to work on a grant that names another incarnation, or on none, a process refuses; what it holds goes on."""

    async def main() -> None:
        app = application(commit_interval_ms=50)

        @app.handler(SOURCE, to=OUT, parallelising_factor=4)
        async def copy(value: bytes) -> bytes:
            return value

        engine = Engine(app)
        member = await engine.start()
        standing = member.work.standing
        assert standing is not None
        await member.work.requests.release(PLACE, LOWER)
        (grant,) = decide_grant(
            standing.ledger, member.coordinator.decisions.turn, PLACE, standing.incarnation + 7, LOWER
        )
        engine.cluster.write([Outgoing(f"{app.name}.control", 0, None, encode(grant))], ())
        for epoch in (getattr(grant, "epoch", 0), 99):
            with pytest.raises(ValueError, match=f"epoch {epoch} is no grant to this process"):
                await member.work.requests.take_up(PLACE, epoch)
        (run,) = member.runs
        assert all(worker.first >= LOWER.end for worker in run.dispatch.workers)
        await engine.stop()

    run_virtual(main())
