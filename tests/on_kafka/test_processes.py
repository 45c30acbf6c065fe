"""``app.run(processes=…)`` as its users see it: real processes on a real Kafka, killed and told to stop."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from keylanes.errors import FencedError
from keylanes.group.history import History
from keylanes.group.history_entries import Change

from ..stage import several
from ..stage.ground import Ground
from ..stage.groups import group_of, history_of
from ..stage.spoken import Spoken

WAIT_S = 60.0
PARTITIONS = 2

pytestmark = [pytest.mark.broker]


class Parent:
    """The parent of an application, and what all its processes said."""

    def __init__(
        self, ground: Ground, kind: str = "plain", *, processes: int = 2, until: str = "on", **settings: object
    ) -> None:
        values = ground.settings(**{"close_timeout_ms": 2_000, **settings})
        arguments = [ground.address, ground.name, ground.source, kind, json.dumps(values), str(processes), until]
        self.process = subprocess.Popen(
            [sys.executable, several.__file__, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._spoken = Spoken(self.process)
        self.lines, self.errors = self._spoken.lines, self._spoken.errors

    def wait_for(self, is_reached: Callable[[], bool]) -> None:
        """Wait until what was said fulfils a condition."""
        self._spoken.wait_for(is_reached, WAIT_S)

    def said(self, what: str) -> list[tuple[int, str]]:
        """Who said what begins so, in order: the process, and the rest."""
        found = [line.split(" ", 2) for line in list(self.lines)]
        return [(int(words[0]), " ".join(words[2:])) for words in found if words[1] == what]

    def handled_by(self) -> dict[int, list[int]]:
        """The values that each process handled."""
        by: dict[int, list[int]] = {}
        for process, value in self.said("handled"):
            by.setdefault(process, []).append(int(value))
        return by

    def has_handled(self, count: int) -> bool:
        """Whether all together handled so many records."""
        return len(self.said("handled")) >= count

    def has_started(self, count: int) -> bool:
        """Whether so many were started."""
        return len(self.children()) >= count

    def children(self) -> list[int]:
        """All that were started, in order."""
        return [process for process, _ in self.said("begins")]

    def end(self, seconds_max: float = WAIT_S) -> int:
        """The exit code. Its pipes are closed when the last of its children has ended, too."""
        try:
            code = self.process.wait(seconds_max)
            assert self._spoken.end(seconds_max), "a child goes on"
        finally:
            self.kill()
        return code

    def kill(self) -> None:
        """Nothing is left behind."""
        for process in (self.process.pid, *self.children()):
            with_signal(process, signal.SIGKILL)
        self.process.wait()
        self._spoken.end(WAIT_S)


def with_signal(process: int, number: int) -> None:
    """Send a signal to a process, unless it is gone."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return


