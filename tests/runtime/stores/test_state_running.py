"""State of an application that runs: its changelog, what is refused at a start, reading beside it, reading ahead."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import pytest

from keylanes import (
    App,
    Context,
    DeadLetter,
    HandlerFailed,
    MapState,
    MsgpackCodec,
    SettingsError,
    State,
    StateError,
    StateNotReady,
    Store,
)
from keylanes.brokers.protocol import TopicPartition
from keylanes.brokers.simulated.broker import EPOCH_MS
from keylanes.brokers.simulated.virtual_loop import run_virtual
from keylanes.keyrange.hashing import SPACE_END, point_of_key
from keylanes.keyrange.ranges import KeyRange
from keylanes.runtime.handlers.partition_state import PartitionState, Scope
from keylanes.runtime.watch.steps import ignore_step
from keylanes.state.changelog import beacon_key, decode_beacon, decode_stored, encode_stored
from keylanes.state.keys import state_key
from keylanes.state.memory import MemoryCopies, MemoryCopy
from keylanes.state.overlay import Layer
from keylanes.state.topics import StoredRecord

from ...stage.engine import DEAD, OUT, SOURCE, Engine, application, fold, started
from ...stage.virtual import virtual
from ...tiers.marks import tier
from .test_state import ONCE, Declare, brief

pytestmark = tier("check")

# --- the changelog ---------------------------------------------------------------------------------------------------


def counting(app: App, gate: asyncio.Event | None = None) -> None:
    """Counts by key; the second number waits for a gate."""

    @app.handler(SOURCE, **ONCE)
    async def count(value: int, seen: State[int], by: MapState[int, int]) -> int:
        if gate is not None and value == 99:
            await gate.wait()
        seen.put((seen.get() or 0) + 1)
        by.put(value % 3, value)
        return seen.get() or 0


@virtual
async def test_changelog_of_a_transaction() -> None:
    """It holds the last value of each key and a beacon, with the outputs in one transaction; its event counts them."""
    app = application(commit_interval_ms=500)
    counting(app)
    engine = await started(app)
    for i in range(30):
        engine.send(b"k%d" % (i % 2), b"%d" % i)
    await engine.level()
    changelog = engine.cluster.rows(TopicPartition(engine.changelog(), 0))
    by_transaction: dict[int | None, list[Any]] = {}
    for row in changelog:
        by_transaction.setdefault(row.transaction, []).append(row)
    for rows in by_transaction.values():
        assert len({row.key for row in rows}) == len(rows), "the last value only"
        assert [row.key == beacon_key(1) for row in rows].count(True) == 1
        assert rows[-1].key == beacon_key(1)
    assert len(by_transaction) <= 2
    (beacon,) = [row for row in changelog if row.key == beacon_key(1)][-1:]
    ledger = engine.member.work.own_ledger.ledger
    assert ledger is not None
    last = ledger.partition((SOURCE, 0)).changed
    assert dict([decode_beacon(beacon_key(1), beacon.value)]) == last
    assert len(fold(changelog, {})) == 2 + 2 * 3


@virtual
async def test_refused_output_of_a_record_that_changed_state() -> None:
    """It stops the application with a clear error: later records of its key have seen what it wrote. Nothing of it is
    visible, and when the broker takes it again, it is worked once.
    """
    app = application(commit_interval_ms=300)

    @app.handler(SOURCE, **ONCE)
    async def count(value: int, seen: State[int]) -> str:
        seen.put((seen.get() or 0) + 1)
        return str(seen.get()) + "." * (3_000 if value == 2 else 0)

    engine = await started(app)
    engine.cluster.limit(OUT, 2_000)
    for value in (b"1", b"2", b"3"):
        engine.send(b"k", value)
        engine.send(b"l" + value, b"1")
    with pytest.raises(HandlerFailed, match=r"the broker refuses its output.*it changed state"):
        await engine.level()
    assert engine.values(DEAD) == {}
    before = engine.values()
    assert before.get(b"k", []) in ([], [b"1"])
    engine.cluster.limit(OUT, None)
    await engine.start()
    await engine.level()
    assert [(v or b"").rstrip(b".") for v in engine.values()[b"k"]] == [b"1", b"2", b"3"]
    assert engine.view("seen").get(b"k") == 3
    assert engine.view("seen").get(b"l1") == 1


# --- starts that are refused -----------------------------------------------------------------------------------------


def one_store(annotation: Any, topic: str = SOURCE, name: str = "kept") -> Declare:
    """A handler with one store."""

    def declare(app: App) -> None:
        async def work(value: bytes, store: Any) -> None:
            if app.name == "app" and annotation == State[int]:
                store.put(7)

        work.__annotations__["store"] = Annotated[annotation, Store(name=name)]
        app.handler(topic, on_failure=DeadLetter(DEAD))(work)

    return declare


@pytest.mark.parametrize(
    ("annotation", "topic", "said"),
    [
        (State[str], SOURCE, "was a value of int"),
        (MapState[str, int], SOURCE, "it is a map of int by str"),
        (State[int], "in2", "it is a value of int for in2"),
        (Annotated[State[int], Store(name="kept", codec=MsgpackCodec())], SOURCE, "as msgpack"),
    ],
)
@virtual
async def test_changed_store_is_refused(annotation: Any, topic: str, said: str) -> None:
    """A store of another type, kind, topic or codec than before: an error that says so, and nothing was changed."""
    first = application()
    one_store(State[int])(first)
    engine = await started(first, sources=(SOURCE, "in2"))
    engine.send(b"k", b"1")
    await engine.level()
    await engine.crash()
    await asyncio.sleep(1)  # the last marker is written
    ends = {t: engine.cluster.watermarks(TopicPartition(t, 0)).high for t in engine.cluster.topics()}
    folded, copied = engine.folded(), engine.copied()
    changed = application()
    one_store(annotation, topic)(changed)
    with pytest.raises(SettingsError, match=said):
        await engine.start(changed)
    now = {t: engine.cluster.watermarks(TopicPartition(t, 0)).high for t in engine.cluster.topics()}
    assert {t: end for t, end in now.items() if t in ends} == ends
    assert (engine.folded(), engine.copied()) == (folded, copied)
    again = application()
    one_store(State[int])(again)
    await engine.start(again)
    await engine.level()
    assert engine.view("kept").get(b"k") == 7


def test_truncated_changelog_is_noticed() -> None:
    """A changelog that lost its last transactions is not taken for the state, be there a local copy or none; and
    nothing is cleared or worked for it.
    """

    async def main(is_lost: bool) -> None:
        app = application()
        counting(app)
        engine = Engine(app)
        await engine.start()
        highs = []
        for _ in range(3):
            engine.send(b"k", b"1")
            await engine.level()
            await asyncio.sleep(1)
            highs.append(engine.cluster.watermarks(TopicPartition(engine.changelog(), 0)).high)
        await engine.crash()
        if is_lost:
            engine.copies = MemoryCopies()
        copied, outputs = engine.copied(), engine.values()
        engine.cluster.truncate(TopicPartition(engine.changelog(), 0), highs[1])
        engine.send(b"k", b"1")
        with pytest.raises(StateError, match="the offset log says that transaction"):
            await engine.start()
        assert (engine.copied(), engine.values()) == (copied, outputs)

    run_virtual(main(False))
    run_virtual(main(True))


# --- reading beside the handlers -------------------------------------------------------------------------------------


@virtual
async def test_store_shows_what_is_committed() -> None:
    """`get`, `items` and `scan` see whole transactions: not what is merely done, and all of it once it is committed."""
    app = application(commit_interval_ms=60_000, commit_lead_ms=0)
    counting(app)
    engine = Engine(app, partitions=2)
    member = await engine.start()
    seen, by = engine.view("seen"), engine.view("by")
    engine.send(b"k", b"1")
    engine.send(b"k", b"5", partition=1)
    engine.send(b"l", b"4")
    await asyncio.sleep(1)
    assert member.slots.records_done == 3
    assert (seen.get(b"k"), by.items(b"k"), list(seen.scan()), list(by.scan())) == (None, [], [], [])
    member.work.cycle.wake()
    await engine.level()
    with pytest.raises(ValueError, match=r"partitions \[0, 1\]"):
        seen.get(b"k")
    assert (seen.get("k", partition=0), seen.get(b"l"), seen.get("none")) == (1, 1, None)
    assert (by.items("k", partition=1), by.get(b"l", 1), by.get(b"l", 2)) == ([(2, 5)], 4, None)
    assert {(e.partition, e.key, e.value) for e in seen.scan()} == {(0, b"k", 1), (1, b"k", 1), (0, b"l", 1)}
    point = point_of_key(b"l")
    within = KeyRange(point, point + 1)
    assert [(e.key, e.map_key, e.value) for e in by.scan(within=within)] == [(b"l", 1, 4)]
    with pytest.raises(ValueError, match="store 'by' is a map"):
        by.get(b"k")
    with pytest.raises(ValueError, match="store 'seen' is a value"):
        seen.items(b"k")
    with pytest.raises(StateNotReady, match="partition 7"):
        seen.get(b"k", partition=7)


async def test_app_store_in_a_simulated_application() -> None:
    """`app.store` reads the application that a test runs, and says when there is none."""
    app = application()
    counting(app)
    with pytest.raises(SettingsError, match=r"no store 'what'; it has \['by', 'seen'\]"):
        app.store("what")
    with pytest.raises(StateNotReady, match="does not run"):
        app.store("seen").get("k")
    async with app.test(seed=1) as broker:
        await broker.send(SOURCE, 1, key="k")
        await broker.read(OUT)
        assert app.store("seen").get("k") == 1
        await broker.crash()
        with pytest.raises(StateNotReady, match="does not run"):
            app.store("seen").get("k")
        await broker.restart()
        await broker.send(SOURCE, 2, key="k")
        await broker.read(OUT)
        assert app.store("by").items("k") == [(1, 1), (2, 2)]


async def test_app_store_inside_a_handler_reads_what_is_committed() -> None:
    """Of any key, and not what this record or one before it has put since the last commit: so a replay may differ."""
    app = application(commit_interval_ms=1_000)
    seen: list[tuple[int | None, int | None]] = []

    @app.handler(SOURCE)
    async def look(value: int, ctx: Context, total: State[int]) -> None:
        total.put(value)
        if ctx.key == b"l":
            seen.append((app.store("total").get("k"), app.store("total").get("l")))

    async with app.test(partitions=1) as broker:
        await broker.send(SOURCE, 1, key="k")
        await broker.records(SOURCE)
        await broker.send(SOURCE, 2, key="k")
        await broker.send(SOURCE, 3, key="l")
        await broker.records(SOURCE)
        assert (seen, app.store("total").get("k")) == ([(1, None)], 2)
        await broker.send(SOURCE, 4, key="l")
        await broker.records(SOURCE)
    assert seen[1:] == [(2, 3)]


class SlowCopies(MemoryCopies):
    """Copies that a test looks into between two writes."""

    def __init__(self, hears: Callable[[], None]) -> None:
        super().__init__()
        self.hears = hears

    def copy(self, topic: str, partition: int) -> MemoryCopy:
        """One that tells of its writes."""
        found = super().copy(topic, partition)
        write = type(found).write

        def told(changes: Any, marks: Any = ()) -> None:
            self.hears()
            write(found, changes, marks)

        found.write = told  # type: ignore[method-assign]  # the copy's own, heard
        return found


@virtual
async def test_store_before_and_during_a_restore() -> None:
    """Before the restore nothing is answered; while one range is restored, the others go on answering."""
    heard: list[str] = []
    app = application()
    counting(app)
    engine = Engine(app)
    member = await engine.start()
    keys = [b"k%d" % i for i in range(40)]
    for key in keys:
        engine.send(key, b"1")
    await engine.level()
    lower = KeyRange(0, SPACE_END // 2)
    low = next(key for key in keys if lower.contains(point_of_key(key)))
    high = next(key for key in keys if not lower.contains(point_of_key(key)))
    seen = engine.view("seen")
    await member.work.requests.release((SOURCE, 0), lower)
    with pytest.raises(StateNotReady, match="not restored yet, or not held here"):
        seen.get(low)
    with pytest.raises(StateNotReady, match="not restored yet, or not held here"):
        list(seen.scan())
    assert seen.get(high) == 1
    assert len(list(seen.scan(within=KeyRange(SPACE_END // 2, SPACE_END)))) > 0
    await member.work.requests.grant((SOURCE, 0), lower)
    assert (seen.get(low), seen.get(high)) == (1, 1)
    await engine.crash()

    def hears() -> None:
        try:
            heard.append(str(engine.view("seen").get(high)))
        except StateNotReady as error:
            heard.append(type(error).__name__)

    engine.copies = SlowCopies(hears)
    await engine.start()
    assert heard[0] == "StateNotReady"
    assert set(heard) <= {"StateNotReady", "1"}, "the other range may be restored behind it"
    assert engine.view("seen").get(high) == 1


@virtual
async def test_stale_copy_of_a_range_that_comes_back() -> None:
    """A range that is granted again is restored from the changelog above its marker, though it was here before: another
    one may have changed it. What was read ahead of it meanwhile is forgotten.
    """
    app = application()
    counting(app)
    engine = Engine(app)
    member = await engine.start()
    engine.send(b"k", b"1")
    await engine.level()
    point = point_of_key(b"k")
    within = KeyRange(point, point + 1)
    gate = engine.hold_back(is_strange=True)
    await member.work.requests.release((SOURCE, 0), within)
    copy = engine.copies.copy(SOURCE, 0)
    now = copy.markers().at(point)
    assert now is not None
    stale = [(at, encode_stored(b"40")) for at, _ in copy.page(b"", None, 9)]
    copy.write(stale, [(point, point + 1, now._replace(position=0))])
    engine.send(b"k", b"2")  # it waits, and its values are read ahead
    await asyncio.sleep(1)
    gate.set()
    await member.work.requests.grant((SOURCE, 0), within)
    await engine.level()
    assert engine.values()[b"k"] == [b"1", b"2"]
    await asyncio.sleep(2)  # state_write_interval_ms
    assert engine.copied() == engine.folded()


@virtual
async def test_grant_while_the_release_is_being_committed() -> None:
    """Until a release is committed the range's edges are not known: it is not granted on those of before, whoever asks
    for it meanwhile.
    """
    app = application()
    counting(app)
    engine = Engine(app)
    member = await engine.start()
    within = KeyRange(0, SPACE_END // 2)
    tasks: list[asyncio.Task[None]] = []

    def hears(step: str) -> None:
        if step == "transact":
            granting = member.work.requests.grant((SOURCE, 0), within)
            tasks.append(asyncio.get_running_loop().create_task(granting))

    engine.hears = hears
    for i in range(20):
        engine.send(b"k%d" % i, b"1")
    await member.work.requests.release((SOURCE, 0), within)
    engine.hears = ignore_step
    await asyncio.gather(*tasks)
    assert tasks
    await engine.level()
    assert sum(map(len, engine.values().values())) == 20
    await engine.crash()
    await engine.start()


# --- reading ahead ---------------------------------------------------------------------------------------------------


def settled(state: PartitionState, table: MemoryCopy, layer: Layer) -> None:
    """What a record wrote goes into a transaction, and into the table."""
    changes = dict(zip(layer.entries, layer.values, strict=True))
    state.overlay.commit(changes)
    table.write([(cell.key, value) for cell, value in changes.items()])
    state.overlay.settle([layer], changes)


def done(state: PartitionState, key: bytes, value: bytes | None) -> Layer:
    """A record is done that wrote this."""
    layer = Layer()
    layer.append(state.overlay.entry_of(key), value)
    state.overlay.add(layer)
    return layer


def seen(state: PartitionState, key: bytes) -> bytes | None:
    """The payload that a record sees."""
    scope = Scope(state, StoredRecord(0, EPOCH_MS, None, None, ()))
    return scope.read(scope.entry_of(key))


def test_older_read_never_hides_what_was_settled() -> None:
    """A read ahead that began before a transaction was written and ends after it brings nothing that is old."""
    table = MemoryCopy()
    key = state_key(5, 0, b"k")
    table.write([(key, encode_stored(b"old", None))])
    state = PartitionState("in[0]", table, entry_bytes_max=1_000, ahead_bytes_max=10_000)
    cells, values = [state.overlay.entry_of(key)], table.get_many([key])
    layer = done(state, key, encode_stored(b"new", None))
    assert seen(state, key) == b"new"
    settled(state, table, layer)
    state.overlay.learn(cells, values)
    assert seen(state, key) == b"new"


def test_read_ahead_stays_within_its_bytes() -> None:
    """What is read ahead is bounded; what came first goes first, and is read from the table then."""
    table = MemoryCopy()
    keys = [state_key(i, 0, b"k") for i in range(100)]
    table.write([(key, encode_stored(b"v" * 100, None)) for key in keys])
    state = PartitionState("in[0]", table, entry_bytes_max=1_000, ahead_bytes_max=5_000)
    for key in keys:
        state.overlay.learn([state.overlay.entry_of(key)], table.get_many([key]))
    kept = [key for key in keys if state.overlay.find(key) is not None]
    assert 0 < len(kept) < 20
    assert kept == keys[-len(kept) :]
    assert seen(state, keys[0]) == b"v" * 100


@virtual
async def test_stored_time_is_the_records_own() -> None:
    """The deadline that is stored comes from the record's timestamp and the store's time to live."""
    app = application()
    brief(app)
    engine = await started(app)
    engine.send(b"k", b"x", EPOCH_MS + 12_345)
    await engine.level()
    assert {decode_stored(data).deadline_ms for data in engine.folded()[0].values()} == {EPOCH_MS + 12_445}
