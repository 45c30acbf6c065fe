"""State as handlers see it: values and maps of a record's key, alike on the simulated and the embedded broker."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import pytest

from keylanes import (
    App,
    ContextClosed,
    DeadLetter,
    MapState,
    Retry,
    State,
    Store,
)
from keylanes.brokers.protocol import Outgoing
from keylanes.brokers.simulated.virtual_loop import run_virtual
from keylanes.offsets.provenance import ERROR_HEADER
from keylanes.runtime.handlers.context import Context
from keylanes.state.changelog import is_beacon_key

from ...stage.appending import append
from ...stage.engine import DEAD, OUT, SOURCE, Engine, application, started
from ...stage.ground import Ground
from ...stage.virtual import virtual
from ...tiers.marks import tier

pytestmark = tier("check")

Source: TypeAlias = tuple[bytes | None, Any] | tuple[bytes | None, Any, int]
"""(key, value as JSON), and the timestamp if it matters."""
Declare: TypeAlias = Callable[[App], None]
ONCE: dict[str, Any] = {
    "to": OUT,
    "retry": Retry(attempts=1),
    "on_failure": DeadLetter(DEAD),
    "parallelising_factor": 8,
}


class Played(NamedTuple):
    """What came out: values by key, and causes of dead letters by key."""

    out: dict[bytes | None, list[Any]]
    dead: dict[bytes | None, list[str]]


Play: TypeAlias = Callable[[Declare, Sequence[Source]], Played]


@pytest.fixture(params=["simulated", "embedded"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    """Work through records with handlers, to the end; called again, it goes on where it stood."""
    if request.param == "simulated":
        engine: list[Engine] = []

        async def simulated(declare: Declare, records: Sequence[Source]) -> Played:
            app = application()
            declare(app)
            if not engine:
                engine.append(Engine(app))
            await engine[0].start(app)
            for key, value, *at in records:
                engine[0].send(key, encoded(value), at[0] if at else None)
            await engine[0].level()
            await engine[0].crash()
            await asyncio.sleep(1)  # the cluster is left to another loop: what it has decided is written by then
            return played(engine[0].cluster.committed_records(OUT), engine[0].cluster.committed_records(DEAD))

        return lambda declare, records: run_virtual(simulated(declare, records))
    return lambda declare, records: embedded(Ground(f"embedded:{tmp_path / 'data'}"), declare, records)


def embedded(ground: Ground, declare: Declare, records: Sequence[Source]) -> Played:
    """The same on an embedded broker."""
    for topic in (SOURCE, OUT, DEAD):
        ground.create(topic)

    async def fill(broker: Any) -> None:
        await append(broker, [Outgoing(SOURCE, 0, k, encoded(v), (), at[0] if at else None) for k, v, *at in records])

    ground._with(fill)
    ground.name = "app"
    app = ground.app(compression_type=None)
    declare(app)
    app.run(until="level")
    return played(ground.read(OUT), ground.read(DEAD))


def encoded(value: Any) -> bytes:
    """A value as handlers take it: text as it is, all else as JSON."""
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def played(out: Sequence[Any], dead: Sequence[Any]) -> Played:
    """Values and causes by key, in order."""
    found = Played({}, {})
    for record in out:
        found.out.setdefault(record.key, []).append(msgspec.json.decode(record.value or b""))
    for record in dead:
        found.dead.setdefault(record.key, []).append(dict(record.headers)[ERROR_HEADER].decode())
    return found


# --- values and maps -------------------------------------------------------------------------------------------------


def test_values_by_key_across_a_restart(play: Play) -> None:
    """Each key has its own value, which is there again after a crash; what is deleted is not."""

    def declare(app: App) -> None:
        @app.handler(SOURCE, **ONCE)
        async def count(what: str, ctx: Context, seen: State[int], names: State[list[str]]) -> dict[str, Any]:
            if what == "forget":
                seen.delete()
            else:
                seen.put((seen.get() or 0) + 1)
                names.put([*(names.get() or []), what])
            return {"seen": seen.get(), "names": names.get()}

    assert play(declare, [(b"a", "x"), (b"b", "y"), (b"a", "z")]).out == {
        b"a": [{"seen": 1, "names": ["x"]}, {"seen": 2, "names": ["x", "z"]}],
        b"b": [{"seen": 1, "names": ["y"]}],
    }
    again = play(declare, [(b"a", "forget"), (b"a", "w"), (b"b", "w")]).out
    assert again[b"a"][2:] == [{"seen": None, "names": ["x", "z"]}, {"seen": 1, "names": ["x", "z", "w"]}]
    assert again[b"b"][1:] == [{"seen": 2, "names": ["y", "w"]}]


def test_maps_in_order_of_their_keys(play: Play) -> None:
    """str, bytes and int keys come in their order, negative numbers first; own writes are among them, and a listing
    that has begun is not disturbed by what is written meanwhile.
    """

    def declare(app: App) -> None:
        @app.handler(SOURCE, **ONCE)
        async def work(
            value: int, texts: MapState[str, int], data: MapState[bytes, int], numbers: MapState[int, str]
        ) -> dict[str, Any]:
            if value == 0:
                for text in ("b", "aa", "ä", "a"):
                    texts.put(text, len(text))
                data.put(b"\xff\xff", 1)
                data.put(b"\x00", 2)
                for number in (5, -1, 1 << 62, -(1 << 63), 0):
                    numbers.put(number, str(number))
            else:
                texts.put("aaa", 3)
                texts.delete("b")
                numbers.delete(0)
                data.put(b"\xff", 3)
            listed = []
            for number in numbers:
                numbers.delete(number)
                numbers.put(number + 10 if number < 100 else number, "later")
                listed.append(number)
            for number in listed:
                numbers.delete(number + 10 if number < 100 else number)
            for number in listed:
                numbers.put(number, str(number))
            assert list(numbers.keys()) == listed
            assert list(numbers.values()) == [str(n) for n in listed]
            assert "aa" in texts
            assert "zz" not in texts
            return {"texts": list(texts.items()), "data": [[k.hex(), v] for k, v in data.items()], "numbers": listed}

    out = play(declare, [(b"k", 0), (b"other", 0)]).out
    texts = [["a", 1], ["aa", 2], ["b", 1], ["ä", 1]]
    numbers = [-(1 << 63), -1, 0, 5, 1 << 62]
    assert out[b"k"] == out[b"other"] == [{"texts": texts, "data": [["00", 2], ["ffff", 1]], "numbers": numbers}]
    again = play(declare, [(b"k", 1)]).out[b"k"][1]
    assert again == {
        "texts": [["a", 1], ["aa", 2], ["aaa", 3], ["ä", 1]],
        "data": [["00", 2], ["ff", 3], ["ffff", 1]],
        "numbers": [-(1 << 63), -1, 5, 1 << 62],
    }


def test_map_of_many_pages(play: Play) -> None:
    """A map of more entries than a page is listed whole, with what is deleted and added on its pages' edges."""

    def declare(app: App) -> None:
        @app.handler(SOURCE, **ONCE)
        def work(value: int, entries: MapState[int, int]) -> dict[str, list[int]]:
            if value == 0:
                for number in range(0, 2_000, 2):
                    entries.put(number, number)
            else:
                for number in (0, 510, 512, 1_022, 1_998):
                    entries.delete(number)
                for number in (-1, 511, 513, 1_023, 2_001):
                    entries.put(number, number)
            return {"keys": list(entries)}

    assert play(declare, [(b"k", 0), (b"l", 0)]).out[b"k"] == [{"keys": list(range(0, 2_000, 2))}]
    right = sorted({*range(0, 2_000, 2)} - {0, 510, 512, 1_022, 1_998} | {-1, 511, 513, 1_023, 2_001})
    again = play(declare, [(b"k", 1), (b"k", 2), (b"l", 1)]).out
    assert again[b"k"][1:] == [{"keys": right}, {"keys": right}]
    assert again[b"l"][1] == {"keys": right}


