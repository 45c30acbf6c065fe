"""Quotas of a real Kafka: a throttled broker is slow, and no more than that."""

import asyncio
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack

import pytest

from keylanes import App, DeadLetter, Settings
from keylanes.brokers.throttling import WINDOW_S
from keylanes.devkafka.server import KafkaServer

from ..stage.ground import Ground
from ..stage.quotas import limit
from ..tiers.marks import tier

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

BYTES, RECORDS = 1_000, 4_000
"""Of each large value, which can't be compressed; so many."""
LARGE, TOO_LARGE = b"large!", 700_000
"""What is made of this never passes at once, at 20,000 bytes a second."""
SHARE_MIN, LASTS_S = 0.8, 48.0


def growing(ground: Ground, instance: str | None = None) -> App:
    """An application that makes large values of small ones."""
    app = App(ground.name, broker=ground.address, settings=Settings(group_instance_id=instance))

    @app.handler(ground.source, to=ground.late, on_failure=DeadLetter(ground.dead))
    async def grow(value: bytes) -> bytes:
        return value[:6] + os.urandom(TOO_LARGE if value == LARGE else BYTES - 6)

    return app


def fill(ground: Ground, records: int, size: int = 6) -> None:
    """Numbers, in values of so many bytes; as many batches as a quota lets pass one by one."""
    for first in range(0, records, 40):
        numbers = range(first, min(first + 40, records))
        ground.fill([(b"k%d" % (n % 20), b"%06d" % n + os.urandom(size - 6)) for n in numbers])


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was warned of, and who was expelled."""
    said = [(one.levelno, one.getMessage()) for one in caplog.records]
    return [message for level, message in said if level > logging.INFO or "expelled" in message]


def test_throttled_for_what_it_writes(kafka: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """The broker is not called silent, nothing is aborted, one line says that it throttles, and what never passes is
    refused.
    """
    fill(kafka, 300)
    kafka.fill([(b"k", LARGE)])
    limit(kafka.servers, "client-id", kafka.name, {"producer_byte_rate": 20_000})
    app = growing(kafka)
    with caplog.at_level(logging.INFO):
        app.run(until="level")
    (refused,) = complaints(caplog)
    assert "the broker refuses its output: 700007 bytes of outputs, and the cluster lets " in refused
    assert refused.endswith(f"it goes to {kafka.dead}")
    assert kafka.values(kafka.dead) == [LARGE]
    assert caplog.text.count(" throttles this process, ") == 1
    assert app.statistics().throttled_ms > 0
    assert sorted(int((value or b"")[:6]) for value in kafka.values(kafka.late)) == list(range(300))


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A Kafka whose quotas are for all."""
    with KafkaServer(tmp_path_factory.mktemp("quotas")) as server:
        yield server


def moved_bytes(server: KafkaServer, apps: Iterable[App], quota: str) -> int:
    """So much was written, by the files of the logs that the quota counts; or read, in records that are done."""
    if quota == "producer_byte_rate":
        return sum(file.stat().st_size for file in server.folder.rglob("*.log") if file.parent.name[:2] != "__")
    return BYTES * sum(app.statistics().records_done for app in apps)


@tier("proof", "quotas")
@pytest.mark.parametrize(
    ("quotas", "members", "quota"),
    [
        ({"producer_byte_rate": 50_000.0}, 1, "producer_byte_rate"),
        ({"consumer_byte_rate": 50_000.0}, 1, "consumer_byte_rate"),
        ({"request_percentage": 10.0}, 1, ""),
        (
            {"producer_byte_rate": 50_000.0, "consumer_byte_rate": 50_000.0, "request_percentage": 50.0},
            3,
            "producer_byte_rate",
        ),
    ],
    ids=["producer", "consumer", "request", "all"],
)
async def test_the_quota_is_used(
    limited: KafkaServer,
    quotas: Mapping[str, float],
    members: int,
    quota: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Alone, and shared by three: most of it, window after window; nobody is expelled, and nothing is warned of."""
    ground = Ground(f"kafka://{limited.bootstrap}")
    await asyncio.to_thread(ground.create, ground.source, 4)
    await asyncio.to_thread(fill, ground, RECORDS, BYTES if quota == "consumer_byte_rate" else 6)
    none = dict.fromkeys(("producer_byte_rate", "consumer_byte_rate", "request_percentage"), 1e9)
    await asyncio.to_thread(limit, limited.bootstrap, "user", None, {**none, **quotas})
    apps = [growing(ground, f"member-{number}") for number in range(members)]
    with caplog.at_level(logging.INFO):
        async with AsyncExitStack() as at_work:
            await asyncio.gather(*(at_work.enter_async_context(app) for app in apps))
            await asyncio.sleep(WINDOW_S + 1.0)  # the first window lets all of its quota pass at once
            before = moved_bytes(limited, apps, quota)
            await asyncio.sleep(LASTS_S)  # so long it is throttled: that is what is tested
            moved = moved_bytes(limited, apps, quota) - before
            await asyncio.to_thread(limit, limited.bootstrap, "user", None, none)
    assert complaints(caplog) == []
    if quota:
        assert moved >= SHARE_MIN * quotas[quota] * LASTS_S
        assert all(app.statistics().throttled_ms > 0 for app in apps)
    else:
        assert sum(app.statistics().records_done for app in apps) == RECORDS, "a quota of time lets all pass"
