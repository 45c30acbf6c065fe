"""State where things happen at once: reads beside writes, restores beside work, whoever was asleep meanwhile."""

import asyncio
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from keylanes import App, DeadLetter, Retry, State
from keylanes.brokers.protocol import Outgoing
from keylanes.brokers.simulated.broker import EPOCH_MS
from keylanes.brokers.simulated.virtual_loop import run_virtual
from keylanes.errors import SourceError, StoreError
from keylanes.keyrange.hashing import SPACE_END, point_of_key
from keylanes.keyrange.ranges import WHOLE, KeyRange
from keylanes.offsets.codec import encode
from keylanes.offsets.control_events import ControlEvent, CoordinatorElected, MemberExpelled
from keylanes.runtime.handlers.partition_state import PartitionState, Scope
from keylanes.runtime.logs.own_ledger import Expelled
from keylanes.state.changelog import decode_stored
from keylanes.state.keys import state_key
from keylanes.state.memory import MemoryCopies, MemoryCopy
from keylanes.state.overlay import Layer, OverlayEntry
from keylanes.state.rocks import RocksError
from keylanes.state.tables import Change, Mark, Marker
from keylanes.state.topics import StoredRecord

from ...stage.engine import DEAD, OUT, SOURCE, Engine, application, started
from ...stage.virtual import virtual