def test_keys_and_maps_of_alike_names_stay_apart(play: Play) -> None:
    """Keys that begin alike, or hash alike in length, never see each other's maps."""
    keys = [b"", b"\x00", b"\x00\x00", b"a", b"aa", b"a" * 300, b"\xff" * 12]

    def declare(app: App) -> None:
        @app.handler(SOURCE, **ONCE)
        async def work(value: int, own: MapState[bytes, int], total: State[int]) -> list[Any]:
            own.put(b"\x00", value)
            own.put(b"a", value)
            total.put((total.get() or 0) + value)
            return [{"own": [v for _, v in own.items()], "total": total.get()}]

    out = play(declare, [(key, i) for i, key in enumerate(keys)]).out
    assert out == {key: [{"own": [i, i], "total": i}] for i, key in enumerate(keys)}


@virtual
async def test_two_topics_with_the_same_key() -> None:
    """State belongs to a source topic: the same key of another one has another."""
    app = application()

    @app.handler(SOURCE, to=OUT)
    async def one(value: int, first: State[int]) -> int:
        first.put((first.get() or 0) + 1)
        return first.get() or 0

    @app.handler("in2", to=OUT)
    def two(value: int, second: State[int]) -> int:
        second.put((second.get() or 100) + 1)
        return second.get() or 0

    engine = await started(app, sources=(SOURCE, "in2"))
    for _ in range(2):
        engine.send(b"k", b"1")
        engine.send(b"k", b"1", topic="in2")
    await engine.level()
    assert sorted(engine.values()[b"k"], key=str) == [b"1", b"101", b"102", b"2"]
    assert engine.view("first").get(b"k") == 2
    assert engine.view("second").get("k") == 102


