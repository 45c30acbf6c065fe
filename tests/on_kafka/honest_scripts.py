"""Scripts of steps through the ``Broker`` protocol, drawn from a seed: the same script runs on any broker.

A step names its topics, transactional ids, connections, producers and readers by words of the script. One that names
what is not there does nothing, so that a script without some of its steps is a script, too.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from keylanes.brokers.protocol import Outgoing

STAMP_FIRST_MS: Final = 1_600_000_000_000  # timestamps that a script gives lie this side of any clock's
STAMPS_MS: Final = 100_000
LONG_MS, SHORT_MS = 120_000, 1_500
"""Time limits of transactions: one that never passes, one that a step waits for."""
SMALL: Final = 2_000
"""What a batch may take on the topic with a low limit, in bytes."""
NO_RETENTION: Final = {"retention.ms": "-1"}
NO_COMPACTION: Final = {**NO_RETENTION, "min.compaction.lag.ms": "300000000000"}  # the scripts' timestamps are old
TOPICS: Final[dict[str, tuple[int, dict[str, str]]]] = {
    "plain": (2, NO_RETENTION),
    "small": (2, {**NO_RETENTION, "max.message.bytes": str(SMALL)}),
    "by-key": (1, {**NO_COMPACTION, "cleanup.policy": "compact"}),
}
IDS: Final = ("x", "y")
CONNECTIONS: Final = ("one", "two")
FAULTS: Final = ("LOSE_REQUEST", "LOSE_REPLY")
KINDS: Final = ("INIT", "ADD_PARTITIONS", "PRODUCE", "END_TXN")
HELD: Final = ("END_TXN", "END_TXN", "END_TXN", "PRODUCE", "ADD_PARTITIONS")

Place = tuple[str, int]


class Item(NamedTuple):
    """A record to be written; ``size`` bytes of noise are its value's end."""

    topic: str
    partition: int
    key: str | None
    value: str | None
    size: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    timestamp: int | None = None

    def outgoing(self, name: str) -> Outgoing:
        """The record, for the topic's real name."""
        value = None if self.value is None else self.value.encode() + noise(self.size)
        headers = tuple((header, data.encode()) for header, data in self.headers)
        return Outgoing(
            name, self.partition, None if self.key is None else self.key.encode(), value, headers, self.timestamp
        )


class Step(NamedTuple):
    """What is done, and with what."""

    action: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.action}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


class Script(NamedTuple):
    """``breaks``: it has steps that lose or hold requests, so that it needs the network to itself."""

    seed: int
    breaks: bool
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "\n".join([f"script {self.seed}:", *(f"  {step}," for step in self.steps)])


def noise(size: int) -> bytes:
    """Bytes that no codec makes smaller."""
    return random.Random(size).randbytes(size)


def draw_script(seed: int) -> Script:
    """The script of a seed; every fifth one breaks connections."""
    return _Drawing(seed).script()


