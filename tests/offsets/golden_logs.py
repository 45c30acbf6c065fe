"""Golden logs: all topics of a small application as one version of keylanes wrote them, in a text file.

``PYTHON -P golden_logs.py FILE``, with the Python of a checkout's environment, runs the application of that checkout
and writes the file; so the file of an older version is made with that version's code. It uses only what all versions
have. The application is run by five processes, one after the other, on an embedded broker whose changelog is a log as
on Kafka, so its state is in a folder, and nothing in the logs has holes:

0. starts with empty logs;
1. splits, merges, releases and grants ranges while it works;
2. dies (``os._exit``) while one key's record does not end, so edges are apart;
3. stops in order;
4. releases a range that nobody takes up again, works on, and dies while another key's record does not end.

Records are left that nobody processed. A snapshot of each log partition is taken every three commits.

In the file a line ``topic NAME PARTITIONS CONFIG`` is followed by the topic's records: a line ``partition N``, then a
line for each record from offset 0 on: timestamp, key, value, and each header's name and value; bytes in base64, nothing
is ``-``.
"""

import asyncio
import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

from keylanes import App, Context, DeadLetter, MapState, Settings, State, Store
from keylanes.keyrange.ranges import KeyRange
from keylanes.state.changelog import CHANGELOG_CONFIG, changelog_topic
from keylanes.state.tables import TABLE_CONFIG
from keylanes.state.topics import NewRecord, TopicStore

APP, SOURCE, OUTPUT, DEAD = "shop", "orders", "packed", "orders.dead"
CHANGELOG = changelog_topic(APP, SOURCE)
PARTITIONS = 2
KEYS = 8
LIVES = 5
ORDERS_EACH = 18
"""Records of the source in front of each life."""
STUCK = (2 * ORDERS_EACH + 1, 4 * ORDERS_EACH + 1)
"""In the lives that die these values don't come to an end."""
LATE = 4 * ORDERS_EACH + 14
"""The last life handles this value last, in partition 0: only there state is changed behind the newest snapshot."""
QUARTER = 2**30
CONFIG = {"cleanup.policy": "delete", "max.message.bytes": "1048588"}
"""Of topics that the broker has made itself."""


class Golden(NamedTuple):
    """One topic of a golden file."""

    name: str
    partitions: int
    config: dict[str, str]
    records: list[NewRecord]


def order(value: int) -> NewRecord:
    """The record of the source with this value."""
    return NewRecord(SOURCE, value % KEYS % PARTITIONS, b"key %d" % (value % KEYS), b"%d" % value, (), 1_000 + value)


class Handled(set[int]):
    """The values that an application has handled."""

    def __init__(self) -> None:
        super().__init__()
        self._more = asyncio.Event()

    def tell(self, value: int) -> None:
        """One more."""
        self.add(value)
        self._more.set()

    async def until(self, so_many: int) -> None:
        """Wait for so many."""
        async with asyncio.timeout(30):
            while len(self) < so_many:
                self._more.clear()
                await self._more.wait()


Wait: TypeAlias = Callable[[int], Awaitable[object]]
"""What the handling of a value waits for."""


def holding(holds: Callable[[int], bool]) -> Wait:
    """The handling of these values does not end."""

    async def wait(value: int) -> None:
        if holds(value):
            await asyncio.Event().wait()

    return wait


NOTHING = holding(lambda _: False)


def application(broker: str, wait: Wait = NOTHING, **settings: object) -> tuple[App, Handled]:
    """The application, and the values that it has handled."""
    app = App(APP, broker=broker, settings=Settings.of(commit_interval_ms=25, commit_lead_ms=5, **settings))
    handled = Handled()

    @app.handler(SOURCE, to=OUTPUT, on_failure=DeadLetter(DEAD), parallelising_factor=4)
    async def pack(
        value: int,
        ctx: Context,
        total: Annotated[State[int], Store(name="total")],
        last: Annotated[MapState[str, int], Store(name="last")],
    ) -> int | None:
        await wait(value)
        await asyncio.sleep(0.02)
        handled.tell(value)
        if value % 17 == 3:
            raise ValueError(value)
        now = (total.get() or 0) + value
        total.put(now)
        if value % 5 == 4:
            last.delete("odd" if value % 2 else "even")
        else:
            last.put("odd" if value % 2 else "even", value)
        return now if value % 3 else None

    return app, handled


class Expected(NamedTuple):
    """What orders give: the values in ``OUTPUT`` by key, those in ``DEAD``, and what the two stores hold."""

    outputs: dict[bytes, list[bytes]]
    dead: list[bytes]
    total: dict[bytes, int]
    last: dict[tuple[bytes, str], int]


def expected(values: Iterable[int]) -> Expected:
    """The handler again, as plainly as it goes. ``values``: of the orders that are done, rising."""
    gives = Expected({}, [], {}, {})
    for value in values:
        key, parity = order(value).key or b"", "odd" if value % 2 else "even"
        if value % 17 == 3:
            gives.dead.append(b"%d" % value)
            continue
        gives.total[key] = gives.total.get(key, 0) + value
        gives.last.pop((key, parity), None)
        if value % 5 != 4:
            gives.last[key, parity] = value
        if value % 3:
            gives.outputs.setdefault(key, []).append(b"%d" % gives.total[key])
    return gives


