"""Logs that older versions wrote are gone on with: nothing is done twice, nothing is skipped, the state is theirs.

The golden logs are those of ``golden_logs.py``, each written by the code of its version: 0.1, and the last one that
wrote events of level 0. What they say is read here without the product: events as msgpack arrays, a tile of a
``committed/1`` as [worker, count, first, end, offset from, offset to].
"""

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from keylanes import App
from keylanes.brokers.protocol import Outgoing
from keylanes.brokers.simulated.broker import Latency
from keylanes.errors import StoreError
from keylanes.keyrange.hashing import hash_chain_text, point_of_key
from keylanes.offsets.provenance import HEADER
from keylanes.state.changelog import is_beacon_key
from keylanes.state.copies import open_copies
from keylanes.state.keys import parse_key
from keylanes.state.topics import NewRecord, TopicStore

from ..offsets import golden_logs
from ..offsets.golden_logs import (
    APP,
    CHANGELOG,
    DEAD,
    KEYS,
    NOTHING,
    OUTPUT,
    PARTITIONS,
    SOURCE,
    Handled,
    Wait,
    application,
    expected,
    holding,
    order,
)
from ..stage.cluster import Cluster
from ..stage.engine import Engine
from ..stage.virtual import virtual

GOLDEN = Path(golden_logs.__file__).parent / "golden"
VERSIONS = {"0.1": 1, "level-0": 2}
"""And the version of the headers that it wrote."""
ORDERS = golden_logs.LIVES * golden_logs.ORDERS_EACH
MORE = 30
STUCK_KEY = 5

version = pytest.mark.parametrize("version", VERSIONS)


class Old(NamedTuple):
    """What a golden file says. ``done``: the orders that tiles hold; ``state``: the changelog's newest values.

    ``changed``: the log partitions where state was changed behind the newest snapshot.
    """

    topics: dict[str, list[NewRecord]]
    birth: str
    term: int
    incarnations: set[int]
    done: set[int]
    state: dict[tuple[int, bytes], bytes]
    changed: set[int]

    @property
    def waiting(self) -> set[int]:
        """Orders that are still to be handled."""
        return set(range(ORDERS)) - self.done


def old_logs(of: str) -> Old:
    """A golden file, read plainly."""
    topics = {topic.name: topic.records for topic in golden_logs.read(GOLDEN / f"logs-{of}.txt")}
    control, offsets = decoded(topics[f"{APP}.control"]), topics[f"{APP}.offsets"]
    births = {event[2]: event[3] for event in control if event[0] == "member_joined/1"}
    term = max(event[1] for event in control if event[0] == "coordinator_elected/1")
    changed: set[int] = set()
    for partition in range(PARTITIONS):
        own = decoded(record for record in offsets if record.partition == partition)
        covered = max(event[6] for event in own if event[0] == "snapshot_taken/2")
        if any(event[0] == "state_changed/1" for event in own[covered:]):
            changed.add(partition)
    done = done_by(decoded(offsets), topics[SOURCE])
    return Old(topics, births[min(births)], term, set(births), done, folded(topics[CHANGELOG]), changed)


def done_by(events: list[list[Any]], orders: list[NewRecord]) -> set[int]:
    """The orders that tiles hold, none of them in two."""
    tiles = [(event[7], tile) for event in events if event[0] == "committed/1" for tile in event[8]]
    ends, done = [0] * PARTITIONS, set()
    for record in orders:
        offset, point = ends[record.partition], point_of_key(record.key or b"")
        ends[record.partition] += 1
        covers = [
            first <= point < end and start <= offset < to
            for partition, (_, _, first, end, start, to) in tiles
            if partition == record.partition
        ]
        assert covers.count(True) <= 1
        if any(covers):
            done.add(int(record.value or b""))
    return done


def decoded(records: Iterable[Any]) -> list[list[Any]]:
    """Events as arrays."""
    return [msgspec.msgpack.decode(record.value or b"") for record in records]


def folded(changelog: Iterable[Any]) -> dict[tuple[int, bytes], bytes]:
    """The newest stored value of each (partition, state key); without beacons."""
    newest = {(row.partition, row.key or b""): row.value for row in changelog if not is_beacon_key(row.key or b"")}
    return {place: value for place, value in newest.items() if value is not None}


def app_id(birth: str) -> bytes:
    """What an application calls itself in headers: the hash of its birth."""
    return hash_chain_text(birth).to_bytes(8, "big")


def state_of(kept: dict[tuple[int, bytes], bytes]) -> tuple[dict[bytes, int], dict[tuple[bytes, str], int]]:
    """What the stores hold, as ``Expected`` has it. A stored value without a deadline is a byte 0 and its JSON."""
    total: dict[bytes, int] = {}
    last: dict[tuple[bytes, str], int] = {}
    for (partition, raw), stored in kept.items():
        parsed = parse_key(raw)
        assert order(int(parsed.key[4:])).partition == partition
        assert stored[:1] == b"\0"
        if parsed.store == 0:
            total[parsed.key] = json.loads(stored[1:])
        else:
            last[parsed.key, parsed.map_key.decode()] = json.loads(stored[1:])
    return total, last


