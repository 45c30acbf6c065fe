"""Several processes of the demo, watched: how they end, and that none outlives it.

On the embedded broker, which is for one process: there a second one fails, as it would for another reason on a Kafka.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from application import ARRIVALS
from child import ORPHAN_S, ChildSpec
from course import Course
from flights import PARTITIONS
from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.brokers.protocol import TopicSpec
from keylanes.errors import EmbeddedInUse
from loader import KEEP, Loader
from members import Members
from owners import GroupLog
from place import DemoPlace
from wishes import Asking

from .conftest import FLIGHTS

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
    await Loader(broker, ROWS).run()
    await broker.create([TopicSpec(ARRIVALS, PARTITIONS, KEEP)])
    await broker.close()
    return f"embedded:{folder / 'data'}"


class Answering(Asking):
    """Says who is at rest, in turn, to whoever asks; nobody coordinates."""

    def __init__(self, resting: Iterable[frozenset[str]]) -> None:
        self._resting = iter(resting)

    async def group(self) -> GroupLog:
        """The next answer."""
        return GroupLog(at_rest=next(self._resting, frozenset()))


def members(
    folder: Path,
    address: str,
    count: int,
    handler_ms: float,
    told: Callable[[int], None] = lambda _: None,
    resting: Iterable[frozenset[str]] = (),
) -> Members:
    """So many processes on that broker. Where they are scaled, each handles one flight at once."""
    place, course = DemoPlace(folder), Course(count)
    place.put(course=course)
    at_once = 1 if course.is_scaled else None
    spec = ChildSpec("", address, str(folder), str(folder / "copies"), handler_ms, "0", max_in_flight=at_once)
    places = [("flights", number) for number in range(8)]
    asking = Answering(resting)
    return Members(place, spec, asking, partitions=places, before=0, expected=2 * ROWS, on_progress=told)


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
    (step,) = run.course.acts
    assert (step.names, step.is_up) == (("demo-2",), True)
    assert step.share >= 0.08


async def test_the_work_slows_down_while_a_step_is_late(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A group that is not at rest for 5 s behind that would else be half way; then the second process is added."""

    def resting() -> Iterator[frozenset[str]]:
        while not (tmp_path / "slow").exists():
            yield frozenset()
        for _ in range(10):
            yield frozenset()
        yield frozenset({"demo-1"})

    run = members(tmp_path, await loaded(tmp_path), 4, BRISK_MS, resting=resting())
    await run.run()
    (step,) = run.course.acts
    assert 0.13 < step.share < 0.3
    assert capsys.readouterr().out.count("the work slows down until this is done: a process more") == 1
    assert not run.place.slow.exists()


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
sys.path[:0] = sys.argv[1].split(":")
from tests.examples.flights.test_members import FOR_EVER_MS, members
asyncio.run(members(Path(sys.argv[2]), sys.argv[3], 1, FOR_EVER_MS).run())
"""


async def test_a_killed_demo_leaves_nobody_behind(tmp_path: Path) -> None:
    """Its process notices, and lets go of the broker, whatever its handlers do."""
    address = await loaded(tmp_path)
    paths = f"{FLIGHTS}:{FLIGHTS.parents[1]}"
    command = [sys.executable, "-P", "-c", ALONE, paths, str(tmp_path), address]
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
