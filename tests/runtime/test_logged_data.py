"""Keys and values of records, and what is kept of them, stand in no line of the log, whatever goes wrong."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from keylanes import App, DeadLetter, MapState, Record, Retry, State
from keylanes.brokers.protocol import Outgoing
from keylanes.keyrange.ranges import WHOLE
from keylanes.runtime.handlers.context import Context

from ..stage.engine import DEAD, OUT, SOURCE
from ..stage.limited import settings_of
from .membership.group import Group, held, in_group, until

MARK = "marked"
"""All data has it."""
TABLE = "table"
STUCK = b"marked stuck"

SAID = (
    "ValueError: it has no items",
    "it goes to dead: OutputRefused",
    "it goes to dead: DecodeFailed",
    "it goes to dead: NoKey",
    "a header is a pair of str and bytes (or None)",
    "headers are a list of pairs",
    "a key is text that UTF-8 can write",
    "with its frame; 'out' takes at most",
    "has partitions 0 to",
    "a map's int key fits 64 bits",
    "str is asked for",
    "the broker refuses its output",
    "takes longer than 40000 ms",
    "HandlerTimeout",
    "was not released in time",
    "TransactionAborted",
    "did not end within",
    "restored",
)
"""All of this has to happen."""


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """What the records are. ``do``: what goes wrong with it."""

    do: str
    data: str = MARK


def shop(gate: asyncio.Event) -> App:
    """Keeps state, and fails in all ways."""
    settings = settings_of(
        compression_type=None, split_hot_ranges=False, failure_log_interval_ms=1, handler_timeout_ms=40_000,
        session_timeout_ms=100_000, broker_retry_ms=60_000, drain_timeout_ms=1_000,
    )  # fmt: skip
    app = App("app", broker="embedded:never-opened", settings=settings)

    @app.handler(SOURCE, to=OUT, parallelising_factor=4, retry=Retry(attempts=2), on_failure=DeadLetter(DEAD))
    async def work(order: Order, ctx: Context, seen: State[str], items: MapState[int, str]) -> object:
        data: Any = order.data
        if ctx.key == STUCK:
            await gate.wait()
        match order.do:
            case "fail":
                raise ValueError("it has no items")
            case "sleep":
                await asyncio.sleep(1_000)
            case "header":
                return Record(data, headers=[("trace", data)])
            case "headers":
                return Record(data, headers=data.encode)
            case "text":
                return Record(data, key=f"{data} \ud800")
            case "large":
                return Record(data * 1_000_000)
            case "partition":
                return Record(data, partition=99)
            case "map":
                items.put(1 << 70, data)
            case "store":
                data = {data: data}
            case "table":
                return Record(data, topic=TABLE)
        if order.do != "table":
            seen.put(data)
        return data

    return app


@in_group(partitions=2)
async def test_no_key_and_no_value_is_logged(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    """Failures of all kinds, refused outputs, dead letters, a release that is withdrawn, a broker that is away, a crash
    and a stop that cuts off what runs.
    """
    caplog.set_level(logging.DEBUG, "")
    gate = asyncio.Event()
    group.cluster.create_topic(TABLE, 2)
    first, second = await group.sharing("ab", shop(gate))

    def send(value: bytes, key: bytes | None = b"marked key", partition: int = 0) -> None:
        group.cluster.write([Outgoing(SOURCE, partition, key, value)], ())

    kinds = ["fail", "header", "headers", "text", "large", "partition", "map", "store", "table", "sleep", "good"]
    for kind in kinds:
        send(msgspec.json.encode(Order(kind)), b"marked %s" % kind.encode())
        await asyncio.sleep(0.5)  # a failure of each kind is said
    for value in (b'{"do": "marked', b'{"do": 7, "data": "marked"}', b'{"colour": 1}', b'"marked"'):
        send(value, b"marked " + value)
        await asyncio.sleep(0.5)
    group.cluster.state.configure(TABLE, {"cleanup.policy": "compact"})  # they have looked at the topic
    for kind in ("good", "table"):
        send(msgspec.json.encode(Order(kind)), None)
    await until(lambda: "HandlerTimeout" in caplog.text)
    owner, other = (first, second) if 1 in held(first) else (second, first)
    send(msgspec.json.encode(Order("good")), STUCK, 1)
    moving = asyncio.ensure_future(other.member.work.requests.grant((SOURCE, 1), WHOLE))
    await until(lambda: "was not released in time" in caplog.text)
    moving.cancel()
    group.cluster.faults.away = True
    await asyncio.sleep(20)
    group.cluster.faults.away = False
    await asyncio.sleep(20)
    await other.crash()
    await other.start()
    await owner.stop()
    text = "\n".join(map(logging.Formatter().format, caplog.records))
    assert [said for said in SAID if said not in text] == []
    assert [line for line in text.splitlines() if MARK in line] == []
