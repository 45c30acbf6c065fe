"""When clients may log in, and where to nothing is sent in the clear."""

import asyncio
import socket
import time
from contextlib import suppress

import pytest
from aiokafka.errors import SaslAuthenticationFailed

from keylanes.brokers.kafka.connect_errors import log_in_of, refusal_of
from keylanes.brokers.kafka.connection import KafkaConnection
from keylanes.brokers.kafka.log_ins import LogIns
from keylanes.brokers.kafka.tokens import NoToken, Tokens
from keylanes.brokers.protocol import AuthenticationRefused

from ..tiers.marks import tier
from .test_kafka_tokens import token_until

pytestmark = tier("check")

REFUSAL = AuthenticationRefused("no")
LIMIT_S = 10.0


async def log_in(log_ins: LogIns, order: list[str], name: str, answer: asyncio.Future[bool]) -> None:
    """Say when it begins and ends; the broker's answer is given from outside, and what it refuses is noted."""
    try:
        async with log_ins.turn():
            order.append(f"{name} begins")
            if not await answer:
                raise SaslAuthenticationFailed("no")
            order.append(f"{name} ends")
    except SaslAuthenticationFailed:
        log_ins.refuse(REFUSAL)
        raise REFUSAL from None


async def test_the_first_log_in_is_alone_and_others_go_on_side_by_side() -> None:
    """A connection that is lost meanwhile is no refusal: the next one is the first."""
    log_ins, order, loop = LogIns(None), list[str](), asyncio.get_running_loop()
    answers = {name: loop.create_future() for name in "abcd"}
    tasks = [asyncio.create_task(log_in(log_ins, order, name, answers[name])) for name in "abcd"]
    await asyncio.sleep(0)
    assert order == ["a begins"]
    answers["a"].set_exception(OSError("lost"))
    with pytest.raises(OSError, match="lost"):
        await tasks[0]
    answers["b"].set_result(True)
    await asyncio.wait(tasks[:2], timeout=LIMIT_S)
    later = asyncio.create_task(log_in(log_ins, order, "e", loop.create_future()))
    await asyncio.sleep(0)
    assert order[:3] == ["a begins", "b begins", "b ends"]
    assert "e begins" in order, "it waits for the others although one has succeeded"
    later.cancel()
    for task in tasks:
        task.cancel()


async def test_after_a_refusal_none_begins() -> None:
    """Each further one might lock the account."""
    log_ins, order, loop = LogIns(None), list[str](), asyncio.get_running_loop()
    answers = [loop.create_future() for _ in range(3)]
    tasks = [asyncio.create_task(log_in(log_ins, order, str(i), one)) for i, one in enumerate(answers)]
    await asyncio.sleep(0)
    answers[0].set_result(False)
    for task in tasks:
        with pytest.raises(AuthenticationRefused):
            await asyncio.wait_for(task, LIMIT_S)
    assert order == ["0 begins"]


async def test_where_one_has_succeeded_none_begins_after_a_refusal_either() -> None:
    """Of the connections that were being made then."""
    log_ins, answer = LogIns(None), asyncio.get_running_loop().create_future()
    answer.set_result(True)
    await log_in(log_ins, [], "first", answer)
    log_ins.refuse(REFUSAL)
    with pytest.raises(AuthenticationRefused):
        await log_in(log_ins, [], "late", answer)


async def test_a_token_that_is_refused_is_asked_for_anew_once() -> None:
    """The server of tokens may have changed its keys: those that showed the old one try the new one. When that has let
    one in it is a token like others.
    """
    given, loop = [token_until(time.time() + 1_000 + n) for n in range(9)], asyncio.get_running_loop()

    async def give() -> str:
        return given[number]

    number, shown, tokens = 0, list[str](), Tokens(give, time.time)
    log_ins = LogIns(tokens)

    async def outcome(answer: asyncio.Future[bool]) -> type[Exception] | None:
        shown.append(await tokens.token())
        try:
            await log_in(log_ins, [], "", answer)
        except (NoToken, AuthenticationRefused) as error:
            return type(error)
        return None

    async def outcomes(*answers: bool) -> list[type[Exception] | None]:
        nonlocal number
        futures = [loop.create_future() for _ in answers]
        tasks = [asyncio.create_task(outcome(future)) for future in futures]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        number += 1
        for future, answer in zip(futures, answers, strict=True):
            future.set_result(answer)
        return await asyncio.wait_for(asyncio.gather(*tasks), LIMIT_S)

    assert await outcomes(True) == [None]
    assert await outcomes(False, True, False) == [NoToken, None, NoToken]
    assert await outcomes(True) == [None]
    assert await outcomes(False) == [NoToken]
    assert await outcomes(False) == [AuthenticationRefused]
    assert shown == [given[n] for n in (0, 0, 0, 0, 2, 2, 4)]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sasl_plain_username": "me", "sasl_plain_password": "p"}, "sasl_plain_username and the password"),
        (
            {"sasl_plain_username": "me ", "sasl_plain_password": "p\n"},
            "sasl_plain_username (ends with white space) and the password (ends with white space)",
        ),
        ({"sasl_mechanism": "OAUTHBEARER"}, "what sasl_oauth_token_provider returns"),
    ],
)
def test_a_refusal_says_what_to_look_at(given: dict[str, str], says: str) -> None:
    """A line end that was read with a password is not seen."""
    refusal = refusal_of(SaslAuthenticationFailed("no"), "b:1", log_in_of({"sasl_mechanism": "PLAIN", **given}))
    assert str(refusal).startswith("b:1 refuses the log-in: ")
    assert str(refusal).endswith(says)


def own_address() -> str | None:
    """An address of this machine that is no loopback; None where it has none. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return None


@pytest.mark.parametrize("allow_plaintext", [False, True])
async def test_nothing_is_sent_in_the_clear_to_another_machine(allow_plaintext: bool) -> None:
    """Wherever the cluster advertises a broker: the address that the connection leads to decides, before a byte."""
    if (place := own_address()) is None:
        pytest.skip("this machine has no address but loopback")
    received = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set_result(await reader.read(100))
        writer.close()

    async with await asyncio.start_server(serve, place, 0) as server:
        port = server.sockets[0].getsockname()[1]
        limit = asyncio.timeout(LIMIT_S)
        connection = KafkaConnection(
            place, port, log_ins=LogIns(None), allow_plaintext=allow_plaintext, attempt=limit, attempt_s=LIMIT_S
        )
        refused = pytest.raises(AuthenticationRefused, match=f"advertises {place}:{port}, which is another machine")
        with pytest.raises(Exception) if allow_plaintext else refused:  # noqa: PT011  # it is closed at once
            async with limit:
                await connection.connect()
        assert bool(await asyncio.wait_for(received, LIMIT_S)) is allow_plaintext
