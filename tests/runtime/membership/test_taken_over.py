"""A process that found damage and asks who is in office: nothing of it goes on meanwhile."""

import asyncio
from typing import Any

import pytest

from keylanes.brokers.protocol import Outgoing
from keylanes.errors import LogError, SourceError, StateError
from keylanes.offsets.codec import encode
from keylanes.offsets.control_events import MemberExpelled
from keylanes.runtime.logs.own_ledger import Expelled
from keylanes.runtime.logs.reader import HistoryTrimmed

from ...stage.engine import SOURCE, Engine, application
from ...stage.log_events import coordinator_elected
from ...stage.passing import Passing
from ...stage.virtual import virtual


class SlowToAnswer(Passing):
    """A connection that makes every reader wait ten seconds from some moment on."""

    is_slow = False

    async def reader(self, positions: Any) -> Any:
        """A reader, some time."""
        if self.is_slow:
            await asyncio.sleep(10)
        return await self.real.reader(positions)


@virtual
async def test_no_record_is_begun_while_it_asks_who_is_in_office() -> None:
    """However long the answer takes; nothing is committed then, either. What ended it comes out."""
    begun: list[int] = []
    app = application(commit_interval_ms=50)

    @app.handler(SOURCE, parallelising_factor=1)
    async def look(value: bytes) -> None:
        begun.append(int(value))
        await asyncio.sleep(0.01)

    engine = Engine(app)
    engine.cluster.wrap = SlowToAnswer
    for n in range(2_000):
        engine.send(b"k", b"%d" % n)
    member = await engine.start()
    await asyncio.sleep(1)
    engine.connection.is_slow = True
    before, commits = len(begun), member.work.cycle.transactions.commits
    member.fail(SourceError("damaged"))
    await engine.fails(SourceError, "damaged")
    assert 0 < before <= len(begun) <= before + 1
    assert member.work.cycle.transactions.commits <= commits + 1


@pytest.mark.parametrize("kind", [LogError, HistoryTrimmed, SourceError, StateError])
@virtual
async def test_damage_that_an_expelled_process_finds_is_its_expulsion(kind: type[Exception]) -> None:
    """It stood still, others went on, and what it misses is what they did: it has to go, nothing has to be mended."""
    app = application()
    app.handler(SOURCE, parallelising_factor=1)(_nothing)
    engine = Engine(app)
    member = await engine.start()
    control, own = member.own_ledger.ledger.control, member.own_ledger.incarnation
    elected = coordinator_elected(control.term + 1, "another", control.app_birth)
    expelled = MemberExpelled(control.term + 1, 1, own, "silent", 0)
    member.fail(kind("damaged"))
    log = f"{app.name}.control"
    engine.cluster.write([Outgoing(log, 0, None, encode(event)) for event in (elected, expelled)], ())
    await engine.fails(Expelled, r"was expelled \(silent\)")


def _nothing(value: bytes) -> None:
    """Whatever it is."""
