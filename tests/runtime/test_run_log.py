"""What a run tells of itself in the log and in its statistics: the story, the lag, failures that come in a storm."""

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from keylanes import IS_COMPILED, App, DeadLetter, HandlerFailed, Retry, State, __version__
from keylanes.brokers.partitioner import partition_of_key
from keylanes.brokers.simulated.virtual_loop import run_virtual
from keylanes.runtime import run_log
from keylanes.state.memory import MemoryCopies

from ..stage.engine import SOURCE, Engine, application, started
from ..stage.virtual import virtual

PAGE = Path(__file__).resolve().parents[2] / "docs" / "logging.md"


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    """What was said at this level or above, each line with its level."""
    return [f"{r.levelname} {r.getMessage()}" for r in caplog.records if r.name == "keylanes" and r.levelno >= level]


async def bill(number: int) -> int:
    """One order in fifty is a bad one."""
    await asyncio.sleep(0.02)
    if number % 50 == 0:
        raise ValueError(f"order {number} has no items")
    return number


async def shop() -> None:
    """The run whose lines the page shows."""
    app = application("shop", split_hot_ranges=False)
    app.handler(
        "orders", to="bills", parallelising_factor=32, retry=Retry(attempts=2), on_failure=DeadLetter("orders.dead")
    )(bill)
    engine = Engine(app, seed=1, partitions=2, sources=("orders",))
    for number in range(5_000):
        customer = b"customer %d" % (number % 1_000)
        engine.send(customer, b"%d" % number, partition=partition_of_key(customer, 2), topic="orders")
    member = await engine.start()
    await asyncio.sleep(100)
    told = member.statistics(0.0)
    assert (told.records_done, told.failures, told.retries, told.dead_letters) == (5_000, 200, 100, 100)
    assert told.is_compiled == IS_COMPILED
    await engine.stop()


def test_the_page_shows_what_a_healthy_run_writes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the letter, but for the version and the broker; and the same seed tells the same story again."""
    monkeypatch.setattr(run_log, "IS_COMPILED", True)
    with caplog.at_level(logging.INFO, "keylanes"):
        run_virtual(shop(), seed=1)
        said = lines(caplog)
        caplog.clear()
        run_virtual(shop(), seed=1)
    assert lines(caplog) == said
    (shown,) = re.findall(r"<!-- story: begin -->\n```\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    text = "\n".join(said).replace("SimulatedConnection", "kafka://kafka:9093")
    assert re.sub(r"keylanes \d[^,]*", f"keylanes {__version__}", shown) == text


async def test_an_interpreted_run_says_so(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line at its start; a compiled one has none."""
    for is_compiled in (True, False):
        monkeypatch.setattr(run_log, "IS_COMPILED", is_compiled)
        app = App("shop", broker="kafka://localhost:9092")
        app.handler("orders")(lambda value: None)
        caplog.clear()
        with caplog.at_level(logging.INFO, "keylanes"):
            async with app.test():
                pass
        assert (
            sum("install keylanes where there is a C compiler" in line for line in lines(caplog))
        ) == 1 - is_compiled
    assert App("idle", broker="kafka://localhost:9092").statistics().is_compiled == IS_COMPILED


@virtual
async def test_lag_is_what_is_not_committed_below_the_ends() -> None:
    """Seen in intervals; while the broker does not answer the known ends hold, their age grows, and nothing ends."""
    gate = asyncio.Event()
    limits: dict[str, Any] = dict.fromkeys(("request_timeout_ms", "default_api_timeout_ms"), 1_000)
    app = application(handler_timeout_ms=600_000, **limits)

    @app.handler(SOURCE, parallelising_factor=2)
    async def look(value: bytes) -> None:
        await gate.wait()

    engine = Engine(app)
    for _ in range(10):
        engine.send(b"k", b"")
    member = await engine.start()
    (partition,) = member.statistics(0).partitions
    assert (partition.end, partition.lag, member.statistics(0).lag) == (10, 10, 10)
    engine.cluster.faults.away = True
    for _ in range(20):
        engine.send(b"k", b"")
    await asyncio.sleep(50)
    told = member.statistics(0)
    assert told.ends_age_s is not None
    assert told.ends_age_s > 45
    assert told.partitions[0].end == 10
    assert not engine.task.done()
    engine.cluster.faults.away = False
    await asyncio.sleep(20)
    told = member.statistics(0)
    assert (told.partitions[0].end, told.lag) == (30, 30)
    assert told.ends_age_s is not None
    assert told.ends_age_s < 15
    gate.set()
    await engine.level()
    assert (member.statistics(0).lag, member.statistics(0).partitions[0].offset_least) == (0, 30)


@virtual
async def test_a_storm_of_failures_is_some_lines_and_all_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """One warning for each handler, error and consequence in an interval, which counts those between."""
    caplog.set_level(logging.INFO, "keylanes")
    app = application()

    @app.handler(SOURCE, retry=Retry(attempts=2, backoff_ms=1), on_failure=DeadLetter("dead"))
    async def fail(value: bytes) -> None:
        raise ValueError("no") if value == b"v" else KeyError("k")

    engine = Engine(app)
    member = await engine.start()
    for round_ in range(3):
        for n in range(400):
            engine.send(b"%d" % n, b"k" if n == 7 and round_ == 0 else b"v")
        await engine.level()
        await asyncio.sleep(11)
    told = member.statistics(0)
    assert (told.failures, told.retries, told.dead_letters) == (2_400, 1_200, 1_200)
    await engine.stop()
    warnings = lines(caplog, logging.WARNING)
    assert sum("KeyError" in line for line in warnings) == 2
    again = [line for line in warnings if "attempt 1 of 2: ValueError" in line]
    dead = [line for line in warnings if "goes to dead: ValueError" in line]
    assert len(again) == len(dead) == 3
    assert [line.partition(" (and ")[2] for line in dead] == ["", "398 more like it)", "399 more like it)"]
    assert len(warnings) == 8
    (last,) = [line for line in lines(caplog) if "stopped in order" in line]
    assert last.endswith("; 2,400 failed attempts, 1,200 tried again, 1,200 dead letters")


