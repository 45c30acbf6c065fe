"""What the simulated application does with a record, and what it must have made visible: both from the value alone."""

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from keylanes.errors import NoKey
from keylanes.runtime.handlers.context import Context, Output, Record
from keylanes.runtime.handlers.handler import DeadLetter, Handler, Retry, declare

from .twin import (
    BillsBy,
    BillsRecent,
    BillsSeen,
    Entries,
    OrdersBy,
    OrdersRecent,
    OrdersSeen,
    Twin,
    Value,
    Writes,
    change,
)

ORDERS, BILLS = "orders", "bills"
"""Two sources: the first has an async handler, the second a sync one."""

OUT, AUDIT, DEAD = "out", "audit", "dead"
ATTEMPTS = 3
BIG_BYTES = 3_000
"""The size of a big output: larger than what ``out`` takes while its limit is lowered."""


class Work(msgspec.Struct, omit_defaults=True):
    """A value: what the handler shall do with it. ``number`` is unique."""

    number: int
    returned: int = 0
    sent: int = 0
    wait_ms: int = 0
    fails: int = 0
    hangs: int = 0
    is_big: bool = False


class Expected(NamedTuple):
    """One record to be written for a source record."""

    topic: str
    key: bytes | None
    value: bytes | None


class Observer(Protocol):
    """Hears of every attempt."""

    def begins(self, context: Context) -> None: ...
    def ends(self, context: Context) -> None: ...


def draw_work(rng: random.Random, number: int, *, is_sync: bool, trouble: float) -> bytes | None:
    """A value; with probability ``trouble`` one that fails in some way, None and bytes that are no JSON among them."""
    work = Work(
        number,
        returned=rng.choice((0, 0, 1, 1, 1, 2, 4)),
        sent=rng.choice((0, 0, 0, 1, 2)),
        wait_ms=0 if is_sync else rng.choice((0, 0, 0, 1, 3, 10, 40, 150)),
    )
    if rng.random() < trouble:
        kind = rng.choice(
            ("fails", "fails", "dies", "hangs", "hangs for good", "null", "damaged", "big", "big", "slow")
        )
        if kind == "null":
            return None
        if kind == "damaged":
            return b"\xff no JSON, number %d" % number
        if kind == "fails":
            work.fails = rng.randint(1, ATTEMPTS - 1)
            if work.fails == ATTEMPTS - 1:  # its last attempt must not time out, whoever stands still meanwhile
                work.wait_ms = 0
        elif kind == "dies":
            work.fails = ATTEMPTS
        elif kind == "big":
            work.is_big, work.returned = True, 2
        elif kind == "slow":
            work.wait_ms = 0 if is_sync else rng.randint(180, 240)
        elif not is_sync:
            work.hangs = 1 if kind == "hangs" else ATTEMPTS
    return msgspec.json.encode(work)


def outputs(work: Work, ctx: Context, saw: str) -> Output | bytes | list[bytes] | None:
    """What a handler sends and returns; raises when it shall fail."""
    for i in range(work.sent):
        ctx.send(AUDIT, _sent(work, i), key=ctx.key)
    if ctx.attempt <= work.fails:
        raise ValueError(f"work {work.number} fails on attempt {ctx.attempt}")
    values = [_returned(work, i, saw) for i in range(work.returned)]
    if len(values) == 1:
        return values[0] if work.number % 2 else Record(values[0])
    return values or None


async def dawdle(work: Work, ctx: Context) -> None:
    """Take as long as the record says."""
    if work.wait_ms:
        await asyncio.sleep(work.wait_ms / 1000)
    if ctx.attempt <= work.hangs:
        await asyncio.sleep(3_600)


def handlers(
    factors: dict[str, int],
    observer: Observer,
    *,
    stateful: bool,
    max_in_flight: int | None = None,
    rate_per_s: float | None = None,
) -> list[Handler]:
    """The application's handlers, with so many workers for each source."""
    nothing: tuple[()] = ()

    def worked(
        work: Work, ctx: Context, stores: tuple[Value, Entries, Entries] | tuple[()]
    ) -> Output | bytes | list[bytes] | None:
        saw = change(work.number, ctx.key, work.is_big, *stores) if stores else ""
        return outputs(work, ctx, saw)

    async def on_order(work: Work, ctx: Context) -> Output | bytes | list[bytes] | None:
        observer.begins(ctx)
        try:
            await dawdle(work, ctx)
            return worked(work, ctx, nothing)
        finally:
            observer.ends(ctx)

    async def on_order_with_state(
        work: Work, ctx: Context, seen: OrdersSeen, by: OrdersBy, recent: OrdersRecent
    ) -> Output | bytes | list[bytes] | None:
        observer.begins(ctx)
        try:
            if ctx.attempt <= work.hangs:
                worked(work, ctx, (seen, by, recent))  # what an attempt wrote that is timed out is nothing
            await dawdle(work, ctx)
            return worked(work, ctx, (seen, by, recent))
        finally:
            observer.ends(ctx)

    def on_bill(work: Work, ctx: Context) -> Output | bytes | list[bytes] | None:
        observer.begins(ctx)
        try:
            return worked(work, ctx, nothing)
        finally:
            observer.ends(ctx)

    def on_bill_with_state(
        work: Work, ctx: Context, seen: BillsSeen, by: BillsBy, recent: BillsRecent
    ) -> Output | bytes | list[bytes] | None:
        observer.begins(ctx)
        try:
            return worked(work, ctx, (seen, by, recent))
        finally:
            observer.ends(ctx)

    known: dict[str, Callable[..., object]] = {ORDERS: on_order, BILLS: on_bill}
    if stateful:
        known = {ORDERS: on_order_with_state, BILLS: on_bill_with_state}
    return [_declared(known[topic], topic, factors[topic], max_in_flight, rate_per_s) for topic in factors]


def _declared(
    function: Callable[..., object], topic: str, factor: int, max_in_flight: int | None, rate_per_s: float | None
) -> Handler:
    return declare(
        function,
        topic,
        to=OUT,
        parallelising_factor=factor,
        retry=Retry(attempts=ATTEMPTS, backoff_ms=20),
        on_failure=DeadLetter(DEAD),
        max_in_flight=max_in_flight,
        rate_per_s=rate_per_s,
    )


def expected(
    key: bytes | None, value: bytes | None, at_ms: int, twin: Twin | None
) -> tuple[list[list[Expected]], Writes]:
    """The records that a source record leads to, in order; several lists when more than one outcome is right. And what
    it writes to the state of its partition, as ``twin`` has it after the records before.
    """
    dead = [Expected(DEAD, key, value)]
    try:
        work = msgspec.json.decode(value or b"", type=Work)
    except msgspec.DecodeError:
        return [dead], {}
    if max(work.fails, work.hangs) >= ATTEMPTS:
        return [dead], {}
    saw, writes = "", dict[bytes, bytes | None]()
    if twin is not None:
        try:
            saw, writes = twin.work(work.number, key, work.is_big, at_ms)
        except NoKey:
            return [dead], {}
    sent = [Expected(AUDIT, key, _sent(work, i)) for i in range(work.sent)]
    returned = [Expected(OUT, key, _returned(work, i, saw)) for i in range(work.returned)]
    return ([[*sent, *returned], dead] if work.is_big else [[*sent, *returned]]), writes


def _sent(work: Work, i: int) -> bytes:
    return b"sent %d of %d" % (i, work.number)


def _returned(work: Work, i: int, saw: str) -> bytes:
    value = b"returned %d of %d" % (i, work.number) + saw.encode()
    return value + b"." * BIG_BYTES if work.is_big and i else value
