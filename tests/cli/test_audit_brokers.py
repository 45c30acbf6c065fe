"""Where ``keylanes audit`` goes: a link of ours asks for the brokers and looks where it leads, before librdkafka."""

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from keylanes.cli.audit import look_at_brokers
from keylanes.cli.commands import run_command
from keylanes.spark.access import Access
from keylanes.spark.brokers import AuditError

from ..brokers.test_log_ins import own_address
from ..tiers.marks import tier

pytestmark = tier("check")

API_VERSIONS, METADATA = 18, 3
LIMIT_S = 10.0


def text(value: str) -> bytes:
    """As Kafka has it."""
    return struct.pack(">h", len(value)) + value.encode()


class Advertising:
    """A broker on loopback that says that another one, which writes down what it is sent, is the only one."""

    def __init__(self, elsewhere: str) -> None:
        self.elsewhere, self.received = elsewhere, asyncio.Queue[bytes]()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Access]:
        """How it is reached."""
        here = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        there = await asyncio.start_server(self._receive, self.elsewhere, 0)
        self._port = there.sockets[0].getsockname()[1]
        async with here, there:
            yield Access(f"kafka://127.0.0.1:{here.sockets[0].getsockname()[1]}", {}, 5_000)

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = await reader.read(1_000)
        writer.close()
        await writer.wait_closed()
        self.received.put_nowait(received)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while size := await reader.read(4):
            body = await reader.readexactly(*struct.unpack(">i", size))
            key, version, number = struct.unpack(">hhi", body[:8])
            if key == API_VERSIONS:
                rows = [(API_VERSIONS, 0, version), (METADATA, 0, 7)]
                answer = struct.pack(">hi", 0, len(rows)) + b"".join(struct.pack(">hhh", *row) for row in rows)
                answer += struct.pack(">i", 0) if version else b""
            else:
                broker = struct.pack(">i", 1) + text(self.elsewhere) + struct.pack(">ih", self._port, -1)
                answer = struct.pack(">ii", 0, 1) + broker + text("c") + struct.pack(">ii", 1, 0)
            writer.write(struct.pack(">ii", len(answer) + 4, number) + answer)
        writer.close()
        await writer.wait_closed()


@pytest.fixture
def advertising() -> Advertising:
    """A cluster whose only broker is at an address of this machine that is no loopback."""
    if (place := own_address()) is None:
        pytest.skip("this machine has no address but loopback")
    return Advertising(place)


async def test_nothing_is_sent_in_the_clear_to_another_machine_that_is_advertised(advertising: Advertising) -> None:
    """It is refused with the address. What is allowed, or encrypted, is not looked at."""
    encrypted = {"security.protocol": "sasl_ssl"}
    async with advertising.serving() as access:
        with pytest.raises(AuditError, match=f"the cluster advertises {advertising.elsewhere}:.*, which is another"):
            await asyncio.to_thread(look_at_brokers, access, allow_plaintext=False)
        assert await asyncio.wait_for(advertising.received.get(), LIMIT_S) == b""
        await asyncio.to_thread(look_at_brokers, access, allow_plaintext=True)
        await asyncio.to_thread(look_at_brokers, replace(access, security=encrypted), allow_plaintext=False)
    assert advertising.received.empty()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}, "needs a user and a password"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}, "needs a provider of tokens"),
    ],
)
def test_a_log_in_that_can_not_be_tried_first_is_refused(given: dict[str, str], says: str) -> None:
    """As by the application."""
    with pytest.raises(AuditError, match=says):
        look_at_brokers(Access("kafka://127.0.0.1:1", given, 1_000), allow_plaintext=False)


@pytest.mark.spark
async def test_the_command_looks_first(
    advertising: Advertising, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Spark is started; exit code 2."""
    pytest.importorskip("pyspark")
    monkeypatch.setattr(os, "environ", {**os.environ})
    async with advertising.serving() as access:
        words = ["audit", "--app", "shop", "--broker", access.url]
        assert await asyncio.to_thread(run_command, words) == 2
        assert await asyncio.wait_for(advertising.received.get(), LIMIT_S) == b""
    assert "the cluster advertises" in capsys.readouterr().err
