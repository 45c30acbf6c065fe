"""A start before its brokers: it is patient for all of its time, not for that of one call."""

import threading
import time
from pathlib import Path

import pytest

from keylanes import App
from keylanes.devkafka.server import KafkaServer

from ..stage.ground import Ground
from ..tiers.marks import tier

pytestmark = [pytest.mark.broker, tier("proof", "starting-brokers")]

LATE_S, CALL_MS = 5.0, 1_000


def passing_on(ground: Ground) -> App:
    """An application whose calls to brokers are given up long before these are there."""
    app = ground.app(request_timeout_ms=CALL_MS, default_api_timeout_ms=CALL_MS, start_timeout_ms=120_000)

    @app.handler(ground.source, to=ground.late)
    async def pass_on(value: int) -> int:
        return value

    return app


def test_a_start_waits_for_its_brokers(tmp_path: Path) -> None:
    """Brokers that come later than a call may take are met."""
    server = KafkaServer(tmp_path / "kafka")
    server.start()
    ground = Ground(f"kafka://{server.bootstrap}")
    ground.create(ground.late)
    ground.fill([(b"k", b"1"), (b"k", b"2")])
    server.stop()
    began = time.monotonic()
    starting = threading.Timer(LATE_S, server.start)
    starting.start()
    try:
        passing_on(ground).run(until="level")
        assert time.monotonic() - began > LATE_S
        assert ground.values(ground.late) == [b"1", b"2"]
    finally:
        starting.join()
        server.stop()
