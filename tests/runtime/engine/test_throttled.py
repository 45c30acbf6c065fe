"""What is done when a broker begins to throttle: it is sent in parts, each of which is soon over."""

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from keylanes import App, DeadLetter
from keylanes.brokers.simulated.quota import Quota
from keylanes.brokers.throttling import BYTES_OPEN, LIMIT_MS, QUIET_S, WINDOW_S

from ...stage.engine import DEAD, OUT, SOURCE, application, started
from ...stage.virtual import virtual
from ...tiers.marks import tier

pytestmark = tier("check")

BYTES, RECORDS = 1_000, 800
PASSES = 20_000 * (WINDOW_S + LIMIT_MS / 1000)
"""So many bytes pass at once, at the least rate here."""


def growing(**settings: Any) -> App:
    """An application that makes large values of small ones."""
    app = application(**settings)

    @app.handler(SOURCE, to=OUT, parallelising_factor=4)
    async def grow(value: bytes) -> bytes:
        return value + bytes(BYTES - len(value))

    return app


@pytest.mark.parametrize(("rate", "keys"), [(20_000, 1), (20_000, 20), (50_000, 20)])
@virtual
async def test_what_a_quota_would_keep_open_for_long_is_sent_in_parts(
    rate: int, keys: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also what one worker did. Each record is sent once and in order, most of the quota is used, and nothing is warned
    of.
    """
    engine = await started(growing(commit_interval_ms=5_000))
    quota = engine.cluster.network.quota = Quota(rate)
    for number in range(RECORDS):
        engine.send(b"k%d" % (number % keys), b"%03d" % number)
    began_s = asyncio.get_running_loop().time()
    with caplog.at_level(logging.WARNING):
        await engine.level()
    lasted_s = asyncio.get_running_loop().time() - began_s
    rows = engine.cluster.rows(engine.cluster.places(OUT)[0])
    found = [int((row.value or b"")[:3]) for row in rows]
    assert sorted(found) == list(range(RECORDS))
    assert all(of_key == sorted(of_key) for of_key in ([n for n in found if n % keys == key] for key in range(keys)))
    first, *_ = Counter(row.transaction for row in rows).values()
    assert first * BYTES <= BYTES_OPEN
    assert quota.longest_s <= 1.2 * LIMIT_MS / 1000
    assert 0.8 * rate * lasted_s <= quota.moved <= 2 * RECORDS * BYTES
    assert not caplog.records
    await engine.stop()


@pytest.mark.parametrize(("rate", "after_s"), [(20_000, 30.0), (20_000, 37.0), (50_000, 20.0), (50_000, 23.0)])
@virtual
async def test_a_stop_commits_all_that_is_done(rate: int, after_s: float) -> None:
    """No more waits for a commit than the quota lets pass while a stop lasts, however fast handlers are."""
    engine = await started(growing())
    engine.cluster.network.quota = Quota(rate)
    for number in range(3 * RECORDS):
        engine.send(b"k%d" % (number % 20), b"%04d" % number)
    await asyncio.sleep(after_s)
    await engine.stop()
    rows = engine.cluster.rows(engine.cluster.places(OUT)[0])
    assert 0.8 * rate * after_s <= len(rows) * BYTES < 3 * RECORDS * BYTES


@pytest.mark.parametrize("quiet_s", [0.0, 2 * WINDOW_S, 2 * QUIET_S])
@pytest.mark.parametrize(("outputs", "size"), [(1, 700_000), (10, 70_000), (1, 250_000), (10, 25_000)])
@virtual
async def test_what_never_passes_a_quota_is_refused(
    outputs: int, size: int, quiet_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """What a record sends is one transaction: what passes waits for its turn, what never does is a dead letter; also
    after little was sent for a while. Nothing is aborted, unless throttling was over: then that shows the quota.
    """
    app = application()

    @app.handler(SOURCE, to=OUT, parallelising_factor=4, on_failure=DeadLetter(DEAD))
    async def grow(value: bytes) -> list[bytes]:
        outputs, size = map(int, value.split(b" outputs of ")) if b" " in value else (1, BYTES)
        return [value + bytes(size - len(value))] * outputs

    engine = await started(app)
    engine.cluster.network.quota = Quota(20_000)
    for number in range(RECORDS):
        engine.send(b"k%d" % (number % 20), b"%04d" % number)
    await engine.level()
    await asyncio.sleep(quiet_s)
    with caplog.at_level(logging.WARNING):
        engine.send(b"k0", b"%d outputs of %d" % (outputs, size))
        engine.send(b"k1", b"last")
        await engine.level()
    passes = outputs * size < PASSES
    sent = [row for row in engine.cluster.rows(engine.cluster.places(OUT)[0]) if len(row.value or b"") > BYTES]
    assert len(sent) == (outputs if passes else 0)
    assert len(engine.cluster.rows(engine.cluster.places(DEAD)[0])) == (0 if passes else 1)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) <= (0 if passes else 1) + (1 if quiet_s > QUIET_S else 0)
    await engine.stop()
