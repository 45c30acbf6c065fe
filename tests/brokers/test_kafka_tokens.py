"""Tokens for log-ins: how long one is used, and what is said when there is none."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable

import aiokafka.errors
import pytest

from keylanes.brokers.kafka.connect_errors import in_words, refusal_of
from keylanes.brokers.kafka.tokens import Tokens, expiry_of
from keylanes.brokers.protocol import AuthenticationRefused
from keylanes.brokers.simulated.virtual_loop import run_virtual

from ..stage.virtual import virtual
from ..tiers.marks import tier

pytestmark = tier("check")

EPOCH_S = 1_700_000_000.0


def token_until(expires_s: float | None) -> str:
    """A JSON web token that expires then; None: it does not say."""
    claims = {"sub": "shop"} if expires_s is None else {"sub": "shop", "exp": expires_s}
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.c2ln"


class Server:
    """Gives out tokens that are good for so many seconds."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self.asked = seconds, 0

    async def give(self) -> str:
        """A new one."""
        self.asked += 1
        await asyncio.sleep(0.1)
        return token_until(None if self.seconds is None else now_s() + self.seconds)


def now_s() -> float:
    """The loop's time, as if it were the world's."""
    return EPOCH_S + asyncio.get_running_loop().time()


@virtual
async def test_a_token_is_used_until_it_is_almost_too_old() -> None:
    """However many ask, also at once; the next one is asked for before the broker would refuse this one."""
    server = Server(100)
    tokens = Tokens(server.give, now_s)
    assert len(set(await asyncio.gather(*(tokens.token() for _ in range(5))))) == 1
    await asyncio.sleep(75)
    await tokens.token()
    assert server.asked == 1
    await asyncio.sleep(10)
    await tokens.token()
    assert server.asked == 2


@virtual
async def test_a_token_of_unknown_age_is_asked_for_each_time() -> None:
    """As one that is too old already."""
    for seconds in (None, -10.0):
        server = Server(seconds)
        tokens = Tokens(server.give, now_s)
        for _ in range(3):
            await tokens.token()
        assert server.asked == 3


@pytest.mark.parametrize("token", ["", "opaque", "a.b", "a.!!.c", "a.e30.c", "a.W10.c", "a.bnVsbA.c"])
def test_what_is_no_web_token_says_nothing_of_its_age(token: str) -> None:
    """No matter how it is broken."""
    assert expiry_of(token) is None


def asked(provider: Callable[[], Awaitable[str]]) -> BaseException:
    """What asking it raises."""

    async def main() -> BaseException:
        try:
            await Tokens(provider, now_s).token()
        except Exception as error:  # noqa: BLE001  # it is what is asked for
            return error
        raise AssertionError("it gave one")

    return run_virtual(main())


async def fails() -> str:
    """The server of tokens is away."""
    raise OSError("nobody there")


async def hangs() -> str:
    """It does not answer."""
    await asyncio.Event().wait()
    return ""


async def gives_none() -> str:
    """It forgot to return it."""
    return None  # type: ignore[return-value]  # as users may write it


@pytest.mark.parametrize(("provider", "says"), [(fails, "OSError('nobody there')"), (hangs, "no answer for 10 s")])
def test_a_provider_that_fails_is_asked_again(provider: Callable[[], Awaitable[str]], says: str) -> None:
    """By the next try to connect; what it raised is said."""
    error = asked(provider)
    assert isinstance(error, aiokafka.errors.KafkaConnectionError)
    assert f"sasl_oauth_token_provider gives no token: {says}" in str(error)
    assert refusal_of(error, "broker", "") is None
    assert in_words(error, "broker", "SASL_SSL") == f"no connection to broker: {error}"


def test_a_provider_that_gives_no_text_is_not_asked_again() -> None:
    """It would do so for ever."""
    error = asked(gives_none)
    assert isinstance(error, AuthenticationRefused)
    assert refusal_of(error, "broker", "") is error
    assert "seen a NoneType" in str(error)
