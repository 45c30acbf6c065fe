"""Several processes of the demo, watched: how they end, and that none outlives it.

On the embedded broker, which is for one process: there a second one fails, as it would for another reason on a Kafka.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.brokers.protocol import TopicSpec
from keylanes.demo.application import ARRIVALS
from keylanes.demo.child import ORPHAN_S, ChildSpec
from keylanes.demo.course import Course
from keylanes.demo.flights import PARTITIONS
from keylanes.demo.loader import KEEP, Loader
from keylanes.demo.members import Members
from keylanes.errors import EmbeddedInUse
from keylanes.runtime.settings import Settings

ROWS = 400
SLOW_MS = 2_000.0
"""A flight keeps its handler for longer than a test needs to look, and not for long when all is to stop."""
STEADY_MS = 100.0
"""A flight after the other, all of them take 40 s: longer than a process takes to start."""
BRISK_MS = 40.0
"""A flight after the other, all of them take 16 s."""
FOR_EVER_MS = 3_600_000.0


async def loaded(folder: Path) -> str:
    """An embedded broker with some flights; its address."""
    broker = EmbeddedBroker(folder / "data")
    await broker.open()
    await Loader(broker, ROWS, Settings()).run()
    await broker.create([TopicSpec(ARRIVALS, PARTITIONS, KEEP)])
    await broker.close()
    return f"embedded:{folder / 'data'}"


def members(
    folder: Path,
    address: str,
    count: int,
    handler_ms: float,
    told: Callable[[int], None] = lambda _: None,
    resting: Iterable[frozenset[str]] = (),
    said: Callable[[str], None] = lambda _: None,
) -> Members:
    """So many processes on that broker; ``resting``: what is answered to whoever asks who is at rest, in turn. Where
    they are scaled, each handles one flight at once. ``said`` hears what is told of them.
    """

    def spec_of(name: str) -> ChildSpec:
        copies, log, loud, slow = (str(folder / part) for part in ("copies", "demo.log", "loud", "slow"))
        at_once = 1 if Course(count).is_scaled else None
        return ChildSpec(name, address, copies, log, loud, slow, handler_ms, "0", max_in_flight=at_once)

    async def nobody() -> str:
        return ""

    answers = iter(resting)

    async def at_rest() -> frozenset[str]:
        return next(answers)

    async def unasked(_number: int, _wish: object) -> None:
        raise AssertionError("of few processes nobody asks for moves")

    places = [("flights", number) for number in range(8)]
    return Members(
        Course(count), spec_of, descriptors=(), loud=folder / "loud", slow=folder / "slow", places=places, before=0,
        expected=2 * ROWS, coordinator=nobody, at_rest=at_rest, ask=unasked,
        on_progress=told, on_course=lambda _: None, say=said,
    )  # fmt: skip


async def test_a_process_that_fails_ends_the_others_in_order(tmp_path: Path) -> None:
    """Of two on a broker for one the second fails; which one, and how, is told. The log has the lines of both."""
    run = members(tmp_path, await loaded(tmp_path), 2, SLOW_MS)
    await run.run()
    assert run.failure in ("demo-1 ended with exit code 2", "demo-2 ended with exit code 2")
    assert run.exit_code == 2
    log = (tmp_path / "demo.log").read_text()
    failed = run.failure.split()[0]
    (other,) = {"demo-1", "demo-2"} - {failed}
    assert f" {failed} CRITICAL " in log
    assert f" {other} INFO " in log
    assert f" {other} INFO flights-demo: SIGTERM: stopping in order" in log
    assert "stopped in order" in log.splitlines()[-1]


async def test_a_process_is_added_when_the_group_is_at_rest(tmp_path: Path) -> None:
    """Four begin with one; the second one is asked for until nothing is on its way. It fails, on a broker for one."""
    asked: list[frozenset[str]] = [frozenset(), frozenset({"demo-1", "demo-9"}), frozenset({"demo-1"})]
    run = members(tmp_path, await loaded(tmp_path), 4, STEADY_MS, resting=asked)
    await run.run()
    assert run.failure == "demo-2 ended with exit code 2"
    (step,) = run.course.scaled
    assert (step.names, step.is_up) == (("demo-2",), True)
    assert step.share >= 0.08


async def test_the_work_slows_down_while_a_step_is_late(tmp_path: Path) -> None:
    """A group that is not at rest for 5 s behind that would else be half way; then the second process is added."""
    heard: list[str] = []

    def resting() -> Iterator[frozenset[str]]:
        while not any(said.startswith("the work slows down") for said in heard):
            yield frozenset()
        for _ in range(10):
            yield frozenset()
        yield frozenset({"demo-1"})

    run = members(tmp_path, await loaded(tmp_path), 4, BRISK_MS, resting=resting(), said=heard.append)
    await run.run()
    (step,) = run.course.scaled
    assert 0.13 < step.share < 0.3
    assert heard.count("the work slows down until this is done: a process more") == 1
    assert not run.slow.exists()


async def test_all_end_at_the_level(tmp_path: Path) -> None:
    """Then nothing has failed, and all records are done, as those who do them tell."""
    heard: list[int] = []
    run = members(tmp_path, await loaded(tmp_path), 1, 0.0, heard.append)
    await run.run()
    assert (run.failure, run.exit_code) == (None, 0)
    assert run.done > ROWS
    assert heard == sorted(heard)


async def test_an_interrupt_stops_them_in_order(tmp_path: Path) -> None:
    """The process has a session of its own, so it hears of it from the demo alone."""
    log = tmp_path / "demo.log"

    def interrupt(_: int) -> None:
        if log.exists() and "working on flights" in log.read_text():
            os.kill(os.getpid(), signal.SIGINT)

    run = members(tmp_path, await loaded(tmp_path), 1, SLOW_MS, interrupt)
    await run.run()
    assert (run.failure, run.exit_code) == (None, 0)
    assert "SIGTERM: stopping in order" in log.read_text()


ALONE = """
import asyncio, sys
from pathlib import Path
sys.path.append(sys.argv[1])
from tests.demo.test_members import FOR_EVER_MS, members
asyncio.run(members(Path(sys.argv[2]), sys.argv[3], 1, FOR_EVER_MS).run())
"""


async def test_a_killed_demo_leaves_nobody_behind(tmp_path: Path) -> None:
    """Its process notices, and lets go of the broker, whatever its handlers do."""
    address = await loaded(tmp_path)
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-P", "-c", ALONE, root, str(tmp_path), address]
    log = tmp_path / "demo.log"
    parent = await asyncio.create_subprocess_exec(*command)
    try:
        async with asyncio.timeout(60):
            while not log.exists() or "working on flights" not in log.read_text():
                assert parent.returncode is None
                await asyncio.sleep(0.05)
    finally:
        parent.kill()
        await parent.wait()
    broker = EmbeddedBroker(tmp_path / "data")
    async with asyncio.timeout(ORPHAN_S + 30):
        await opened(broker)
    await broker.close()


async def opened(broker: EmbeddedBroker) -> None:
    """Open it as soon as nobody else has it."""
    while True:
        try:
            await broker.open()
        except EmbeddedInUse:
            await asyncio.sleep(0.05)
        else:
            return