@pytest.mark.parametrize("is_async", [True, False])
@virtual
async def test_a_failure_without_a_text_is_told_by_where_it_was_raised(
    caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    """By its type and the line, in the log and in the dead letter; a handler is named by its own name."""
    app = application()

    def confirm(value: bytes) -> None:
        raise TimeoutError

    async def charge(value: bytes) -> None:
        async with asyncio.timeout(0.1):
            await asyncio.sleep(1)

    declared: Any = charge if is_async else confirm
    app.handler(SOURCE, retry=Retry(attempts=2), on_failure=DeadLetter("dead"))(declared)
    engine = await started(app)
    engine.send(b"k", b"v")
    await engine.level()
    await engine.stop()
    line = declared.__code__.co_firstlineno + 1
    said = f"TimeoutError ({__file__}:{line})"
    assert f"WARNING {declared.__name__} failed at in[0] offset 0, attempt 1 of 2: {said}" in lines(caplog)
    dead = f"WARNING {declared.__name__} failed for good at in[0] offset 0 after 2 attempts; it goes to dead: {said}"
    assert dead in lines(caplog)
    (letter,) = engine.cluster.committed_records("dead")
    assert dict(letter.headers)["kl-error"] == said.encode()


@virtual
async def test_what_is_worked_on_is_one_line_for_each_topic(caplog: pytest.LogCaptureFixture) -> None:
    """Though each partition begins when its own state was read again."""
    caplog.set_level(logging.INFO, "keylanes")
    app = application()

    @app.handler("orders", parallelising_factor=2)
    async def count(value: bytes, orders: State[int]) -> None:
        orders.put((orders.get() or 0) + 1)

    @app.handler("payments", parallelising_factor=2)
    async def add(value: bytes, payments: State[int]) -> None:
        payments.put((payments.get() or 0) + 1)

    engine = Engine(app, partitions=8, sources=("orders", "payments"))
    for n in range(80):
        engine.send(b"%d" % n, b"v", partition=n % 8, topic="orders")
    for _ in range(2):
        await engine.start()
        await engine.level()
        await engine.stop()
        engine.copies = MemoryCopies()
    told = [line.partition(", from ")[0] for line in lines(caplog) if "working on" in line]
    each = [f"INFO app: working on {topic}: 8 partitions, 16 workers" for topic in ("orders", "payments")]
    assert sorted(told) == sorted(each * 2)


@virtual
async def test_records_whose_outputs_the_broker_refuses_are_counted_and_sampled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They failed as if their handler had: each is a failure and a dead letter, and few are said."""
    app = application()

    @app.handler(SOURCE, to="table", on_failure=DeadLetter("dead"))
    async def copy(value: bytes) -> bytes:
        return value

    engine = Engine(app)
    engine.cluster.create_topic("table", 1)
    member = await engine.start()
    engine.cluster.state.configure("table", {"cleanup.policy": "compact"})  # it looked at the topic before
    for n in range(8):
        engine.send(None if n % 2 else b"k", b"%d" % n)
    await engine.level()
    assert (member.statistics(0).failures, member.statistics(0).dead_letters) == (4, 4)
    assert len(engine.cluster.committed_records("dead")) == 4
    await engine.stop()
    assert sum("the broker refuses its output" in line for line in lines(caplog, logging.WARNING)) == 1


@virtual
async def test_a_start_after_a_clean_stop_does_not_sound_like_an_accident(caplog: pytest.LogCaptureFixture) -> None:
    """What it does to the run before it is what each start does."""
    caplog.set_level(logging.INFO, "keylanes")
    app = application()
    app.handler(SOURCE)(lambda value: None)
    engine = await started(app)
    await engine.stop()
    await engine.start()
    await engine.stop()
    assert [word for word in ("fenc", "expel", "waiting") if word in caplog.text] == []
    assert caplog.text.count("stopping: it was told to") == 2


@virtual
async def test_a_run_that_fails_says_how_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    """Also one that never came to its work."""
    caplog.set_level(logging.INFO, "keylanes")
    app = application()

    @app.handler(SOURCE)
    async def fail(value: bytes) -> None:
        raise ValueError("no")

    engine = Engine(app)
    engine.send(b"k", b"")
    await engine.start()
    await engine.fails(HandlerFailed, "no")
    missing = application("other")
    missing.handler("nowhere")(lambda value: None)
    with pytest.raises(Exception, match="nowhere"):
        await engine.start(missing)
    assert "app: stopped by HandlerFailed: 0 records done" in caplog.text
    assert "3 failed attempts, 2 tried again, 0 dead letters" in caplog.text
    assert re.search(r"other: stopped by \w+, before it had started to work", caplog.text)
