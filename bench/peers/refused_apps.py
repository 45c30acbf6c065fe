"""A count and an output of each record, by each library as its users write it; one output is more than its topic takes.

Called as ``python refused_apps.py ORDER.json``. It runs until it is told to stop, or until it ends by itself. A value
asks for the length of its output, and an output holds the count of its key with this record. Each arm needs the
environment of its library only. Settings are those of the other drivers: see there.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from struct import Struct
from typing import Any

from _driver import Spec, read_spec

HEAD = Struct("<IIQ")
POLL_RECORDS = 500


def output_of(value: bytes, count: int) -> bytes:
    """The number of the key, the number within it, the count; as long as the value asks for."""
    key, number, size = HEAD.unpack_from(value)
    head: bytes = HEAD.pack(key, number, count)
    return head + b"." * int(size - HEAD.size)


def run_keylanes(spec: Spec) -> None:
    """With dead letters; ``keylanes-stateless`` keeps no count."""
    from keylanes import App, DeadLetter, Settings
    from keylanes.runtime.handlers.stores import State

    settings = Settings(
        commit_interval_ms=spec.commit_ms,
        compression_type=None,
        state_folder=spec.folder,
        group_instance_id="one",
    )
    app = App(spec.group, broker=f"kafka://{spec.bootstrap}", settings=settings)

    async def count(value: bytes, seen: State[int]) -> bytes:
        seen.put((seen.get() or 0) + 1)
        return output_of(value, seen.get() or 0)

    async def pass_on(value: bytes) -> bytes:
        return output_of(value, 0)

    handle: Callable[..., Awaitable[bytes]] = pass_on if spec.arm == "keylanes-stateless" else count
    app.handler(spec.topic, to=spec.output, on_failure=DeadLetter(f"{spec.group}-dead"))(handle)
    app.run()


def run_flechtwerk(spec: Spec) -> None:
    """Exactly once, as always."""
    import uvloop
    from flechtwerk import IncomingMessage, Message, State

    from flechtwerk_app import SEEN, Told, application, bytes_of

    async def count(message: IncomingMessage, state: State) -> AsyncIterator[Message | State]:
        seen = (state.get(SEEN) or 0) + 1
        yield Message(key=message.key, topic=spec.output, value=output_of(bytes_of(message), seen))
        yield State({SEEN: seen})

    uvloop.run(application(spec, Told(spec.topic, count)).run())


def run_quix(spec: Spec) -> None:
    """Exactly once or at least once."""
    from quix_app import application

    app = application(spec)

    def count(value: bytes, state: Any) -> bytes:
        seen = state.get("seen", 0) + 1
        state.set("seen", seen)
        return output_of(value, seen)

    source = app.topic(spec.topic, key_deserializer="bytes", value_deserializer="bytes")
    output = app.topic(spec.output, key_serializer="bytes", value_serializer="bytes")
    app.dataframe(source).apply(count, stateful=True).to_topic(output)
    app.run()


async def loop(spec: Spec, *, is_awaited: bool) -> None:
    """A consumer, a transactional producer, a transaction for each poll; counts are kept in memory.

    ``send`` gives a future of the record's fate. ``is_awaited``: the loop waits for all of them before the commit;
    else it leaves them to the commit, as many programs do.
    """
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    consumer = AIOKafkaConsumer(
        spec.topic,
        bootstrap_servers=spec.bootstrap,
        group_id=spec.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    producer = AIOKafkaProducer(bootstrap_servers=spec.bootstrap, transactional_id=spec.group)
    seen: Counter[bytes] = Counter()
    async with consumer, producer:
        while True:
            batches = await consumer.getmany(timeout_ms=spec.commit_ms, max_records=POLL_RECORDS)
            if not batches:
                continue
            async with producer.transaction():
                sent = []
                for records in batches.values():
                    for record in records:
                        seen[record.key] += 1
                        value = output_of(record.value, seen[record.key])
                        sent.append(await producer.send(spec.output, value, record.key))
                if is_awaited:
                    await asyncio.gather(*sent)
                offsets = {place: records[-1].offset + 1 for place, records in batches.items()}
                await producer.send_offsets_to_transaction(offsets, spec.group)


def run_loop(spec: Spec) -> None:
    """On uvloop."""
    import uvloop

    uvloop.run(loop(spec, is_awaited=spec.arm.endswith("awaited")))


LIBRARIES: dict[str, Callable[[Spec], None]] = {
    "keylanes": run_keylanes,
    "flechtwerk": run_flechtwerk,
    "quix": run_quix,
    "aiokafka": run_loop,
}

if __name__ == "__main__":
    order = read_spec()
    run_library = LIBRARIES[order.arm.partition("-")[0]]
    if run_library is not run_keylanes:  # which stops in order by itself
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    run_library(order)