def check_results(rows: Callable[[str], list[Any]], orders: int) -> None:
    """Each of so many orders was done once, those of a key in order: outputs, dead letters and state say so."""
    gives = expected(range(orders))
    outputs: dict[bytes, list[bytes]] = {}
    for row in rows(OUTPUT):
        outputs.setdefault(row.key, []).append(row.value)
    assert outputs == gives.outputs
    assert sorted(row.value for row in rows(DEAD)) == sorted(gives.dead)
    assert state_of(folded(rows(CHANGELOG))) == (gives.total, gives.last)


# --- on a simulated cluster ------------------------------------------------------------------------------------------


class World:
    """Golden logs on a simulated cluster, every record where it was, and processes of today's version on them."""

    def __init__(self, of: str, seed: int = 0) -> None:
        self.old = old_logs(of)
        self.cluster = Cluster(seed, Latency())
        for topic in golden_logs.read(GOLDEN / f"logs-{of}.txt"):
            self.cluster.create_topic(topic.name, topic.partitions, topic.config)
            self.cluster.write([Outgoing(*record) for record in topic.records], ())
        self.engine = Engine(self.application()[0], cluster=self.cluster, sources=())

    def application(self, wait: Wait = NOTHING) -> tuple[App, Handled]:
        """As the golden logs' own, and what it has handled."""
        return application("embedded:never-opened", wait, compression_type=None, snapshot_every_commits=5)

    async def start(self, wait: Wait = NOTHING) -> Handled:
        """Start a process; what it handles."""
        app, handled = self.application(wait)
        await self.engine.start(app)
        return handled

    async def run(self, orders: int) -> set[int]:
        """Start a process, and stop it in order when so many orders are done; what it has handled."""
        handled = await self.start()
        await self.engine.level()
        await self.engine.stop()
        check_results(self.cluster.committed, orders)
        return handled

    def send(self, values: Iterable[int]) -> None:
        """More orders."""
        self.cluster.write([Outgoing(*order(value)) for value in values], ())

    def control(self) -> list[list[Any]]:
        """What was written to the control log since."""
        return decoded(self.cluster.committed(f"{APP}.control"))[len(self.old.topics[f"{APP}.control"]) :]


@version
@virtual
async def test_the_state_is_what_the_old_version_had_written(version: str) -> None:
    """Before anything is done: as the changelog of the old version holds it, which is what its orders give."""
    world = World(version)
    gives = expected(sorted(world.old.done))
    assert world.old.waiting
    assert world.old.changed == {0}
    assert state_of(world.old.state) == (gives.total, gives.last)
    await world.start(holding(lambda _: True))
    total, last = world.engine.view("total"), world.engine.view("last")
    keys = [b"key %d" % number for number in range(KEYS)]
    assert {key: total.get(key) for key in keys} == gives.total
    assert {(key, parity): value for key in keys for parity, value in last.items(key)} == gives.last
    assert folded(world.cluster.committed(CHANGELOG)) == world.old.state
    await world.engine.crash()


@version
@pytest.mark.parametrize("seed", range(3))
@virtual
async def test_an_older_log_is_gone_on_with_across_a_crash_and_restarts(version: str, seed: int) -> None:
    """The first process handles what no tile holds and nothing else; it dies while a key waits; others come after."""
    world = World(version, seed)
    handled = await world.start(holding(lambda value: value % KEYS == STUCK_KEY))
    free = {value for value in world.old.waiting if value % KEYS != STUCK_KEY}
    await handled.until(len(free))
    await asyncio.sleep(1)  # in virtual time: all that is handled is committed
    assert handled == free
    await world.engine.crash()
    assert await world.run(ORDERS) == world.old.waiting - free
    for life in range(2):
        more = range(ORDERS + life * MORE, ORDERS + (life + 1) * MORE)
        world.send(more)
        assert await world.run(ORDERS + (life + 1) * MORE) == set(more)


@version
@virtual
async def test_outputs_of_both_versions_name_one_application(version: str) -> None:
    """By the birth of the old logs: the instance of the lowest incarnation. Headers of version 1 named none."""

    def headers(rows: Iterable[Any]) -> list[list[Any]]:
        return [msgspec.msgpack.decode(dict(row.headers)[HEADER]) for row in rows]

    world = World(version)
    await world.run(ORDERS)
    for topic in (OUTPUT, DEAD):
        old = {bytes(header[1]) for header in headers(world.old.topics[topic]) if header[0] == 2}
        assert bool(old) == (VERSIONS[version] == 2)
        new = headers(world.cluster.committed(topic))
        assert {header[0] for header in new} == {VERSIONS[version], 2}
        assert {header[1] for header in new if header[0] == 2} == {app_id(world.old.birth)} >= old