# --- failures --------------------------------------------------------------------------------------------------------


def test_failed_attempt_leaves_nothing(play: Play) -> None:
    """Neither an attempt that raised nor a record that is given up changes the state; the next attempt begins anew."""

    def declare(app: App) -> None:
        @app.handler(SOURCE, **{**ONCE, "retry": Retry(attempts=2, backoff_ms=1)})
        async def work(value: int, ctx: Context, seen: State[int], by: MapState[int, int]) -> dict[str, Any]:
            seen.put((seen.get() or 0) + 1)
            by.put(value, ctx.attempt)
            for number in list(by):
                if value == 9:
                    by.delete(number)
            if value == 9 or (value % 2 and ctx.attempt == 1):
                raise ValueError("as asked")
            return {"seen": seen.get(), "by": list(by.items())}

    found = play(declare, [(b"k", 1), (b"k", 9), (b"k", 2)])
    assert found.out == {b"k": [{"seen": 1, "by": [[1, 2]]}, {"seen": 2, "by": [[1, 2], [2, 1]]}]}
    assert found.dead == {b"k": ["ValueError: as asked"]}


@virtual
async def test_what_is_written_after_the_attempt_is_refused() -> None:
    """State that an attempt left to a task that outlives it, because it timed out, can't be used any more."""
    errors: list[Exception] = []
    app = application(handler_timeout_ms=200)

    async def later(seen: State[int], by: MapState[str, int]) -> None:
        await asyncio.sleep(0.5)
        for use in (seen.get, seen.delete, lambda: seen.put(5), lambda: by.put("a", 1), lambda: list(by)):
            try:
                use()
            except ContextClosed as error:
                errors.append(error)

    tasks: list[asyncio.Task[None]] = []

    @app.handler(SOURCE, to=OUT, retry=Retry(attempts=2, backoff_ms=1), on_failure=DeadLetter(DEAD))
    async def work(value: int, ctx: Context, seen: State[int], by: MapState[str, int]) -> int:
        if ctx.attempt == 1:
            seen.put(77)
            by.put("x", 77)
            tasks.append(asyncio.get_running_loop().create_task(later(seen, by)))
            await asyncio.sleep(60)
        return seen.get() or len(list(by))

    engine = await started(app)
    engine.send(b"k", b"1")
    await engine.level()
    await asyncio.sleep(1)
    await tasks[0]
    assert engine.values() == {b"k": [b"0"]}
    assert engine.folded() == {}
    await engine.stop()
    assert len(errors) == 5
    assert "has ended" in str(errors[0])


