"""Rights that are taken away, and a broker that goes away, while an application runs: what goes on, for how long, and
what is said of it.
"""

import asyncio
import logging
from typing import Any

import pytest

from keylanes import App
from keylanes.brokers.protocol import TopicPartition
from keylanes.brokers.rights import Operation, Right
from keylanes.brokers.simulated.virtual_loop import run_virtual
from keylanes.errors import AccessRefused
from keylanes.offsets.codec import decode
from keylanes.offsets.events import SnapshotTaken

from ..stage.engine import OUT, SOURCE, Engine, application, started
from ..stage.virtual import virtual

RETRY_MS = 30_000
LOG = TopicPartition("app.offsets", 0)


def copying(**settings: Any) -> App:
    """Each record of the source is an output."""
    app = application(broker_retry_ms=RETRY_MS, commit_interval_ms=100, **settings)

    @app.handler(SOURCE, to=OUT)
    async def copy(value: bytes) -> bytes:
        return value

    return app


def said(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    """The warnings with these words."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and words in r.getMessage()]


def snapshots(engine: Engine) -> int:
    """How many are in the offset log."""
    rows = engine.cluster.rows(LOG)
    return sum(isinstance(decode(row.value or b""), SnapshotTaken) for row in rows)


async def work_for(engine: Engine, seconds: int, each_s: float = 0.1) -> None:
    """A record and a commit in each interval; raises what ended the run."""
    for _ in range(round(seconds / each_s)):
        engine.send(b"k", b"1")
        await asyncio.sleep(each_s)
        if engine.task.done():
            engine.task.result()


async def without_delete() -> None:
    """A log that may not be trimmed for a while."""
    engine = Engine(copying(snapshot_every_commits=2, history_ms=0))
    member = await engine.start()
    engine.cluster.faults.denied.add(Right("topic", LOG.topic, "DELETE"))
    await work_for(engine, 10)
    before = snapshots(engine)
    await work_for(engine, 180, each_s=1.0)
    assert snapshots(engine) > before + 50, "no snapshots without trims"
    assert engine.cluster.watermarks(LOG).start == 0
    assert 2 <= member.statistics(0.0).trims_failed <= 5, "it is tried again, and not each time"
    engine.cluster.faults.denied.clear()
    await work_for(engine, 70, each_s=1.0)
    assert engine.cluster.watermarks(LOG).start > 0
    await engine.level()
    await engine.stop()
    await engine.start()
    await engine.stop()


def test_a_log_that_cant_be_trimmed_is_snapshotted_all_the_same() -> None:
    """The statistics count the trims that failed. Once it is allowed again, the log is trimmed; a start reads it."""
    run_virtual(without_delete(), seed=1)


def test_a_log_that_cant_be_trimmed_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """One warning with the ACL, however often it is tried; and one line when it works again."""
    with caplog.at_level(logging.INFO, "keylanes"):
        run_virtual(without_delete(), seed=1)
    (line,) = said(caplog, "trim")
    assert "User:simulated has no right to DELETE on topic 'app.offsets'" in line
    assert said(caplog, "snapshot") == [line]
    assert sum("is trimmed again" in record.getMessage() for record in caplog.records) == 1


async def denied(right: Right) -> Engine:
    """One that has worked for a while when a right is taken away."""
    engine = await started(copying())
    await work_for(engine, 3)
    engine.cluster.faults.denied.add(right)
    return engine


TAKEN: list[tuple[str, Operation]] = [(OUT, "WRITE"), (LOG.topic, "WRITE"), (SOURCE, "READ")]


@pytest.mark.parametrize(("topic", "operation"), TAKEN)
@virtual
async def test_a_right_that_is_given_back_in_time_costs_only_time(
    topic: str, operation: Operation, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, with the ACL, then counted; what waited goes on, once each."""
    caplog.set_level(logging.INFO, "keylanes")
    engine = await denied(Right("topic", topic, operation))
    await work_for(engine, 20)
    engine.cluster.faults.denied.clear()
    await work_for(engine, 10)
    await engine.level()
    assert len(engine.values()[b"k"]) == 330
    await engine.stop()
    (line,) = said(caplog, "has no right")
    assert f"User:simulated has no right to {operation} on topic '{topic}'" in line
    assert f"--operation {operation} --topic '{topic}'" in line
    (again,) = [r.getMessage() for r in caplog.records if "refused" in r.getMessage() and r.levelno == logging.INFO]
    assert int("".join(filter(str.isdigit, again))) > 20


@pytest.mark.parametrize(("topic", "operation"), TAKEN)
@virtual
async def test_a_right_that_stays_away_ends_the_application(
    topic: str, operation: Operation, caplog: pytest.LogCaptureFixture
) -> None:
    """After ``broker_retry_ms``, with exit code 2 and the ACL; not before."""
    engine = await denied(Right("topic", topic, operation))
    began = asyncio.get_running_loop().time()
    engine.send(b"k", b"1")
    error = await engine.fails(AccessRefused, f"no right to {operation} on topic '{topic}'")
    assert isinstance(error, AccessRefused)
    assert error.exit_code == 2
    assert RETRY_MS <= (asyncio.get_running_loop().time() - began) * 1000 <= 1.5 * RETRY_MS
    assert len(said(caplog, "has no right")) == 1


@pytest.mark.parametrize("away_ms", [RETRY_MS - 1_000, RETRY_MS - 250])
@virtual
async def test_a_broker_that_is_back_in_time_costs_only_time(away_ms: int) -> None:
    """Also when a try that began while it was away ends after ``broker_retry_ms``: one more is made."""
    engine = await started(copying(default_api_timeout_ms=2_000, request_timeout_ms=500))
    engine.cluster.faults.away = True
    engine.send(b"k", b"1")
    await asyncio.sleep(away_ms / 1000)
    engine.cluster.faults.away = False
    await engine.level()
    assert engine.values()[b"k"] == [b"1"]