# --- writing ---------------------------------------------------------------------------------------------------------


def make(folder: Path) -> None:
    """All lives, one after the other."""
    store = TopicStore.open(folder / "topics")
    for name in (SOURCE, OUTPUT, DEAD):
        store.create(name, PARTITIONS, CONFIG)
    store.create(CHANGELOG, PARTITIONS, {**CONFIG, **CHANGELOG_CONFIG})
    store.close()
    for life in range(LIVES):
        store = TopicStore.open(folder / "topics")
        store.append([order(value) for value in range(life * ORDERS_EACH, (life + 1) * ORDERS_EACH)])
        store.close()
        ended = subprocess.run([sys.executable, "-P", __file__, str(folder), str(life)], timeout=120, check=False)
        assert ended.returncode == (9 if life in (2, 4) else 0), (life, ended.returncode)


async def live(folder: Path, life: int) -> None:
    """One process of the application."""
    late = asyncio.Event()

    async def wait(value: int) -> None:
        if life in (2, 4) and value in STUCK:
            await asyncio.Event().wait()
        if life == 4 and value == LATE:
            await late.wait()

    app, handled = application(
        f"embedded:{folder}/topics",
        wait,
        state_folder=f"{folder}/state",
        snapshot_every_commits=3,
        split_hot_ranges=False,
    )

    async with app:
        if life == 1:
            await handled.until(3)
            await app.split(SOURCE, 0, QUARTER * 23 // 50)
            await app.merge(SOURCE, 0, KeyRange(QUARTER, 3 * QUARTER))
            await app.release(SOURCE, 1, KeyRange(QUARTER, 2 * QUARTER))
            await handled.until(8)
            await app.grant(SOURCE, 1, KeyRange(QUARTER, 2 * QUARTER))
        if life == 4:
            await handled.until(3)
            await app.release(SOURCE, 1, KeyRange(QUARTER, 2 * QUARTER))
            await handled.until(12)
            for part in range(1, 9):  # transactions that change no state, until there was a snapshot
                await app.split(SOURCE, 1, 2 * QUARTER + part)
            late.set()
            await handled.until(len(handled) + 1)
            await app.split(SOURCE, 0, 2 * QUARTER + 1)
            os._exit(9)
        if life == 2:
            await handled.until(9)
            os._exit(9)
        await handled.until(ORDERS_EACH)


def dump(folder: Path) -> Iterator[str]:
    """The lines of a golden file."""
    store = TopicStore.open_read_only(folder / "topics")
    for name, topic in sorted(store.topics().items()):
        yield f"topic {name} {topic.partitions} {json.dumps(dict(topic.config), separators=(',', ':'))}"
        for partition in range(topic.partitions):
            yield f"partition {partition}"
            start, high = store.watermarks(name, partition)
            assert start == 0
            for record in store.read(name, partition, start, high)[0] if high else ():
                parts = [str(record.timestamp), text(record.key), text(record.value)]
                for header, value in record.headers:
                    parts += [header, text(value)]
                yield " ".join(parts)
    store.close()


def text(data: bytes | None) -> str:
    """Bytes as they stand in the file."""
    return "-" if data is None else base64.b64encode(data).decode()


# --- reading ---------------------------------------------------------------------------------------------------------


def read(file: Path) -> list[Golden]:
    """The topics of a golden file."""
    topics: list[Golden] = []
    partition = 0
    for line in file.read_text().splitlines():
        kind, *rest = line.split(" ")
        if kind == "topic":
            topics.append(Golden(rest[0], int(rest[1]), json.loads(rest[2]), []))
        elif kind == "partition":
            partition = int(rest[0])
        else:
            key, value, *headers = rest
            named = tuple((name, data(held)) for name, held in zip(headers[::2], headers[1::2], strict=True))
            record = NewRecord(topics[-1].name, partition, data(key), data(value), named, int(kind))
            topics[-1].records.append(record)
    return topics


def load(file: Path, folder: Path, *, by_key: bool) -> None:
    """The topics of a golden file as an embedded broker's folder; with the changelog by key, or as the log it was."""
    store = TopicStore.open(folder)
    for topic in read(file):
        is_table = by_key and topic.name == CHANGELOG
        store.create(topic.name, topic.partitions, {**topic.config, **(TABLE_CONFIG if is_table else {})})
        store.append(topic.records)
    store.close()


def data(written: str) -> bytes | None:
    """Back from ``text``."""
    return None if written == "-" else base64.b64decode(written)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run(live(Path(sys.argv[1]), int(sys.argv[2])))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            make(Path(scratch))
            Path(sys.argv[1]).write_text("".join(f"{line}\n" for line in dump(Path(scratch))))
