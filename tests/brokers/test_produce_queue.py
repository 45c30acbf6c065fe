"""Which batches for a broker go in one request."""

import asyncio
from collections.abc import Mapping

import pytest

from keylanes.brokers.asking import Deadline
from keylanes.brokers.delivery import REQUEST_BYTES_MAX, Answer, Batch, Verdict
from keylanes.brokers.kafka.produce_queue import ProduceQueue
from keylanes.brokers.protocol import BrokerError, TopicPartition

from ..stage.virtual import virtual
from ..tiers.marks import tier

pytestmark = tier("check")

HALF = REQUEST_BYTES_MAX // 2


@virtual
async def test_what_comes_while_a_request_is_under_way_goes_together() -> None:
    """As much as fits; who has left by then is not sent. An error is that of all who went together."""
    sent: list[list[int]] = []
    turn = asyncio.Semaphore(0)

    async def send(batches: Mapping[TopicPartition, Batch[bytes]], deadline: Deadline) -> dict[TopicPartition, Answer]:
        assert deadline.left > 0
        sent.append([place.partition for place in batches])
        await turn.acquire()
        if len(sent) == 3:
            raise BrokerError("the connection was closed")
        return {place: Answer(Verdict.DONE, end=place.partition) for place in batches}

    queue = ProduceQueue(send)

    def ask(partition: int, size: int) -> "asyncio.Task[Mapping[TopicPartition, Answer]]":
        batches = {TopicPartition("t", partition): Batch(1, b"", size)}
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


@pytest.mark.parametrize("size", [1, REQUEST_BYTES_MAX + 1])
@virtual
async def test_a_batch_that_is_alone_is_sent_whatever_it_takes(size: int) -> None:
    """At least one goes."""

    async def send(batches: Mapping[TopicPartition, Batch[bytes]], deadline: Deadline) -> dict[TopicPartition, Answer]:
        assert deadline.left > 0
        return dict.fromkeys(batches, Answer(Verdict.DONE))

    place = TopicPartition("t", 0)
    async with asyncio.timeout(1):
        assert await ProduceQueue(send).answers(
            {place: Batch(1, b"", size)}, Deadline(1_000, "producing", iter(()))
        ) == {place: Answer(Verdict.DONE)}
