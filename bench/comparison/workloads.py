"""The workloads: what they ask, how large they are, who runs them, and how much of a topic a slow arm gets."""

from dataclasses import dataclass

OURS = "keylanes"
PC = ("parallel-consumer-core", "parallel-consumer-reactor")
STREAMS = ("streams-eos", "streams-alo")
QUIX = ("quix-eos", "quix-alo")
IN_TWO = ("keylanes", "keylanes-2", "streams-eos", "streams-eos-2")
"""One and two processes of ours, one and two threads of Kafka Streams."""
EXACTLY_ONCE = ("keylanes", "streams-eos", "quix-eos")

PREFIX_SECONDS = {"full": 10.0, "quick": 3.0}
"""What a slow arm's prefix shall take on a slow machine: it must stay below 20 s, and the tables say what it took."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One row of the bench. Sizes are numbers of records, ``full`` and ``quick``."""

    name: str
    title: str
    arms: tuple[str, ...]
    full: int
    quick: int
    keys: int = 10_000
    partitions: int = 1
    distribution: str = "uniform"
    handler_ms: float = 0.0
    spin_us: float = 0.0
    has_output: bool = False
    stuck: int = -1
    kind: str = "rate"
    """``rate``, ``kill`` (W6) or ``latency`` (W7)."""
    ours: str = OURS
    """Whose rate the others' are compared with."""
    rounds: int = 3
    """At full size. Five where runs lie far apart: of tails, and where two processors are all there is to share."""

    @property
    def family(self) -> str:
        """What drivers know it by: W1 … W8."""
        return self.name.partition("-")[0]

    def records(self, size: str) -> int:
        """How many there are."""
        return self.full if size == "full" else self.quick

    def rounds_at(self, size: str) -> int:
        """How often every arm runs."""
        return self.rounds if size == "full" else 1

    def keys_at(self, size: str) -> int:
        """How many keys there are: as many as records where all are distinct."""
        return self.records(size) if self.distribution == "distinct" else self.keys

    def source(self, size: str) -> str:
        """The topic. Workloads that ask for the same records share it."""
        return f"bench-{self.distribution}-{self.records(size)}-{self.keys_at(size)}-{self.partitions}"

    def records_of_arm(self, arm: str, size: str) -> int:
        """All of them, or the prefix that a slow arm gets."""
        per_second = _slow_per_second(arm, self)
        everything = self.records(size)
        return everything if per_second is None else min(everything, int(per_second * PREFIX_SECONDS[size]))


def _slow_per_second(arm: str, workload: Workload) -> float | None:
    """About what an arm that gets a prefix does on a slow machine; None: it gets everything."""
    if arm == "aiokafka-serial":
        handler_s = workload.handler_ms / 1_000 + workload.spin_us / 1e6
        return 0.75 / (handler_s + 5e-5)
    if arm == "pyrallel":
        return 8_000.0
    return None


_WAITING = ("keylanes", "bare-lanes", *PC, "pyrallel", "flechtwerk", "aiokafka-serial")

WORKLOADS = (
    Workload(
        name="W1-2ms", title="async handler 2 ms", arms=_WAITING, full=300_000, quick=60_000, handler_ms=2, rounds=5
    ),
    Workload(
        name="W1-5ms", title="async handler 5 ms", arms=_WAITING, full=300_000, quick=60_000, handler_ms=5, rounds=5
    ),
    Workload(
        name="W2-1p",
        title="no-op drain, 1 partition",
        arms=("keylanes", "getmany", *PC, "pyrallel", "quix-alo"),
        full=1_000_000,
        quick=100_000,
    ),
    Workload(
        name="W2-8p",
        title="no-op drain, 8 partitions",
        arms=("keylanes", "getmany", *PC),
        full=1_000_000,
        quick=100_000,
        partitions=8,
    ),
    Workload(
        name="W3",
        title="stateful count, changelog on",
        arms=("keylanes", *STREAMS, *QUIX, "flechtwerk"),
        full=1_000_000,
        quick=100_000,
        rounds=5,
    ),
    Workload(
        name="W4",
        title="consume, transform, produce",
        arms=("keylanes", *STREAMS, *QUIX, "flechtwerk"),
        full=1_000_000,
        quick=100_000,
        has_output=True,
        rounds=5,
    ),
    Workload(
        name="W3-4p",
        title="stateful count, 4 partitions, 2 processes",
        arms=IN_TWO,
        ours="keylanes-2",
        full=2_000_000,
        quick=200_000,
        partitions=4,
    ),
    Workload(
        name="W4-4p",
        title="consume, transform, produce, 4 partitions, 2 processes",
        arms=IN_TWO,
        ours="keylanes-2",
        full=2_000_000,
        quick=200_000,
        partitions=4,
        has_output=True,
    ),
    Workload(
        name="W5",
        title="Zipf(1.0) keys, 10 ms, 8 partitions",
        arms=("keylanes", *PC),
        full=50_000,
        quick=2_500,
        keys=1_000,
        partitions=8,
        distribution="zipf",
        handler_ms=10,
    ),
    Workload(
        name="W6",
        title="one record stuck, kill -9, restart",
        arms=("keylanes", PC[0]),
        full=200_000,
        quick=30_000,
        distribution="distinct",
        has_output=True,
        stuck=1_000,
        kind="kill",
    ),
    Workload(
        name="W7-handled",
        title="open loop, 2 ms: latency until handled",
        arms=("keylanes", *PC),
        full=400_000,
        quick=60_000,
        handler_ms=2,
        kind="latency",
        rounds=5,
    ),
    Workload(
        name="W7-visible",
        title="open loop: latency until visible, committed",
        arms=EXACTLY_ONCE,
        full=400_000,
        quick=60_000,
        has_output=True,
        kind="latency",
        rounds=5,
    ),
    Workload(
        name="W8",
        title="sync handler, 100 µs of processor time, 4 partitions",
        arms=("keylanes", PC[0], "aiokafka-serial"),
        full=200_000,
        quick=20_000,
        partitions=4,
        spin_us=100,
    ),
)


def ours_in(workload: str) -> str:
    """Whose rate others' are compared with in the workload of this name."""
    return next((w.ours for w in WORKLOADS if w.name == workload), OURS)


def chosen(names: list[str]) -> list[Workload]:
    """Those that are named, ``W1`` for all of its kind; all when none is. Raises ValueError for an unknown name."""
    unknown = [n for n in names if not any(n in (w.name, w.family) for w in WORKLOADS)]
    if unknown:
        raise ValueError(f"no such workload: {', '.join(unknown)}; there are {', '.join(w.name for w in WORKLOADS)}")
    return [w for w in WORKLOADS if not names or w.name in names or w.family in names]