def test_record_without_a_key_has_no_state(play: Play) -> None:
    """Any use raises, and no other attempt is made; a handler that does not use it is not disturbed."""
    attempts: list[int] = []

    def declare(app: App) -> None:
        @app.handler(SOURCE, **{**ONCE, "retry": Retry(attempts=5)})
        async def work(what: str, ctx: Context, seen: State[int], by: MapState[str, int]) -> dict[str, str]:
            attempts.append(ctx.attempt)
            uses: dict[str, Callable[[], Any]] = {
                "get": seen.get,
                "put": lambda: seen.put(1),
                "delete": seen.delete,
                "map": lambda: list(by),
                "in": lambda: "a" in by,
                "entry": lambda: by.put("a", 1),
            }
            if what in uses:
                uses[what]()
            return {"what": what}

    whats = ["get", "put", "delete", "map", "in", "entry", "nothing"]
    found = play(declare, [(None, what) for what in whats])
    assert len(found.dead[None]) == 6
    assert all(cause.startswith("NoKey: the record has no key") for cause in found.dead[None])
    assert attempts == [1] * 7
    assert len(found.out[None]) == 1


def test_impossible_values_fail_their_record_only(play: Play) -> None:
    """None, a value that is too large, one that can't be encoded, and keys of a wrong kind: a dead letter, and whatever
    else the record changed is as it was.
    """

    def declare(app: App) -> None:
        @app.handler(SOURCE, **ONCE)
        def work(what: str, seen: State[Any], by: MapState[int, str]) -> dict[str, Any]:
            seen.put((seen.get() or 0) + 1)
            by.put(1, "one")
            impossible: dict[str, Callable[[], Any]] = {
                "none": lambda: seen.put(None),
                "map none": lambda: by.put(2, None),  # type: ignore[arg-type]  # what is tested
                "large": lambda: seen.put("x" * 2_000_000),
                "object": lambda: seen.put(object()),
                "text key": lambda: by.put("a", "b"),  # type: ignore[arg-type]  # what is tested
                "wide key": lambda: by.get(1 << 64),
            }
            if what in impossible:
                impossible[what]()
            return {"seen": seen.get(), "by": list(by)}

    whats = ["ok", "none", "map none", "large", "object", "text key", "wide key", "ok"]
    found = play(declare, [(b"k", what) for what in whats])
    assert found.out == {b"k": [{"seen": 1, "by": [1]}, {"seen": 2, "by": [1]}]}
    causes = [cause.partition(":") for cause in found.dead[b"k"]]
    assert [name for name, _, _ in causes] == [
        "TypeError",
        "TypeError",
        "StateValueTooLarge",
        "TypeError",
        "TypeError",
        "ValueError",
    ]
    assert "None is no value of store 'seen'" in causes[0][2]
    assert "a value for the state has 2000014 bytes with its key" in causes[2][2]
    assert "the map's keys are int; seen str" in causes[4][2]


def test_sync_handlers_have_state_on_threads(tmp_path: Path) -> None:
    """Handlers on real threads count each key alone, and change the same state as those on the loop."""

    def declare(app: App) -> None:
        @app.handler(SOURCE, **{**ONCE, "parallelising_factor": 64})
        def count(value: int, seen: State[int], by: MapState[str, int]) -> int:
            seen.put((seen.get() or 0) + 1)
            name = str(value % 3)
            by.put(name, (by.get(name) or 0) + 1)
            assert sum(v for _, v in by.items()) == seen.get()
            return seen.get() or 0

    keys = [b"k%d" % i for i in range(20)]
    found = embedded(Ground(f"embedded:{tmp_path / 'data'}"), declare, [(key, i) for i in range(30) for key in keys])
    assert found.dead == {}
    assert found.out == {key: list(range(1, 31)) for key in keys}


