"""Two programs under one name take part together, and it is said; a restart with another declaration is none."""

import asyncio

import pytest

from keylanes import App

from .group import Group, in_group, passing_on


def with_returns() -> App:
    """The usual application, with one more handler."""
    app = passing_on()
    app.handler("returns")(lambda value: None)
    return app


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines about different topics."""
    return [r.getMessage() for r in caplog.records if "different topics" in r.getMessage()]


@in_group()
async def test_different_programs_of_one_name_are_told(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    """By one of them, once; they go on."""
    group.cluster.create_topic("returns", 2)
    for name, app in (("a", passing_on()), ("b", with_returns()), ("c", with_returns())):
        await group.process(name, app).start()
    group.send(100)
    await group.done()
    await asyncio.sleep(30)
    (said,) = told(caplog)
    assert said.startswith(
        "app: members handle different topics: incarnation 2 (b) handles returns, and incarnation 1 does not. Two "
    )


@in_group()
async def test_a_restart_with_another_declaration_is_not_told(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    """Though the one that was killed is not expelled yet."""
    group.cluster.create_topic("returns", 2)
    killed = group.process("a")
    await killed.start()
    await killed.crash()
    await group.process("b", with_returns()).start()
    await asyncio.sleep(30)
    assert told(caplog) == []
