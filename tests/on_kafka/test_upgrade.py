"""The first start of this version while a process of 0.1 still runs: its logs as 0.1 wrote them, and its producer."""

import asyncio
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import ProducerFenced

from keylanes.keyrange.hashing import HASH_NAME
from keylanes.runtime.logs.topics import LOG_CONFIG

from ..stage.ground import Ground

pytestmark = pytest.mark.broker

BIRTH = "77b429532f90ca29"
SPACE_END = 2**32


def old_logs(ground: Ground) -> None:
    """What 0.1 had written when it began to work on its first records: it owns all, and has committed nothing."""
    old_id = f"{ground.name}.{BIRTH}"
    control: list[list[Any]] = [
        ["app_created/1", ground.name, HASH_NAME, 1],
        ["coordinator_elected/1", 1, BIRTH],
        ["member_joined/1", 1, 1, BIRTH, old_id],
        ["partition_started/1", 1, ground.source, 0, 0],
        ["ranges_granted/1", 1, 1, 1, ground.source, 0, [[0, SPACE_END, 0]]],
    ]
    config = {name.replace(".", "_"): value for name, value in LOG_CONFIG.items()}
    for topic, events in (("control", control), ("offsets", [["log_opened/1", ground.name, HASH_NAME, 0, 1, 1, 1]])):
        ground.create(f"{ground.name}.{topic}", 1, **config)
        ground.fill([(None, msgspec.msgpack.encode(event)) for event in events], f"{ground.name}.{topic}")


async def test_what_a_process_of_0_1_has_under_way_is_refused(kafka: Ground) -> None:
    """It is expelled and fenced before this version handles its records: they are handled once, and its commit comes to
    nothing.
    """
    await asyncio.to_thread(kafka.fill, [(b"k%d" % n, b"%d" % n) for n in range(20)])
    await asyncio.to_thread(kafka.create, kafka.late)
    await asyncio.to_thread(old_logs, kafka)
    servers = kafka.servers
    old = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=f"{kafka.name}.{BIRTH}")
    await old.start()
    await old.begin_transaction()
    await old.send_and_wait(kafka.late, b"of 0.1", partition=0)
    app = kafka.app()

    @app.handler(kafka.source, to=kafka.late)
    async def handle(value: bytes) -> bytes:
        return value

    await asyncio.to_thread(app.run, until="level")
    with pytest.raises(ProducerFenced):
        await old.commit_transaction()
    await old.stop()
    values = await asyncio.to_thread(kafka.values, kafka.late)
    assert sorted(int(value or b"") for value in values) == list(range(20))
    events = [
        msgspec.msgpack.decode(value or b"") for value in await asyncio.to_thread(kafka.values, f"{kafka.name}.control")
    ]
    of_old = [event[0] for event in events if event[0] in ("member_expelled/2", "member_fenced/2") and event[3] == 1]
    assert of_old == ["member_expelled/2", "member_fenced/2"]
