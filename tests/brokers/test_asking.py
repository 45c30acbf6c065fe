"""How long one attempt may take, and which of several that are tried side by side counts."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import repeat

import pytest

from keylanes.brokers.deadline import Deadline, first_of
from keylanes.brokers.protocol import BrokerTimeout

from ..stage.virtual import virtual
from ..tiers.marks import tier

pytestmark = tier("check")


def pauses() -> Iterator[float]:
    """Always the same."""
    return repeat(0.5)


@virtual
async def test_an_attempt_takes_no_more_than_its_part() -> None:
    """What is left of the deadline, and never more than an attempt's own limit."""
    deadline = Deadline(10_000, "a test", pauses(), 4_000)
    assert deadline.attempt == 4
    await asyncio.sleep(7)
    assert deadline.attempt == pytest.approx(3)
    assert Deadline(10_000, "a test", pauses()).attempt == pytest.approx(10)
    await asyncio.sleep(2.9)
    with pytest.raises(BrokerTimeout, match=r"a test: not done within 10000 ms \(why\)"):
        await deadline.pause("why")


class Servers:
    """What is begun, done, cancelled and thrown away, and when."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def tell(self, what: str) -> None:
        """One line."""
        self.told.append(f"{asyncio.get_running_loop().time():.2f} {what}")

    def server(self, name: str, after: float, error: Exception | None = None) -> Callable[[], Awaitable[str]]:
        """One that answers, or fails, after some seconds."""

        async def ask() -> str:
            self.tell(f"{name} begins")
            try:
                await asyncio.sleep(after)
            except asyncio.CancelledError:
                self.tell(f"{name} cancelled")
                raise
            if error is not None:
                raise error
            return name

        return ask

    async def first(self, *attempts: Callable[[], Awaitable[str]]) -> str:
        """As a client asks them."""
        return await first_of(
            attempts, 0.25, lambda error: isinstance(error, OSError), lambda name: self.tell(f"{name} thrown away")
        )


@virtual
async def test_a_silent_server_does_not_hold_up_the_others() -> None:
    """The next begins a little later, and the first that answers counts; who still waits is cancelled."""
    servers = Servers()
    begun = asyncio.get_running_loop().time()
    assert await servers.first(servers.server("hung", 60), servers.server("good", 0.1)) == "good"
    assert asyncio.get_running_loop().time() - begun == pytest.approx(0.35)
    assert [line.split(maxsplit=1)[1] for line in servers.told] == ["hung begins", "good begins", "hung cancelled"]


@virtual
async def test_a_server_that_refuses_lets_the_next_begin_at_once() -> None:
    """Nobody waits for the moment of the next one."""
    servers = Servers()
    attempts = [servers.server(f"dead-{number}", 0, OSError(f"{number}")) for number in range(3)]
    begun = asyncio.get_running_loop().time()
    assert await servers.first(*attempts, servers.server("good", 0)) == "good"
    assert asyncio.get_running_loop().time() - begun < 0.1
    with pytest.raises(OSError, match="2"):
        await servers.first(*attempts)


@virtual
async def test_an_error_that_would_come_again_ends_all() -> None:
    """Who refuses the log-in is not asked by way of the next server."""
    servers = Servers()
    with pytest.raises(ValueError, match="no"):
        await servers.first(servers.server("strict", 0.1, ValueError("no")), servers.server("other", 0))
    assert [line.split(maxsplit=1)[1] for line in servers.told] == ["strict begins"]


@virtual
async def test_what_answers_at_the_same_moment_is_thrown_away() -> None:
    """One of them counts."""
    servers = Servers()
    assert await servers.first(servers.server("one", 0.5), servers.server("two", 0.25)) in ("one", "two")
    assert [line.split(maxsplit=1)[1] for line in servers.told if "thrown" in line] != []


@virtual
async def test_who_is_cancelled_leaves_nothing_running() -> None:
    """All that have begun end with it."""
    servers = Servers()
    asking = asyncio.ensure_future(servers.first(servers.server("one", 60), servers.server("two", 60)))
    await asyncio.sleep(1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert sorted(line.split(maxsplit=1)[1] for line in servers.told if "cancelled" in line) == [
        "one cancelled",
        "two cancelled",
    ]
