"""State against a plain dictionary as its twin: random programs of changes, of ranges that are split, merged, released
and granted, of crashes, of copies that are lost or old, of changelogs that are compacted.
"""

import asyncio
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylanes import App, DeadLetter, MapState, Retry, State, Store
from keylanes.brokers.protocol import TopicPartition
from keylanes.brokers.simulated.broker import EPOCH_MS
from keylanes.brokers.simulated.virtual_loop import run_virtual
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import KeyRange
from keylanes.runtime.handlers.context import Context
from keylanes.state.changelog import decode_stored
from keylanes.state.keys import decode_map_key, parse_key
from keylanes.state.memory import MemoryCopies

from ...stage.engine import DEAD, OUT, SOURCE, Engine, application, duplicate
from ...tiers.marks import tier

pytestmark = tier("check")

PARTITIONS = 2
KEYS = 5
TTL_MS = 2_000
DAY_S = 86_400.0
GRID = 8
"""Splits, merges, releases and grants are asked for at eighths of the points."""

Action: TypeAlias = tuple[Any, ...]
Seen: TypeAlias = list[Any]


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Programs crash and go on for pages of warnings."""
    logger = logging.getLogger("keylanes")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def stateful() -> App:
    """An application whose records say what is done with the state; what is read goes out."""
    app = application("programs", commit_interval_ms=20, commit_lead_ms=5, merge_hold_ms=50, snapshot_every_commits=7)

    @app.handler(
        SOURCE, to=OUT, parallelising_factor=4, retry=Retry(attempts=2, backoff_ms=5), on_failure=DeadLetter(DEAD)
    )
    async def work(
        actions: tuple[list[Any], ...],
        ctx: Context,
        plain: State[int],
        brief: Annotated[State[int], Store(ttl_ms=TTL_MS)],
        table: MapState[int, str],
        fading: Annotated[MapState[str, int], Store(ttl_ms=TTL_MS)],
    ) -> dict[str, Seen]:
        stores = {"plain": plain, "brief": brief, "table": table, "fading": fading}
        seen: Seen = []
        for what, *arguments in actions:
            if what == "fail":
                if ctx.attempt == 1:
                    raise ValueError("as the record says")
            elif what == "wait":
                await asyncio.sleep(arguments[0] / 1000)
            else:
                perform(stores[what], arguments, seen)
        return {"seen": seen}

    return app


def perform(store: Any, arguments: list[Any], seen: Seen) -> None:
    """One action on a store, or on its twin."""
    what, *rest = arguments
    if what == "all":
        seen.append([list(pair) for pair in store.items()])
    elif what == "get":
        seen.append(store.get(*rest))
    else:
        getattr(store, what)(*rest)


# --- the twin --------------------------------------------------------------------------------------------------------


class TwinValue(NamedTuple):
    """A value, and from which timestamp on no record sees it."""

    value: Any
    deadline_ms: int | None


class TwinStore:
    """A store of one key as a dictionary by map key; a value store has the map key None only."""

    def __init__(self, ttl_ms: int | None = None) -> None:
        self.ttl_ms = ttl_ms
        self.entries: dict[Any, TwinValue] = {}
        self.now_ms = 0

    def get(self, key: Any = None) -> Any:
        found = self.entries.get(key)
        if found is not None and found.deadline_ms is not None and self.now_ms >= found.deadline_ms:
            del self.entries[key]
            return None
        return None if found is None else found.value

    def put(self, *key_and_value: Any) -> None:
        *key, value = key_and_value
        deadline = None if self.ttl_ms is None else self.now_ms + self.ttl_ms
        self.entries[key[0] if key else None] = TwinValue(value, deadline)

    def delete(self, key: Any = None) -> None:
        self.entries.pop(key, None)

    def items(self) -> list[tuple[Any, Any]]:
        return [(key, value) for key in sorted(self.entries) if (value := self.get(key)) is not None]


def twin_stores() -> dict[str, TwinStore]:
    """The twins of the application's stores, for one key."""
    return {
        "plain": TwinStore(),
        "brief": TwinStore(TTL_MS),
        "table": TwinStore(),
        "fading": TwinStore(TTL_MS),
    }