class _Drawing:
    """A script while it is drawn. What it believes to be there need not be so."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.breaks = seed % 5 == 0
        self.rng = random.Random(f"script {seed}")
        self.steps: list[Step] = []
        self.producers: dict[str, str] = {}  # and the transactional id
        self.ended: list[str] = []  # producers that are at their end, but for a twin at the same epoch
        self.readers: dict[str, list[Place]] = {}
        self.high: dict[Place, int] = {}
        self.values = 0
        self.names = 0
        self.refused = False  # whether the last records drawn will be
        self.held = False

    def script(self) -> Script:
        """Topics, a mixture of steps, and a look at everything."""
        rng = self.rng
        self.topics = sorted(rng.sample(sorted(TOPICS), rng.randint(1, 3)))
        for topic in self.topics:
            partitions, config = TOPICS[topic]
            self.add("create", topic=topic, partitions=partitions, config=config)
            self.high.update({(topic, partition): 0 for partition in range(partitions)})
        chances: dict[Callable[[], object], int] = {
            self.append: 4,
            self.transact: 8,
            self.producer: 3,
            self.read: 5,
            self.watermarks: 3,
            self.reader: 1,
            self.fence: 2,
            self.describe: 1,
            self.trim: 1,
            self.together: 1,
            self.old_producer: 2,
        }
        if self.breaks:
            chances |= {self.lossy: 6, self.hold: 4, self.release: 2, self.late_end: 2, self.expire: 1}
        steps, weights = list(chances), list(chances.values())
        for _ in range(rng.randint(6, 13)):
            rng.choices(steps, weights)[0]()
        self.release()
        self.add("finish")
        return Script(self.seed, self.breaks, tuple(self.steps))

    def add(self, action: str, **arguments: Any) -> None:
        """One more step."""
        self.steps.append(Step(action, arguments))

    def name(self, kind: str) -> str:
        """A word that was not used yet."""
        self.names += 1
        return f"{kind}{self.names}"

    def connection(self) -> str:
        """Any of them."""
        return self.rng.choice(CONNECTIONS)

    def places(self) -> list[Place]:
        """Some partitions."""
        return sorted(self.rng.sample(sorted(self.high), self.rng.randint(1, len(self.high))))

    def items(self, places: Sequence[Place], *, fine: bool = False) -> list[Item]:
        """Some records for these partitions; now and then one that is refused."""
        rng = self.rng
        found = [self.item(rng.choice(places)) for _ in range(rng.randint(1, 7))]
        count = len(found)
        wrong = 1.0 if fine else rng.random()
        topic, partition = rng.choice(places)
        if wrong < 0.06:
            found.insert(rng.randint(0, len(found)), self.item((topic, partition))._replace(partition=7))
        elif wrong < 0.1:
            found.insert(rng.randint(0, len(found)), self.item(("missing", 0)))
        elif wrong < 0.25 and topic == "small":
            found.insert(rng.randint(0, len(found)), self.item((topic, partition))._replace(size=3 * SMALL))
        elif wrong < 0.35 and topic == "by-key":
            found.insert(rng.randint(0, len(found)), self.item((topic, partition))._replace(key=None))
        self.refused = len(found) > count
        for item in found:
            place = (item.topic, item.partition)
            self.high[place] = self.high.get(place, 0) + (place in self.high)
        return found

    def item(self, place: Place) -> Item:
        """A record that is fine."""
        rng = self.rng
        self.values += 1
        value = None if rng.random() < 0.05 else f"{self.values}:"
        key = None if place[0] != "by-key" and rng.random() < 0.2 else f"k{rng.randrange(5)}"
        size = rng.choice((0, 0, 0, 10, 700, 1_300, 1_800)) if place[0] == "small" and value is not None else 0
        headers = tuple((f"h{n}", f"{n}" * n) for n in range(rng.choice((0, 0, 0, 1, 3))))
        stamp = STAMP_FIRST_MS + rng.randrange(STAMPS_MS) if rng.random() < 0.3 else None
        return Item(*place, key, value, size, headers, stamp)

    # --- steps that any broker can be asked for ----------------------------------------------------------------------

    def append(self) -> None:
        self.add("append", connection=self.connection(), items=self.items(self.places()))

    def producer(self, timeout_ms: int = LONG_MS) -> str:
        name, of = self.name("p"), self.rng.choice(IDS)
        self.add("producer", connection=self.connection(), name=name, id=of, timeout_ms=timeout_ms)
        self.ended += [old for old, its in self.producers.items() if its == of]
        self.producers = {old: its for old, its in self.producers.items() if its != of}
        self.producers[name] = of
        return name

    def any_producer(self) -> str:
        """One that should work."""
        if not self.producers or self.rng.random() < 0.1:
            return self.producer()
        return self.rng.choice(sorted(self.producers))

    def transact(self) -> None:
        name = self.any_producer()
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            self.add("transact", name=name, items=self.items(self.places()))
            if self.refused:
                self.spent(name)
                return
        if self.rng.random() < 0.05:
            self.add("transact", name=name, items=[])
            self.add("close", name=name)
            self.spent(name)

    def old_producer(self) -> None:
        """One that was fenced, closed or has failed."""
        if self.ended:
            self.add("transact", name=self.rng.choice(self.ended), items=self.items(self.places(), fine=True))

    def together(self) -> None:
        """Both ids at once, in partitions apart."""
        first, places = self.producer(), sorted(self.high)
        second = self.producer()
        if len(places) < 2 or self.steps[-1].arguments["id"] == self.steps[-2].arguments["id"]:
            return
        split = self.rng.randint(1, len(places) - 1)
        items = {first: self.items(places[:split]), second: self.items(places[split:])}
        self.add("together", transactions=items)

    def fence(self) -> None:
        of = self.rng.choice(IDS)
        self.add("fence", connection=self.connection(), id=of)
        self.ended += [name for name, its in self.producers.items() if its == of]
        self.producers = {name: its for name, its in self.producers.items() if its != of}

    def describe(self) -> None:
        self.add("describe", connection=self.connection(), topics=[*self.topics, "missing"])
        if self.rng.random() < 0.5:
            wrong = self.rng.choice([("spa ce", 1), ("none", 0), (self.topics[0], 5)])
            self.add("create", topic=wrong[0], partitions=wrong[1], config={})

    def watermarks(self) -> None:
        places = self.places()
        if self.rng.random() < 0.1:
            places.append((self.topics[0], 7))
        self.add("watermarks", connection=self.connection(), places=places)

    def reader(self) -> str:
        rng = self.rng
        places = self.places()
        wrong = rng.random()
        starts = {place: rng.choice((0, 0, rng.randint(0, self.high[place] + 1))) for place in places}
        if wrong < 0.15:
            starts[rng.choice(places)] = self.high[places[0]] + 40
        elif wrong < 0.2:
            starts[self.topics[0], 7] = 0
        positions = list(starts.items())
        if self.readers and rng.random() < 0.4:
            name = rng.choice(sorted(self.readers))
            self.add("assign", name=name, positions=positions)
        else:
            name = self.name("r")
            self.add("reader", connection=self.connection(), name=name, positions=positions)
        self.readers[name] = list(starts)
        return name

    def read(self) -> None:
        name = self.rng.choice(sorted(self.readers)) if self.readers and self.rng.random() < 0.7 else self.reader()
        places = self.readers[name]
        some = sorted(self.rng.sample(places, self.rng.randint(1, len(places))))
        self.add("read", name=name, places=some, records_max=self.rng.choice((1, 3, 100)))

    def trim(self) -> None:
        place = self.rng.choice(sorted(self.high))
        before = self.rng.randint(0, self.high[place] + (3 if self.rng.random() < 0.3 else 0))
        self.add("trim", connection=self.connection(), place=place, before=before)
        # What a reader has fetched ahead may or may not be there: they are made anew.
        self.readers = {name: at for name, at in self.readers.items() if place not in at}

    # --- steps that break connections ------------------------------------------------------------------------------

    def lossy(self) -> None:
        """A request or its answer is lost."""
        kind, fault = self.rng.choice(KINDS), self.rng.choice(FAULTS)
        if kind == "INIT":
            of = self.rng.choice(IDS)
            self.add("fence", connection=self.connection(), id=of, breaks=(kind, fault))
        elif kind == "PRODUCE" and self.rng.random() < 0.4:
            items = self.items(self.places(), fine=True)
            self.add("append", connection=self.connection(), items=items, breaks=(kind, fault))
        else:
            name = self.any_producer()
            self.add("transact", name=name, items=self.items(self.places()), breaks=(kind, fault))
            self.spent(name)

    def spent(self, name: str) -> None:
        """It is at its end; now and then something of the same epoch goes on, as it never should."""
        of = self.producers.pop(name, None)
        self.ended.append(name)
        if of is not None and self.rng.random() < 0.3:
            twin = self.name("p")
            self.add("twin", name=twin, of=name)
            self.producers[twin] = of

    def hold(self) -> None:
        """The end of a transaction, or another step of it, is held in the network; its sender waits or has died."""
        self.let_go()
        name = self.any_producer()
        waits = self.rng.random() < 0.4
        self.held = True
        self.add("hold", name=name, items=self.items(self.places()), waits=waits, kind=self.rng.choice(HELD))
        if waits:
            self.ended.append(name)
            self.producers.pop(name, None)
        else:
            self.spent(name)

    def release(self) -> None:
        self.add("release")
        self.held = False

    def let_go(self) -> None:
        """Two ends that are held could come in any order."""
        if self.held:
            self.release()

    def late_end(self) -> None:
        """What was held comes while the next transaction is open, of the same epoch or of a new one."""
        self.let_go()
        name = self.any_producer()
        self.add("hold", name=name, items=self.items(self.places()), waits=False, kind="END_TXN")
        after = self.name("p")
        of = self.producers.pop(name)
        self.ended.append(name)
        if self.rng.random() < 0.6:
            self.add("twin", name=after, of=name)
        else:
            self.add("producer", connection=self.connection(), name=after, id=of, timeout_ms=LONG_MS)
        items = self.items(self.places(), fine=True)
        self.add("transact", name=after, items=items, breaks=("END_TXN", "LOSE_REQUEST"))
        self.release()
        self.ended.append(after)

    def expire(self) -> None:
        """A transaction is open for longer than its time limit."""
        self.let_go()
        name = self.producer(SHORT_MS)
        self.add(
            "hold", name=name, items=self.items(self.places(), fine=True), waits=self.rng.random() < 0.5, kind="END_TXN"
        )
        self.add("expire", id=self.producers.pop(name))
        self.ended.append(name)
        if self.rng.random() < 0.3:
            self.producer()
        self.release()


def past_scripts() -> list[Script]:
    """Scripts that showed something else on the two sides once."""
    one = Item("by-key", 0, "k1", "1:")
    create = Step("create", {"topic": "by-key", "partitions": 1, "config": TOPICS["by-key"][1]})
    make = Step("producer", {"connection": "one", "name": "p1", "id": "x", "timeout_ms": LONG_MS})
    again = Step("transact", {"name": "p2", "items": [one], "breaks": ("END_TXN", "LOSE_REQUEST")})
    end = (Step("release", {}), Step("finish", {}))
    return [
        # A topic that is only compacted can't be trimmed.
        Script(
            -1,
            False,
            (
                create,
                Step("append", {"connection": "one", "items": [one, one]}),
                Step("trim", {"connection": "one", "place": ("by-key", 0), "before": 1}),
                *end,
            ),
        ),
        # A batch that is refused keeps its place in the sequence of its partition.
        Script(
            -2,
            True,
            (
                create,
                make,
                Step("hold", {"name": "p1", "items": [one._replace(key=None)], "waits": False, "kind": "END_TXN"}),
                Step("twin", {"name": "p2", "of": "p1"}),
                again,
                *end,
            ),
        ),
    ]