@version
@virtual
async def test_what_is_decided_from_now_on_is_of_level_1(version: str) -> None:
    """An election that names the application, then numbers in turn; the old processes are fenced, each of them once."""

    def decisions(world: World) -> list[Any]:
        """Without the events by which a process finds the end of the log."""
        return [event for event in world.control() if event[0] != "app_created/1"]

    world = World(version)
    old = decoded(world.old.topics[f"{APP}.control"])
    for life in (1, 2):
        before = len(decisions(world))
        await world.run(ORDERS)
        elected, *decided = decisions(world)[before:]
        assert elected[0] == "coordinator_elected/2"
        assert (elected[1], elected[-1]) == (world.old.term + life, world.old.birth)
        assert [event[1:3] for event in decided] == [[elected[1], n] for n in range(1, len(decided) + 1)]
        raised = [event[:2] + event[3:] for event in decided if event[0].startswith("level_raised/")]
        assert raised == ([["level_raised/1", elected[1], 1]] if life == 1 else [])
    new = decisions(world)
    assert not {event[0] for event in new} & {event[0] for event in old}
    joined = {max(world.old.incarnations) + life for life in (1, 2)}
    assert {event[3] for event in new if event[0].startswith("member_joined/")} == joined
    fenced = [event[-1] for event in [*old, *new] if event[0].startswith("member_fenced/")]
    assert sorted(fenced) == sorted({*world.old.incarnations, *joined})


# --- on the embedded broker ------------------------------------------------------------------------------------------


class Folder:
    """Golden logs on an embedded broker, beside a folder for state. ``by_key``: the broker keeps the changelog so."""

    def __init__(self, of: str, folder: Path, *, by_key: bool) -> None:
        self.old, self.topics, self.state = old_logs(of), folder / "topics", folder / "state"
        self.by_key = by_key
        golden_logs.load(GOLDEN / f"logs-{of}.txt", self.topics, by_key=by_key)

    def run(self, orders: int) -> set[int]:
        """Handle what waits; what that was."""
        settings: dict[str, Any] = {} if self.by_key else {"state_folder": str(self.state)}
        app, handled = application(f"embedded:{self.topics}", snapshot_every_commits=5, **settings)
        app.run(until="level")
        check_results(self.rows, orders)
        return handled

    def send(self, values: Iterable[int]) -> None:
        """More orders."""
        store = TopicStore.open(self.topics)
        store.append([order(value) for value in values])
        store.close()

    def rows(self, topic: str) -> list[NewRecord]:
        """All records of a topic; of a table one for each key."""
        store = TopicStore.open_read_only(self.topics)
        found: list[NewRecord] = []
        for partition in range(PARTITIONS):
            table = store.table(topic, partition)
            if table is not None:
                page = table.page(b"", None, 1 << 30)
                found += [NewRecord(topic, partition, key, value) for key, value in page]
                continue
            start, high = store.watermarks(topic, partition)
            if start < high:
                records = store.read(topic, partition, start, high)[0]
                found += [NewRecord(topic, partition, r.key, r.value, r.headers, r.timestamp) for r in records]
        store.close()
        return found


@version
@pytest.mark.parametrize("by_key", [False, True])
def test_older_topics_of_an_embedded_broker_are_gone_on_with(version: str, by_key: bool, tmp_path: Path) -> None:
    """With the changelog as a log and a folder for the state, and kept by key by the broker itself."""
    folder = Folder(version, tmp_path, by_key=by_key)
    assert folder.run(ORDERS) == folder.old.waiting
    assert folder.run(ORDERS) == set()
    more = range(ORDERS, ORDERS + MORE)
    folder.send(more)
    assert folder.run(ORDERS + MORE) == set(more)


@version
def test_a_state_folder_of_the_old_version_is_taken(version: str, tmp_path: Path) -> None:
    """It says for which logs it holds state, by their birth; one of other logs is refused as before. The copies, which
    were right in the folder, are in its subfolder 0 then.
    """
    folder = Folder(version, tmp_path, by_key=False)
    open_copies(folder.state, app=APP, birth=folder.old.birth).close()
    assert folder.run(ORDERS) == folder.old.waiting
    copies = open_copies(folder.state / APP / "0", app=APP, birth=folder.old.birth, mode="beside")
    assert copies.topics() == [SOURCE]
    copies.close()

    other = Folder(version, tmp_path / "other", by_key=False)
    open_copies(other.state, app=APP, birth="somebody else").close()
    with pytest.raises(SystemExit) as ended:
        other.run(ORDERS)
    assert isinstance(ended.value.__cause__, StoreError)
    assert "born somebody else" in str(ended.value.__cause__)
