"""When clients may log in, and where to nothing is sent in the clear."""

import asyncio
import socket
import time
from contextlib import suppress

import pytest

from keylanes.brokers.kafka.connection import KafkaConnection
from keylanes.brokers.kafka.log_ins import LogIns
from keylanes.brokers.kafka.tokens import Tokens
from keylanes.brokers.protocol import AuthenticationRefused

from ..tiers.marks import tier

pytestmark = tier("check")

REFUSAL = AuthenticationRefused("no")
LIMIT_S = 10.0


async def log_in(log_ins: LogIns, order: list[str], name: str, answer: asyncio.Future[bool]) -> None:
    """Say when it begins and ends; the broker's answer is given from outside."""
    async with log_ins.turn():
        order.append(f"{name} begins")
        if not await answer:
            raise log_ins.refused(REFUSAL) or OSError("lost")
        order.append(f"{name} ends")


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
    assert log_ins.refusal is REFUSAL


async def test_a_token_that_is_refused_is_asked_for_anew_once() -> None:
    """The server of tokens may have changed its keys."""
    given = ["old", "new", "newer"]

    async def give() -> str:
        return given.pop(0)

    tokens = Tokens(give, time.time)
    log_ins = LogIns(tokens)
    assert await tokens.token() == "old"
    assert log_ins.refused(REFUSAL) is None
    assert await tokens.token() == "new"
    assert log_ins.refused(REFUSAL) is REFUSAL


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
