"""Pyrallel-Consumer as its users write it: its asyncio engine, key order, as many in flight as all others."""

import asyncio

from pyrallel_consumer import (
    ExecutionConfig,
    ExecutionMode,
    KafkaConfig,
    OrderingMode,
    ParallelConsumerConfig,
    PyrallelConsumer,
    WorkItem,
)

from _driver import Spec, Tally, read_spec, say, versions

QUEUED_PER_SLOT = 5
POLL_RECORDS = 250
"""A poll that brings more than may be in flight makes the library pause the consumer, and what was prefetched is
fetched again, up to a second later: with 5,000 it did 5,000 records/s, with its default of 1,000 fewer, with 250 12,000
to 17,000.
"""


def config(spec: Spec) -> KafkaConfig:
    """With defaults, but for what the order says and for no dead letters."""
    execution = ExecutionConfig(mode=ExecutionMode.ASYNC, max_in_flight=spec.in_flight)
    parallel = ParallelConsumerConfig(
        ordering_mode=OrderingMode.KEY_HASH,
        poll_batch_size=POLL_RECORDS,
        queue_max_messages=QUEUED_PER_SLOT * spec.in_flight,
        execution=execution,
    )
    return KafkaConfig(
        BOOTSTRAP_SERVERS=[spec.bootstrap],
        CONSUMER_GROUP=spec.group,
        AUTO_OFFSET_RESET="earliest",
        dlq_enabled=False,
        parallel_consumer=parallel,
    )


async def main(spec: Spec) -> None:
    """Run until all expected records are handled, then stop in order."""
    is_done = asyncio.Event()
    tally = Tally(spec, is_done.set)
    begin, end, seconds = tally.begin, tally.end, spec.handler_ms / 1_000

    async def handle(item: WorkItem) -> None:
        if not tally.wants(item.payload):
            return
        token = begin(item.payload)
        if seconds:
            await asyncio.sleep(seconds)
        end(token)

    consumer = PyrallelConsumer(config(spec), handle, spec.topic)
    await consumer.start()
    say({"event": "ready"})
    await is_done.wait()
    say({**tally.result(), "versions": versions("pyrallel-consumer", "confluent-kafka")})
    await consumer.stop()


if __name__ == "__main__":
    asyncio.run(main(read_spec()))