PLACE = (SOURCE, 0)
DAY_MS = 86_400_000
LOWER, UPPER = WHOLE.split(SPACE_END // 2)
LOW, HIGH = (next(b"%d" % n for n in range(99) if half.contains(point_of_key(b"%d" % n))) for half in (LOWER, UPPER))
"""Two keys, one in each half of the points."""


def counting(**settings: Any) -> App:
    """An application that counts the records of each key; a record that fails is a dead letter."""
    app = application(commit_interval_ms=20, commit_lead_ms=5, **settings)

    @app.handler(
        SOURCE, to=OUT, parallelising_factor=2, retry=Retry(attempts=1, backoff_ms=1), on_failure=DeadLetter(DEAD)
    )
    async def count(value: bytes, seen: State[int]) -> int:
        n = (seen.get() or 0) + 1
        seen.put(n)
        return n

    return app


def counted(engine: Engine, key: bytes) -> list[int]:
    """What was sent for a key, in order."""
    return [int(value or b"0") for value in engine.values().get(key, [])]


# --- reading ---------------------------------------------------------------------------------------------------------


class DamagedCopy(MemoryCopy):
    """A copy on a disk that fails when it is asked to."""

    is_damaged = False

    def get(self, key: bytes) -> bytes | None:
        if self.is_damaged:
            raise RocksError("the folder is damaged")
        return super().get(key)


class DamagedCopies(MemoryCopies):
    """Copies of that kind."""

    def copy(self, topic: str, partition: int) -> DamagedCopy:
        found = self._copies.setdefault((topic, partition), DamagedCopy())
        assert isinstance(found, DamagedCopy)
        return found


@virtual
async def test_a_copy_that_cannot_be_read_stops_the_application_and_is_no_fault_of_the_record() -> None:
    """An error of the disk under a handler's read ends the run; the record is no dead letter."""
    engine = Engine(counting(state_ahead_bytes_max=1))
    engine.copies = DamagedCopies()
    await engine.start()
    engine.send(LOW, b"")
    await engine.level()
    engine.copies.copy(*PLACE).is_damaged = True
    engine.send(LOW, b"")
    await engine.fails(StoreError, "damaged")
    assert engine.values(DEAD) == {}


def test_what_is_read_ahead_stays_within_its_bound_when_values_grow() -> None:
    """Values that were read ahead small and are large by now push others out."""
    state = PartitionState("in[0]", MemoryCopy(), entry_bytes_max=1_000_000, ahead_bytes_max=100_000)
    keys = [state_key(n, 1, b"k") for n in range(300)]
    overlay = state.overlay
    overlay.learn([overlay.entry_of(key) for key in keys], [None] * len(keys))
    for key in keys:
        layer = Layer()
        layer.append(overlay.entry_of(key), bytes(10_000))
        overlay.add(layer)
        overlay.commit({layer.entries[0]: bytes(10_000)})
        state.table.write([(key, bytes(10_000))])  # type: ignore[attr-defined]  # it is a copy
        overlay.settle([layer], {layer.entries[0]: bytes(10_000)})
        assert sum(overlay.get(key) == bytes(10_000) for key in keys) < 10
    scope = Scope(state, StoredRecord(0, EPOCH_MS, None, None, ()))
    assert all(scope.read(scope.entry_of(key)) == bytes(9_999) for key in keys)


@virtual
async def test_a_value_that_was_read_ahead_while_its_range_was_restored_is_not_used() -> None:
    """A restore goes through what the changelog says in turn; what is read in its midst is nobody's state."""
    engine = await started(counting())
    for _ in range(3):
        engine.send(LOW, b"")
    await engine.level()
    await engine.stop()
    await engine.start()  # so that nothing is in memory
    back = engine.hold_back(is_strange=True)
    await engine.member.work.requests.release(PLACE, LOWER)
    engine.send(HIGH, b"")
    await engine.level()
    old = Marker(0, EPOCH_MS - 30 * DAY_MS)  # as after a long time: the copy of the range is thrown away
    copy = engine.copies.copy(*PLACE)
    copy.write((), [(LOWER.first, LOWER.end, old)])
    clear = copy.clear

    reading: list[asyncio.Task[Sequence[OverlayEntry | None]]] = []

    def clear_and_read(within: KeyRange) -> None:
        clear(within)
        (run,) = engine.member.runs
        ahead = engine.member.keeper.read_ahead(run.state, run.bindings, [StoredRecord(0, EPOCH_MS, LOW, b"", ())])
        reading.append(asyncio.get_running_loop().create_task(ahead))

    copy.clear = clear_and_read  # type: ignore[method-assign]  # the reader meets a record of the range just then
    back.set()
    await engine.member.work.requests.grant(PLACE, LOWER)
    assert reading, "the copy was thrown away"
    engine.send(LOW, b"")
    await engine.level()
    assert counted(engine, LOW) == [1, 2, 3, 4]


# --- restoring beside work -------------------------------------------------------------------------------------------


class HeldCopy(MemoryCopy):
    """A copy on a disk that holds back the first write of a restore until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_armed = False
        self.reached, self.let_go = threading.Event(), threading.Event()

    def write(self, changes: Iterable[Change], marks: Iterable[Mark] = ()) -> None:
        changes, marks = list(changes), list(marks)
        if self.is_armed and changes and threading.current_thread() is not threading.main_thread():
            self.is_armed = False
            self.reached.set()
            self.let_go.wait(30)
        super().write(changes, marks)


class HeldCopies(MemoryCopies):
    """Copies of that kind."""

    def copy(self, topic: str, partition: int) -> HeldCopy:
        found = self._copies.setdefault((topic, partition), HeldCopy())
        assert isinstance(found, HeldCopy)
        return found


def test_a_restore_that_nobody_waits_for_any_more_writes_nothing_behind_a_later_grant() -> None:
    """Whoever asks for a range, gives up waiting and asks again finds its state as it was committed since."""

    async def main() -> None:
        engine = Engine(counting())
        engine.copies = copies = HeldCopies()
        copy = copies.copy(*PLACE)
        await engine.start()
        try:
            for _ in range(2):
                engine.send(LOW, b"")
            await engine.level()
            back = engine.hold_back()
            await engine.member.work.requests.release(PLACE, WHOLE)
            copy.write((), [(0, SPACE_END, Marker(0, EPOCH_MS))])  # it is a lower bound: all is read again
            copy.is_armed = True
            back.set()
            first = asyncio.ensure_future(engine.member.work.requests.grant(PLACE, WHOLE))
            await asyncio.to_thread(copy.reached.wait, 30)
            first.cancel()
            await asyncio.wait([first])
            second = asyncio.ensure_future(engine.member.work.requests.grant(PLACE, WHOLE))
            engine.send(LOW, b"")
            await asyncio.wait([second], timeout=0.5)
            if second.done():  # the record is worked, and its state written
                await engine.level()
            copy.let_go.set()
            await second
            await engine.level()
            await engine.stop()
        finally:
            copy.let_go.set()
        assert {key: decode_stored(value).payload for key, value in engine.copied()[0].items()} == {
            key: decode_stored(value).payload for key, value in engine.folded()[0].items()
        }
        assert counted(engine, LOW) == [1, 2, 3]

    asyncio.run(main())


def test_whoever_waits_for_a_grant_is_told_when_the_run_ends() -> None:
    """A run that stops, or fails, while a range is taken up leaves nobody waiting for it."""

    async def main(*, fails: bool) -> None:
        engine = Engine(counting())
        await engine.start()
        engine.send(LOW, b"")
        await engine.level()
        engine.hold_back()
        await engine.member.work.requests.release(PLACE, LOWER)
        granting = asyncio.ensure_future(engine.member.work.requests.grant(PLACE, LOWER))
        await asyncio.sleep(0)
        if fails:
            engine.member.fail(SourceError("damaged"))
            with pytest.raises(SourceError):
                await engine.task
        else:
            await engine.stop()
        async with asyncio.timeout(60):
            await asyncio.wait([granting])
        assert granting.cancelled()

    for seed in range(10):
        run_virtual(main(fails=False), seed=seed)
        run_virtual(main(fails=True), seed=seed)


# --- whoever was asleep ----------------------------------------------------------------------------------------------


@virtual
async def test_a_process_that_slept_while_another_took_over_does_not_make_its_copy_look_young() -> None:
    """Its markers keep the time until which it was in office: deletes of after that may be gone at its next start."""
    engine = await started(counting())
    engine.send(LOW, b"")
    await engine.level()
    asleep_ms = EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)
    own_ledger = engine.member.own_ledger
    term, app_birth = own_ledger.ledger.control.term + 1, own_ledger.ledger.control.app_birth
    others: list[ControlEvent] = [
        CoordinatorElected(term, "", "another", app_birth),
        MemberExpelled(term, 1, own_ledger.incarnation, "silent", 0),
    ]
    engine.cluster.write([Outgoing("app.control", 0, None, encode(event)) for event in others], ())
    engine.clock_ms = 30 * DAY_MS
    await engine.fails(Expelled, "was expelled")
    assert [m.time_ms <= asleep_ms for _, _, m in engine.copies.copy(*PLACE).markers().pieces()] == [True]