# --- time to live ----------------------------------------------------------------------------------------------------


def brief(app: App) -> None:
    """Values and entries for 100 ms, counted in the records' own time; what is seen goes out."""

    @app.handler(SOURCE, **ONCE)
    async def work(
        what: str,
        kept: Annotated[State[str], Store(ttl_ms=100)],
        log: Annotated[MapState[str, str], Store(name="log-of", ttl_ms=100)],
    ) -> dict[str, Any]:
        seen = {"kept": kept.get(), "log": list(log), "x": log.get("x"), "in": "x" in log}
        if what != "look":
            kept.put(what)
            log.put(what, what)
        return seen


def test_time_to_live_in_record_time(play: Play) -> None:
    """A value is seen below its deadline and gone at it, by the timestamps of records, whatever the clock says; once
    met over its time it is deleted, also for a record that is older. A restart changes nothing about it.
    """
    nothing: dict[str, Any] = {"kept": None, "log": [], "x": None, "in": False}
    there = {"kept": "x", "log": ["x"], "x": "x", "in": True}
    found = play(
        brief,
        [
            (b"k", "x", 1_000),
            (b"k", "look", 1_099),
            (b"k", "look", 10),
            (b"k", "look", 1_100),
            (b"k", "look", 1_050),
            (b"m", "x", 1_000),
            (b"n", "x", 1_000),
            (b"n", "y", 1_050),
        ],
    )
    assert found.out[b"k"] == [nothing, there, there, nothing, nothing]
    again = play(brief, [(b"m", "look", 1_099), (b"m", "look", 5_000), (b"n", "look", 1_120)]).out
    assert again[b"m"][1:] == [there, nothing]
    assert again[b"n"][2] == {"kept": "y", "log": ["y"], "x": None, "in": False}


@virtual
async def test_what_is_over_its_time_is_deleted_by_its_owner() -> None:
    """The record that meets it writes an ordinary delete, in its own transaction; nobody else does, however late."""
    app = application()
    brief(app)
    engine = await started(app)
    engine.send(b"k", b"x", 1_000)
    engine.send(b"other", b"x", 1_000)
    await engine.level()
    assert len(engine.folded()[0]) == 4
    await asyncio.sleep(60)
    engine.send(b"other", b"look", 1_010)
    await engine.level()
    assert len(engine.folded()[0]) == 4
    engine.send(b"k", b"look", 1_100)
    await engine.level()
    assert len(engine.folded()[0]) == 2
    assert [r.value for r in engine.cluster.committed_records(engine.changelog()) if not is_beacon_key(r.key or b"")][
        -2:
    ] == [None] * 2
    assert engine.copied() == engine.folded()
    (entry,) = engine.view("kept").scan()
    assert (entry.key, entry.value, entry.deadline_ms) == (b"other", "x", 1_100)


def test_what_is_put_while_listing_stays(play: Play) -> None:
    """An entry that is put anew while a listing goes on is not deleted when the listing meets its old value, whose time
    is over.
    """

    def declare(app: App) -> None:
        @app.handler(SOURCE, **ONCE)
        async def work(value: str, log: Annotated[MapState[str, str], Store(ttl_ms=100)]) -> dict[str, Any]:
            if value != "renew":
                log.put(value, "old")
                return {}
            seen = []
            for key in log:
                seen.append(key)
                log.put("x", "new")
            return {"seen": seen, "then": list(log.items())}

    play(declare, [(b"k", "x", 1_000), (b"k", "a", 1_080)])
    assert play(declare, [(b"k", "renew", 1_120)]).out[b"k"][-1] == {
        "seen": ["a"],
        "then": [["a", "old"], ["x", "new"]],
    }
