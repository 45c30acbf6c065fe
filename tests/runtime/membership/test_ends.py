"""How a process ended, and how long the others, and the next start, wait for it."""

import asyncio
import logging
from typing import Literal

import pytest

from keylanes.errors import InvariantBroken

from ...stage.engine import Engine
from .group import BEAT_S, SESSION_S, Group, in_group, share, three, until

Way = Literal["in order", "killed", "by an error"]


@pytest.mark.parametrize("who", ["the coordinator", "another one"])
@in_group()
async def test_a_member_that_ends_by_an_error_is_not_waited_for(group: Group, who: str) -> None:
    """It says that it is gone, and who coordinates also that another one may; so the others have its ranges at once."""
    ends, left = await three(group, who)
    group.send(300)
    await asyncio.sleep(0.05)
    await ended(ends)
    group.send(300)
    assert await until(share(*left)) <= 3 * BEAT_S
    await group.done()


async def ended(engine: Engine) -> None:
    """A process ends by an error that only people can mend."""
    engine.member.fail(InvariantBroken("planted"))
    await engine.fails(InvariantBroken, "planted")


# --- how long a start waits -------------------------------------------------------------------------------------------


async def seconds_to_first_record(group: Group, engine: Engine) -> float:
    """From the start of a process to the first record that it passes on."""
    before = group.sent
    group.send(1)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    starting = loop.create_task(engine.start())
    await until(lambda: len(group.passed_on()) > before)
    await starting
    return loop.time() - began_s


@pytest.mark.parametrize(
    ("way", "is_named", "limit_s", "waits"),
    [
        ("in order", False, 1.0, False),
        ("in order", True, 1.0, False),
        ("killed", True, 2 * BEAT_S + 1, True),
        ("killed", False, 2 * SESSION_S + 1, True),
        ("by an error", False, 1.0, False),
    ],
    ids=["stopped", "stopped-named", "killed-named", "killed", "ended by an error"],
)
@in_group(partitions=1)
async def test_how_long_the_next_start_waits(
    group: Group, caplog: pytest.LogCaptureFixture, way: Way, limit_s: float, *, is_named: bool, waits: bool
) -> None:
    """Not at all where the predecessor said that it ends; else until it is sure that it is gone, which is said once."""
    engine = group.process("a", is_named=is_named)
    await seconds_to_first_record(group, engine)
    await asyncio.sleep(3)
    await (ended(engine) if way == "by an error" else engine.stop() if way == "in order" else engine.crash())
    with caplog.at_level(logging.INFO, "keylanes"):
        caplog.clear()
        assert await seconds_to_first_record(group, engine) <= limit_s
    assert sorted(group.passed_on()) == [0, 1]
    await engine.stop()
    said = [record.getMessage() for record in caplog.records if "waiting to join" in record.getMessage()]
    assert len(said) == waits
    for line in said:
        assert "incarnation 1" in line
        assert "group_instance_id waits for two heartbeats only" in line