@dataclass
class Twin:
    """What the committed source records lead to, in order of offsets."""

    stores: dict[tuple[int, bytes], dict[str, TwinStore]] = field(default_factory=dict)
    outputs: dict[bytes, list[Seen]] = field(default_factory=dict)

    def apply(self, partition: int, key: bytes, at_ms: int, actions: list[list[Any]]) -> None:
        stores = self.stores.setdefault((partition, key), twin_stores())
        seen: Seen = []
        for store in stores.values():
            store.now_ms = at_ms
        for what, *arguments in actions:
            if what in stores:
                perform(stores[what], arguments, seen)
        self.outputs.setdefault(key, []).append(seen)

    def state(self) -> dict[tuple[int, str, bytes, Any], TwinValue]:
        """All entries by (partition, store, key, map key)."""
        return {
            (partition, name, key, map_key): value
            for (partition, key), stores in self.stores.items()
            for name, store in stores.items()
            for map_key, value in store.entries.items()
        }


# --- programs --------------------------------------------------------------------------------------------------------

numbers = st.integers(0, 3)
names = st.sampled_from(["a", "b", "c"])
actions: st.SearchStrategy[Action] = st.one_of(
    st.tuples(st.sampled_from(["plain", "brief"]), st.just("put"), numbers),
    st.tuples(st.sampled_from(["plain", "brief"]), st.sampled_from(["get", "delete"])),
    st.tuples(st.just("table"), st.just("put"), numbers, names),
    st.tuples(st.just("table"), st.sampled_from(["get", "delete"]), numbers),
    st.tuples(st.just("fading"), st.just("put"), names, numbers),
    st.tuples(st.just("fading"), st.sampled_from(["get", "delete"]), names),
    st.tuples(st.sampled_from(["table", "fading"]), st.just("all")),
    st.tuples(st.just("fail")),
    st.tuples(st.just("wait"), st.sampled_from([0, 3, 30])),
)
records = st.tuples(
    st.just("send"),
    st.integers(0, PARTITIONS - 1),
    st.integers(0, KEYS - 1),
    st.integers(0, 3 * TTL_MS),
    st.lists(actions, max_size=6),
)
bursts = st.lists(records, min_size=1, max_size=6).map(lambda burst: ("burst", burst))
partitions = st.integers(0, PARTITIONS - 1)
ranges = st.tuples(st.integers(0, GRID - 1), st.integers(1, GRID)).filter(lambda pair: pair[0] < pair[1])
steps: st.SearchStrategy[Action] = st.one_of(
    bursts,
    bursts,
    bursts,
    st.tuples(st.just("split"), partitions, st.integers(1, GRID - 1)),
    st.tuples(st.sampled_from(["merge", "release", "release", "grant", "grant"]), partitions, ranges),
    st.tuples(st.just("wait"), st.sampled_from([1, 7, 30, 200])),
    st.tuples(st.sampled_from(["crash", "crash", "stop"]), st.sampled_from(["same", "same", "lost", "saved", "aged"])),
    st.tuples(st.just("save")),
    st.tuples(st.just("compact"), partitions, st.booleans()),
    st.tuples(st.just("offsets unknown"), st.booleans()),
)


