"""Appends to a real Kafka, one of which gets no answer."""

import asyncio

import pytest

from keylanes.brokers.kafka.broker import KafkaBroker
from keylanes.brokers.protocol import TopicPartition

from ..stage.proxy import PRODUCE, Fault, Proxy
from .test_kafka_traps import numbers, visible

pytestmark = [pytest.mark.broker, pytest.mark.timeout(90)]

AT_ONCE_S = 1.0


async def test_no_appender_waits_for_another(
    broker: KafkaBroker, through: KafkaBroker, proxy: Proxy, place: TopicPartition
) -> None:
    """While one gets no answer, another of the same connection writes at once, to the same partition."""
    one, other = through.appender(), through.appender()
    await one.append(numbers(place, 1))
    await other.append(numbers(place, 2))
    proxy.arm(PRODUCE, Fault.HOLD_REQUEST)
    held = asyncio.create_task(one.append(numbers(place, 4)))
    await proxy.caught()
    beside = asyncio.create_task(other.append(numbers(place, 3)))
    done, _ = await asyncio.wait({beside}, timeout=AT_ONCE_S)
    assert done, "it waits for another appender"
    assert not held.done()
    proxy.release()
    await asyncio.gather(held, beside)
    assert await visible(broker, place) == [1, 2, 3, 4]