Start = Callable[..., Parent]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a parent; none of its processes goes on behind the test."""
    with ExitStack() as stack:

        def started(*arguments: Any, **settings: Any) -> Parent:
            parent = Parent(*arguments, **settings)
            stack.callback(parent.kill)
            return parent

        yield started


def fill(ground: Ground, count: int, first: int = 0) -> None:
    """Values from ``first`` on, in turn in all partitions, under many keys."""
    ground.scatter([(n % PARTITIONS, b"k%d" % n, b"%d" % n) for n in range(first, first + count)], PARTITIONS)


def expulsions(history: History) -> list[str]:
    """Why members were expelled, in order."""
    return [entry.cause for entry in history.entries() if isinstance(entry, Change) and entry.what == "expelled"]


def test_all_share_the_work_and_end_in_order(kafka: Ground, start: Start) -> None:
    """Each handles some, each under a name of its own; what they did not come to when they were told to stop the next
    ones do, and end at the level. Nothing is done twice.
    """
    fill(kafka, 4_000)
    first = start(kafka, group_instance_id="web", threads=1)
    first.wait_for(lambda: sum(len(values) > 100 for values in first.handled_by().values()) == 2)
    members = group_of(kafka.name, kafka.address).members
    assert {member.instance for member in members} == {"web-1", "web-2"}
    first.process.terminate()
    assert first.end() == 0, first.errors[-20:]
    assert len(first.said("ends")) == 3, "each of them, and the parent"
    assert any("[1/2]" in line and "keylanes-1" in line for line in first.errors), "logs say who"
    second = start(kafka, group_instance_id="web", until="level")
    assert second.end() == 0, second.errors[-20:]
    done = [value for run in (first, second) for values in run.handled_by().values() for value in values]
    assert sorted(done) == list(range(4_000))


def test_one_that_is_killed_comes_again_and_the_group_knows_at_once(kafka: Ground, start: Start) -> None:
    """Whichever it was: the group does not wait for a session to end, which is longer here than this test may take."""
    fill(kafka, 200)
    run = start(kafka, session_timeout_ms=600_000, heartbeat_interval_ms=500)
    run.wait_for(lambda: len(run.said("handled")) == 200)
    for n, victim in enumerate(run.children()):  # the one that coordinates is among them
        with_signal(victim, signal.SIGKILL)
        run.wait_for(partial(run.has_started, 3 + n))
        enough = len(run.said("handled")) + 200
        fill(kafka, 200, 200 * (1 + n))
        run.wait_for(partial(run.has_handled, enough))
    assert expulsions(history_of(kafka.name, kafka.address))[:2] == ["died", "died"]
    run.process.terminate()
    assert run.end() == 0, run.errors[-20:]
    counts = Counter(value for values in run.handled_by().values() for value in values)
    assert counts.keys() == {*range(600)}


@pytest.mark.parametrize(
    ("kind", "code", "says"), [("fails", 5, "stops: .*failed for good"), ("broken", 1, "stops: process . ended with")]
)
def test_a_cause_that_would_come_again_ends_all(kafka: Ground, start: Start, kind: str, code: int, says: str) -> None:
    """A record that fails for good; a program that does not come to its application. The exit code says which, and the
    last line why.
    """
    fill(kafka, 200)
    run = start(kafka, kind)
    if kind == "fails":
        run.wait_for(lambda: len(run.said("handled")) == 200)
        fill(kafka, 1, several.BAD)
    assert run.end() == code, run.errors[-20:]
    assert not run.said("ends") or kind == "fails"
    assert re.search(says, run.errors[-1]), run.errors[-20:]


def test_children_whose_parent_is_killed_stop_in_order(kafka: Ground, start: Start) -> None:
    """They see that it is gone; nobody else would tell them to stop."""
    fill(kafka, 200)
    run = start(kafka)
    run.wait_for(lambda: len(run.said("handled")) == 200)
    run.process.kill()
    assert run.end() == -signal.SIGKILL
    assert len(run.said("ends")) == 2


def test_a_second_signal_hurries_all(kafka: Ground, start: Start) -> None:
    """The parent passes it on: nobody waits for a handler that does not end, and all end in order."""
    fill(kafka, 200)
    run = start(kafka, "stuck", drain_timeout_ms=600_000)
    run.wait_for(lambda: len(run.said("handled")) == 200)
    fill(kafka, 1, several.BAD)
    run.wait_for(lambda: bool(run.said("stuck")))
    run.process.terminate()
    run.wait_for(lambda: any("stopping all processes in order; once more releases at once" in e for e in run.errors))
    run.process.terminate()
    assert run.end(20) == 0, run.errors[-20:]
    assert len(run.said("ends")) == 3
    assert any("dropped: nothing of that is kept" in line for line in run.errors)


async def test_one_whose_name_another_process_has_is_not_started_again(kafka: Ground, start: Start) -> None:
    """It stood still, and a process elsewhere took its name. Were it started again, one would oust the other. All end,
    with its exit code, and the process elsewhere goes on.
    """
    await asyncio.to_thread(fill, kafka, 200)
    times: dict[str, Any] = {"session_timeout_ms": 60_000, "heartbeat_interval_ms": 500}
    run = start(kafka, group_instance_id="web", exit_on_expulsion=True, **times)
    await asyncio.to_thread(run.wait_for, lambda: len(run.said("handled")) == 200)
    (victim,) = [process for process, value in run.said("name") if value == "web-1"]
    with_signal(victim, signal.SIGSTOP)
    app = kafka.app(None, group_instance_id="web-1", **times)
    app.handler(kafka.source, parallelising_factor=8)(lambda value: None)
    async with app:
        with_signal(victim, signal.SIGCONT)
        assert await asyncio.to_thread(run.end) == FencedError.exit_code, run.errors[-20:]
        assert 2 <= len(run.children()) <= 3, "it asks once more at most, and is refused"
        assert app.health().is_good


def test_several_need_a_kafka(tmp_path_factory: pytest.TempPathFactory, start: Start) -> None:
    """The embedded broker is for one process."""
    run = start(Ground(f"embedded:{tmp_path_factory.mktemp('data')}"))
    assert run.end() != 0
    assert any("several processes need a Kafka that all of them reach" in line for line in run.errors)
