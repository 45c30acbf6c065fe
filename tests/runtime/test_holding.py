"""What a process holds and gives up, as the group asks it to."""

import asyncio
import logging
from typing import Any

import pytest

from keylanes import State
from keylanes.brokers.protocol import Outgoing
from keylanes.keyrange.ranges import WHOLE
from keylanes.offsets.codec import encode
from keylanes.offsets.control_events import MemberExpelled
from keylanes.runtime.logs.own_ledger import Expelled
from keylanes.state.memory import MemoryCopies

from ..stage.engine import SOURCE, Engine, application
from ..stage.log_events import coordinator_elected
from ..stage.passing import Passing
from ..stage.virtual import virtual
from .membership.group import until

PLAIN = "plain"


class DeafToChangelogs(Passing):
    """A connection over which no changelog can be read, once it is deaf."""

    is_deaf = False

    async def reader(self, positions: Any) -> Any:
        """A reader; none of a changelog."""
        if self.is_deaf and any("changelog" in source.topic for source in positions):
            await asyncio.Event().wait()
        return await self.real.reader(positions)


@virtual
async def test_what_was_released_is_not_asked_of_the_workers_again(caplog: pytest.LogCaptureFixture) -> None:
    """The request stands in the log until the range is granted: nothing is tried, and said, meanwhile."""
    caplog.set_level(logging.INFO, "keylanes")
    app = application(commit_interval_ms=20, commit_lead_ms=5)

    @app.handler(SOURCE, parallelising_factor=4)
    async def look(value: bytes) -> None:
        await asyncio.sleep(0.01)

    engine = Engine(app, seed=3)
    other = Engine(app, cluster=engine.cluster, name="other")
    member = await engine.start()
    await other.start()
    for n in range(200):
        engine.send(b"%d" % n, b"")
    for _ in range(2):
        for at in range(4):
            within = WHOLE.split(WHOLE.size // 4 * (at + 1))[0] if at < 3 else WHOLE
            await member.work.requests.grant((SOURCE, 0), within)
            await member.work.requests.release((SOURCE, 0), within)
    await engine.stop()
    await other.stop()
    assert "comes to nothing" not in caplog.text
    assert "a release that was asked for waits" not in caplog.text


@virtual
async def test_a_restore_that_waits_holds_up_no_other_step() -> None:
    """What has no state is worked on meanwhile; and whoever is expelled meanwhile is out at once."""
    app = application(commit_interval_ms=20, commit_lead_ms=5)
    handled: list[bytes] = []

    @app.handler(SOURCE)
    async def count(value: bytes, seen: State[int]) -> None:
        seen.put((seen.get() or 0) + 1)

    @app.handler(PLAIN)
    async def look(value: bytes) -> None:
        handled.append(value)

    engine = Engine(app, sources=(SOURCE, PLAIN))
    engine.cluster.wrap = DeafToChangelogs
    await engine.start()
    engine.send(b"k", b"1")
    await engine.level()
    await engine.stop()
    engine.copies = MemoryCopies()
    member = engine.make()
    engine.connection.is_deaf = True
    engine.task = asyncio.get_running_loop().create_task(member.run())
    engine.send(b"k", b"2", topic=PLAIN)
    await until(lambda: handled == [b"2"])
    assert member.holding.held.restoring.keys() == {(SOURCE, 0)}
    control, own = member.own_ledger.ledger.control, member.own_ledger.incarnation
    elected = coordinator_elected(control.term + 1, "another", control.app_birth)
    expelled = MemberExpelled(control.term + 1, 1, own, "silent", 0)
    engine.cluster.write([Outgoing("app.control", 0, None, encode(event)) for event in (elected, expelled)], ())
    began_s = asyncio.get_running_loop().time()
    await engine.fails(Expelled, r"was expelled \(silent\)")
    assert asyncio.get_running_loop().time() - began_s < 2