class Run:
    """A program on the engine."""

    def __init__(self, seed: int) -> None:
        self.engine = Engine(stateful(), seed=seed, partitions=PARTITIONS)
        self.changing: list[asyncio.Task[None]] = []
        self.saved = MemoryCopies()

    async def step(self, what: str, *arguments: Any) -> None:
        """One step of a program."""
        engine = self.engine
        if what == "burst":
            for _, partition, key, ms, actions in arguments[0]:
                payload = msgspec.json.encode(actions)
                engine.send(b"k%d" % key, payload, EPOCH_MS + ms, partition=partition)
        elif what == "wait":
            await asyncio.sleep(arguments[0] / 1000)
        elif what == "save":
            self.saved = duplicate(self.copies, {SOURCE: PARTITIONS})
        elif what == "compact":
            engine.cluster.compact(TopicPartition(engine.changelog(), arguments[0]), partly=arguments[1])
        elif what == "offsets unknown":
            engine.cluster.faults.offsets_unknown = 0.7 * arguments[0]
        elif what in ("crash", "stop"):
            if what == "crash":
                await self.forsake()
            await (engine.crash() if what == "crash" else engine.stop())
            await self.forsake()
            await self.begin_again(arguments[0])
        else:
            self.changing.append(asyncio.get_running_loop().create_task(self.change(what, *arguments)))

    @property
    def copies(self) -> MemoryCopies:
        """Those in use."""
        assert isinstance(self.engine.copies, MemoryCopies)
        return self.engine.copies

    async def forsake(self) -> None:
        """Whoever asked for a change was part of the process."""
        for change in self.changing:
            change.cancel()
        if self.changing:
            await asyncio.wait(self.changing)
        self.changing.clear()

    async def begin_again(self, copies: str) -> None:
        """Start with the copies as they are, without them, or with those that were saved, maybe long ago."""
        if copies == "lost":
            self.engine.copies = MemoryCopies()
        elif copies != "same":
            self.engine.copies, self.saved = self.saved, self.copies
        if copies == "aged":
            await asyncio.sleep(8 * DAY_S)  # longer than tombstones stay
            for partition in range(PARTITIONS):
                changelog = TopicPartition(self.engine.changelog(), partition)
                self.engine.cluster.compact(changelog, keep_tombstones=False)
        await self.engine.start()

    async def change(self, what: str, partition: int, where: Any) -> None:
        """Split, merge, release or grant, if that is possible now."""
        member, place = self.engine.member, (SOURCE, partition)
        try:
            if what == "split":
                await member.work.requests.split(place, where * SPACE_END // GRID)
                return
            within = KeyRange(where[0] * SPACE_END // GRID, where[1] * SPACE_END // GRID)
            if what == "grant":
                for gap in self.gaps(partition):
                    if gap.overlaps(within):
                        await member.work.requests.grant(place, gap)
            else:
                await getattr(member.work.requests, what)(place, within)
        except ValueError:
            pass

    def gaps(self, partition: int) -> list[KeyRange]:
        """What was released of a partition."""
        runs = [run for run in self.engine.member.runs if run.dispatch.partition == partition]
        held = sorted((w.first, w.end) for run in runs for w in run.dispatch.workers)
        bounds = [(0, 0), *held, (SPACE_END, SPACE_END)]
        return [KeyRange(end, first) for (_, end), (first, _) in pairwise(bounds) if end < first]

    async def end(self) -> None:
        """Give everything back that was released, and wait until all is processed."""
        for change in self.changing:
            await change
        for partition in range(PARTITIONS):
            for gap in self.gaps(partition):
                await self.engine.member.work.requests.grant((SOURCE, partition), gap)
        await self.engine.level()


async def play(program: list[Action], seed: int) -> None:
    """Run a program and compare what is there in the end with the twin."""
    run = Run(seed)
    engine = run.engine
    await engine.start()
    for step in program:
        await run.step(*step)
    await run.end()
    twin = Twin()
    for partition in range(PARTITIONS):
        for row in engine.cluster.rows(TopicPartition(SOURCE, partition)):
            assert row.key is not None
            twin.apply(partition, row.key, row.timestamp, msgspec.json.decode(row.value or b""))
    outputs = {
        key: [msgspec.json.decode(value or b"")["seen"] for value in values] for key, values in engine.values().items()
    }
    check_outputs(engine, twin, outputs)
    state = twin.state()
    assert scanned(engine) == state, "what app.store() scans"
    folded = engine.folded()
    assert typed(engine, folded) == state, "the fold of the changelog"
    assert engine.values(DEAD) == {}
    await engine.stop()
    assert engine.copied() == {p: entries for p, entries in folded.items() if entries}, "the local copies"


def check_outputs(engine: Engine, twin: Twin, outputs: dict[bytes | None, list[Any]]) -> None:
    """Each record's output once, with the state that it saw. Outputs of a key from two partitions mix in any order."""
    assert {k: sorted(map(repr, v)) for k, v in outputs.items()} == {
        k: sorted(map(repr, v)) for k, v in twin.outputs.items()
    }
    for partition in range(PARTITIONS):
        alone = Twin()
        for row in engine.cluster.rows(TopicPartition(SOURCE, partition)):
            assert row.key is not None
            alone.apply(partition, row.key, row.timestamp, msgspec.json.decode(row.value or b""))
        for key, seen in alone.outputs.items():
            remaining = iter(outputs[key])
            assert all(any(one == other for other in remaining) for one in seen), f"{key!r}: not in order"


def scanned(engine: Engine) -> dict[tuple[int, str, bytes, Any], TwinValue]:
    """All entries as readers beside the application see them."""
    return {
        (entry.partition, name, entry.key, entry.map_key): TwinValue(entry.value, entry.deadline_ms)
        for name in twin_stores()
        for entry in engine.view(name).scan()
    }


def typed(engine: Engine, state: dict[int, dict[bytes, bytes]]) -> dict[tuple[int, str, bytes, Any], TwinValue]:
    """Entries of a changelog by what they mean."""
    infos = {info.number: info for info in engine.member.keeper.infos.values()}
    found = {}
    for partition, entries in state.items():
        for at, data in entries.items():
            place, stored = parse_key(at), decode_stored(data)
            info = infos[place.store]
            map_key = decode_map_key(place.map_key, info.key_type) if info.kind == "map" else None
            store = engine.member.keeper.queries.find(info.name)
            value = TwinValue(store.binding.decode(stored.payload), stored.deadline_ms)
            found[partition, info.name, place.key, map_key] = value
    return found


@tier("test")
@settings(max_examples=300)
@given(program=st.lists(steps, max_size=25), seed=st.integers(0, 1 << 16))
def test_state_is_what_the_records_make_of_it(program: list[Action], seed: int) -> None:
    """Whatever happens, the state is that of a dictionary to which each record is applied once, in its key's order."""
    run_virtual(play(program, seed), seed=seed)


def random_program(rng: random.Random) -> list[Action]:
    """A long program, with a burst before every other step."""
    program: list[Action] = []
    for _ in range(60):
        burst = []
        for _ in range(rng.randint(1, 6)):
            things = [
                rng.choice([("plain", "put", rng.randint(0, 3)), ("plain", "get"), ("plain", "delete")]),
                rng.choice([("brief", "put", rng.randint(0, 3)), ("brief", "get"), ("brief", "get")]),
                rng.choice([("table", "put", rng.randint(0, 3), "a"), ("table", "all"), ("table", "delete", 1)]),
                rng.choice([("fading", "put", rng.choice("abc"), 1), ("fading", "all"), ("fading", "get", "a")]),
                rng.choice([("fail",), ("wait", 3), ("wait", 30)]),
            ]
            key, ms = rng.randrange(KEYS), rng.randint(0, 3 * TTL_MS)
            burst.append(("send", rng.randrange(PARTITIONS), key, ms, rng.sample(things, rng.randint(1, 5))))
        first, end = sorted(rng.sample(range(GRID + 1), 2))
        change = rng.choice(["merge", "release", "grant", "grant"])
        copies = rng.choice(["same", "same", "lost", "saved", "saved", "aged"])
        program += [
            ("burst", burst),
            rng.choice(
                [
                    ("split", rng.randrange(PARTITIONS), rng.randint(1, GRID - 1)),
                    (change, rng.randrange(PARTITIONS), (first, end)),
                    (change, rng.randrange(PARTITIONS), (first, end)),
                    ("wait", rng.choice([1, 7, 30, 200])),
                    ("wait", rng.choice([1, 7, 30, 200])),
                    (rng.choice(["crash", "stop"]), copies),
                    ("save",),
                    ("compact", rng.randrange(PARTITIONS), rng.random() < 0.5),
                    ("offsets unknown", rng.random() < 0.5),
                ]
            ),
        ]
    return program


@tier("test")
def test_long_programs() -> None:
    """The same over programs that are longer than those that a search draws."""
    for seed in range(30):
        run_virtual(play(random_program(random.Random(seed)), seed), seed=seed)
