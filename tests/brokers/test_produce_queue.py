"""Which batches for a broker go in one request."""

import asyncio
from collections.abc import Mapping

import pytest

from keylanes.brokers.deadline import Deadline
from keylanes.brokers.delivery import REQUEST_BYTES_MAX, AppendAnswer, ProduceBatch, Verdict
from keylanes.brokers.kafka.produce_queue import ProduceQueue
from keylanes.brokers.protocol import BrokerError, TopicPartition
from keylanes.brokers.throttling import BYTES_FIRST, LIMIT_MS, Allowance

from ..stage.virtual import virtual
from ..tiers.marks import tier

pytestmark = tier("check")

HALF = REQUEST_BYTES_MAX // 2
ALONE = BYTES_FIRST + 1
"""More than goes at once as long as nothing is known."""


def free() -> Allowance:
    """Of which much went unthrottled, later than all that happens here."""
    allowance = Allowance(LIMIT_MS)
    allowance.note_bytes(1 << 40, 0.0, 1e9)
    return allowance


@virtual
async def test_what_comes_while_a_request_is_under_way_goes_together() -> None:
    """As much as fits; who has left by then is not sent. An error is that of all who went together."""
    sent: list[list[int]] = []
    turn = asyncio.Semaphore(0)

    async def send(
        batches: Mapping[TopicPartition, ProduceBatch[bytes]], deadline: Deadline
    ) -> dict[TopicPartition, AppendAnswer]:
        assert deadline.remaining_s > 0
        sent.append([place.partition for place in batches])
        await turn.acquire()
        if len(sent) == 3:
            raise BrokerError("the connection was closed")
        return {place: AppendAnswer(Verdict.DONE, end=place.partition) for place in batches}

    queue = ProduceQueue(send, free())

    def ask(partition: int, size: int) -> "asyncio.Task[Mapping[TopicPartition, AppendAnswer]]":
        batches = {TopicPartition("t", partition): ProduceBatch(1, b"", size, size)}
        return asyncio.create_task(queue.answers(batches, Deadline(1_000, "producing", iter(()))))

    asked = [ask(0, 10)]
    await asyncio.sleep(1)
    for partition, size in enumerate((HALF, 10, HALF, 10, 10), 1):
        asked.append(ask(partition, size))
        await asyncio.sleep(0.01)
    asked[2].cancel()
    for _ in range(3):
        await asyncio.sleep(1)
        turn.release()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert sent == [[0], [1, 3], [4, 5]]
    assert [isinstance(one, BrokerError) for one in found] == [False] * 4 + [True] * 2
    assert isinstance(found[2], asyncio.CancelledError)
    assert [answer.end for one in found if isinstance(one, dict) for answer in one.values()] == [0, 1, 3]
    asked = [ask(6, 10)]
    turn.release()
    assert await asked[0], "it goes on behind an error"


@pytest.mark.parametrize(
    ("size", "unpacked", "allowance"),
    [(1, 1, free()), (REQUEST_BYTES_MAX + 1, 1, free()), (1, ALONE, Allowance(LIMIT_MS))],
)
@virtual
async def test_a_batch_that_is_alone_is_sent_whatever_it_takes(size: int, unpacked: int, allowance: Allowance) -> None:
    """At least one goes; a second one that is larger than a request may be goes behind its answer."""
    sent: list[int] = []

    async def send(
        batches: Mapping[TopicPartition, ProduceBatch[bytes]], deadline: Deadline
    ) -> dict[TopicPartition, AppendAnswer]:
        assert deadline.remaining_s > 0
        sent.append(len(batches))
        return dict.fromkeys(batches, AppendAnswer(Verdict.DONE))

    queue, deadline = ProduceQueue(send, allowance), Deadline(1_000, "producing", iter(()))
    batches = [{TopicPartition("t", partition): ProduceBatch(1, b"", size, unpacked)} for partition in range(2)]
    async with asyncio.timeout(1):
        await asyncio.gather(*(queue.answers(batch, deadline) for batch in batches))
    assert sent == ([2] if max(size, unpacked) == 1 else [1, 1])
