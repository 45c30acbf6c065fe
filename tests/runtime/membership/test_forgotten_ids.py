"""A broker forgets a transactional id that was idle for long. It answers the same where a newer producer has the id:
only the control log says who is in office.
"""

import asyncio
import logging

import pytest

from keylanes.brokers.protocol import Outgoing
from keylanes.offsets.codec import encode
from keylanes.offsets.control_events import MemberExpelled
from keylanes.runtime.logs.own_ledger import Expelled

from ...stage.engine import Engine
from ...stage.log_events import coordinator_elected
from ...stage.virtual import virtual
from .group import passing_on, until


@virtual
async def test_an_id_that_has_expired_is_said_once_and_what_was_done_is_sent_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is wrong, so nothing is warned of, and no record is begun twice."""
    engine = Engine(passing_on())
    await engine.start()
    caplog.clear()
    with caplog.at_level(logging.INFO):
        for number in range(2):
            engine.cluster.state.forget(engine.member.own_ledger.identity.transactional_id)
            engine.send(b"k", b"%d" % number)
            await engine.level()
    assert engine.values() == {b"k": [b"0", b"1"]}
    assert engine.cluster.network.met["forgotten"] == 2
    said = [record for record in caplog.records if "the transactional id had expired" in record.getMessage()]
    assert len(said) == 2
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    await engine.stop()


@virtual
async def test_an_id_that_has_expired_behind_a_fence_is_that_of_an_expelled_process() -> None:
    """It has not heard of it. Nothing is sent again before it has."""
    engine = Engine(passing_on())
    member = await engine.start()
    control, own = member.own_ledger.ledger.control, member.own_ledger.incarnation
    log, cluster = f"{engine.app.name}.control", engine.cluster
    cluster.faults.cut_from.add((engine.connection.client_name, log))
    elected = coordinator_elected(control.term + 1, "another", control.app_birth)
    expelled = MemberExpelled(control.term + 1, 1, own, "silent", 0)
    cluster.write([Outgoing(log, 0, None, encode(event)) for event in (elected, expelled)], ())
    identity = member.own_ledger.identity.transactional_id
    cluster.state.initialise(identity, 1_000)
    cluster.state.forget(identity)
    engine.send(b"k", b"new")
    await until(lambda: cluster.network.met["forgotten"] > 0)
    await asyncio.sleep(2)
    assert engine.values() == {}
    cluster.faults.cut_from.clear()
    await engine.fails(Expelled, r"was expelled \(silent\)")
    assert engine.values() == {}
