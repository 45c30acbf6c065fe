"""What one seed draws before anything runs: limits, what is written and when, and what happens to it.

A plan is data: it can be kept as JSON, and a plan without some of its records, bursts or happenings is a plan too. Each
happening draws what it needs from a seed of its own, so that the others stay what they are when one is taken away.
"""

import random
from collections.abc import Sequence
from typing import Final

import msgspec

from keylanes.brokers.simulated.broker import EPOCH_MS, Latency
from keylanes.runtime.settings import Settings

from ..stage.limited import settings_of
from .twin import TTL_MS
from .workload import AUDIT, BILLS, DEAD, ORDERS, OUT, draw_work

KINDS: Final = {
    # processes
    "crash": 3,
    "power": 2,
    "stop": 2,
    "rival": 2,
    "rivals": 1,
    "pause": 3,
    "clock": 2,
    "slow disk": 2,
    "full disk": 1,
    # the cluster and the way to it
    "aborted": 2,
    "unknown": 2,
    "slow": 2,
    "away": 2,
    "restart": 2,
    "cut": 2,
    "coordinator away": 2,
    "no connection": 2,
    "lost requests": 2,
    "lost replies": 3,
    "late requests": 3,
    "held request": 3,
    "late markers": 2,
    "deposed": 3,
    "rack": 2,
    "election": 1,
    "limit": 2,
    "retention": 2,
    "compact": 3,
    "grow": 2,
    # the group
    "coordinator dies": 3,
    "coordinator pauses": 3,
    "coordinator cut": 2,
    "cut from a log": 2,
    "signals away": 1,
    "storm": 1,
    "flapping": 1,
    "twin": 2,
    "names swapped": 1,
    "held decision": 2,
    # the application
    "release": 3,
    "split": 3,
    "merge": 2,
}
"""What may happen, and how often in proportion."""

DEPOSING_KINDS: Final = frozenset({"deposed", "rack", "election", "old control", "old offsets", "old coordinator"})
"""A node of the cluster is cut off from the others and still answers."""
RANGE_KINDS: Final = {"move": 6, "strike": 6, "stuck": 1, "release": 1, "split": 2, "merge": 1}
"""The same of groups in which ranges move."""
KINDS_MADE: Final = ("deal", "old control", "old offsets", "old coordinator")
"""What is in plans that are made, and no draw has: ranges are dealt out; a node is cut off that leads just this, for
long; with the leader of the control log a process is.
"""

STATEFUL_ONLY: Final = frozenset({"compact", "full disk"})
STATELESS_ONLY: Final = frozenset({"grow"})
"""State is kept by partition and key: a source that has it may not grow."""
ATTEMPTS: Final = 4
"""So often a client tries within its time when a node may be cut off: one that says nothing is not the only one."""
KINDS_MAX = 9
"""So many kinds of happenings occur in one plan: a mix of its own, in which some come together often."""
AT_ONCE_S = 0.05
TOGETHER: Final = 0.25
"""So many of the groups are processes of one parent."""
CELLS: Final = (1, 4, 16)
"""Factors of groups in which ranges move."""


GROUP: Final = {
    "session_timeout_ms": 2_000,
    "heartbeat_interval_ms": 330,
    "transaction_timeout_ms": 2_000,
    "request_timeout_ms": 1_000,
    "leave_ms": 2_000,
    "return_ms": 2_000,
}
"""Of plans that do not say it."""


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and sizes. ``topics``: partitions of what the application writes to.

    What is new here has a default, so that plans of the corpus can still be read.
    """

    sources: dict[str, int]
    topics: dict[str, int]
    span_s: float
    settings: dict[str, int]
    stateful: bool
    slice_changes: int
    sources_check_ms: int = 500
    release_ms: int = 30_000
    join_ms: int = 10_000
    """So long a member holds bands that touch before they become one."""
    differing: float = 0.0
    """How often a process has another factor than the others, which is refused beside them."""
    names: tuple[str, ...] = ()
    """What processes may be called; none: nobody has a name."""
    members: int = 1
    """So many processes are there from the beginning."""
    together: bool = False
    """Each process says that so many are being started together: the first plan waits for them, and may halve."""
    factors: dict[str, int] = {}
    """Of source topics; those of others are drawn."""
    processes_max: int = 4
    """So many are alive at a time, of those that are started beside others."""
    until_level: float = 0.0
    """How often a process, while something happens, runs to the level of the sources and ends there."""
    restore_records_max: int = 4_000
    max_in_flight: int | None = None
    rate_per_s: float | None = None
    """So many attempts at the records of each source may begin in a second."""
    offsets_unknown: float
    marker_ms: tuple[float, float]
    timeout_ms: float
    dying: bool
    """Whether processes die by themselves, at a step of the commit cycle or between two writes."""

    def make_settings(self) -> Settings:
        """The application's."""
        settings = GROUP | self.settings
        view_ms = max(2_000, settings["session_timeout_ms"])  # so that answers of who was expelled are few
        return settings_of(**settings, compression_type=None, query_view_ms_max=view_ms)


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record of a source. ``is_hole``: it is compacted away before anybody reads it."""

    key: bytes | None
    value: bytes | None
    at_ms: int | None = None
    is_hole: bool = False


class Burst(msgspec.Struct, frozen=True):
    """Records that are written together: ``plain``, or in a transaction that is ``committed`` or ``aborted``."""

    at_s: float
    topic: str
    partition: int
    kind: str
    seed: int
    records: tuple[Item, ...]


class Happening(msgspec.Struct, frozen=True):
    """Something of ``KINDS`` begins."""

    at_s: float
    kind: str
    seed: int


class Plan(msgspec.Struct, frozen=True):
    """All of it. ``seed`` draws what is not listed: delays, orders, what processes are like. Times are in seconds from
    the beginning.
    """

    seed: int
    mix: Mix
    bursts: tuple[Burst, ...]
    happenings: tuple[Happening, ...]

    @property
    def latency(self) -> Latency:
        """Of the cluster."""
        has_deposed = any(happening.kind in DEPOSING_KINDS for happening in self.happenings)
        attempts = ATTEMPTS if has_deposed else 1
        timeout_ms = self.mix.timeout_ms
        return Latency(marker_ms=self.mix.marker_ms, timeout_ms=timeout_ms, attempt_ms=timeout_ms / attempts)


def draw_plan(seed: int) -> Plan:
    """The plan of a seed."""
    rng = random.Random(f"plan {seed}")
    limit = random.Random(f"limit {seed}").choice((None, None, None, 1, 2, 5))
    mix = msgspec.structs.replace(draw_mix(rng), max_in_flight=limit)
    if mix.members > 1:
        until_level = random.Random(f"level {seed}").choice((0.0, 0.0, 0.0, 0.5, 1.0))
        together = random.Random(f"together {seed}").random() < TOGETHER
        mix = msgspec.structs.replace(
            mix, until_level=until_level, together=together, settings=mix.settings | _draw_copies(seed)
        )
    plan = Plan(seed, mix, tuple(_draw_bursts(rng, mix)), tuple(_draw_happenings(rng, mix)))
    return plan if mix.members == 1 else _with_moves(plan)


def _draw_copies(seed: int) -> dict[str, int]:
    """How state is copied, how long a name is waited for, and how long who stops waits for others."""
    rng = random.Random(f"copies {seed}")
    return {
        "standbys": rng.choice((0, 0, 1, 2)),
        "copies_max": rng.choice((1, 2, 8)),
        "copy_bytes_per_s": rng.choice((1_000, 5_000, 1 << 24)),
        "moves_per_minute": rng.choice((2, 10, 100)),
        "leave_ms": rng.choice((0, 500, 3_000)),
        "return_ms": rng.choice((0, 500, 4_000)),
    }


def _with_moves(plan: Plan) -> Plan:
    """Ranges of it move, too, mostly from the beginning on."""
    rng, span_s = random.Random(f"ranges {plan.seed}"), plan.mix.span_s
    mix = msgspec.structs.replace(
        plan.mix,
        factors={topic: rng.choice(CELLS) for topic in plan.mix.sources},
        settings=plan.mix.settings | {"load_interval_ms": rng.choice((100, 400, 2_000))},
        join_ms=rng.choice((100, 500, 10_000)),
    )
    kinds = rng.choices([*RANGE_KINDS], [*RANGE_KINDS.values()], k=rng.choice((0, 2, 4, 8)))
    more = [Happening(round(rng.random() * span_s, 6), kind, rng.getrandbits(32)) for kind in kinds]
    dealt = [Happening(0.0, "deal", rng.getrandbits(32))] if rng.random() < 0.6 else []
    happenings = sorted([*dealt, *plan.happenings, *more], key=lambda happening: happening.at_s)
    return msgspec.structs.replace(plan, mix=mix, happenings=tuple(happenings))


def made(seed: int, kinds: Sequence[str]) -> Plan:
    """A group of three to five, whose ranges are dealt out, and to which nothing happens but these, one after the
    other.
    """
    plan, rng = draw_plan(seed), random.Random(f"made {seed}")
    topics = rng.sample([*plan.mix.sources], rng.randint(1, len(plan.mix.sources)))
    mix = msgspec.structs.replace(
        plan.mix,
        sources={topic: rng.randint(1, 2) for topic in topics},
        factors={topic: rng.choice(CELLS) for topic in topics},
        members=rng.randint(3, 5),
        processes_max=5,
        differing=0.0,
        until_level=0.0,
        together=False,
        dying=False,
        release_ms=rng.choice((2_000, 30_000)),
        join_ms=rng.choice((500, 10_000)),
        # Who is to have something has no copy of it yet, and makes one in good time.
        settings=plan.mix.settings | {"standbys": 0, "copy_bytes_per_s": rng.choice((5_000, 1 << 24))},
    )
    bursts = tuple(
        msgspec.structs.replace(burst, partition=burst.partition % mix.sources[burst.topic])
        for burst in plan.bursts
        if burst.topic in mix.sources
    )
    happenings = tuple(Happening(0.0, kind, rng.getrandbits(32)) for kind in ("deal", *kinds))
    return Plan(seed, mix, bursts, happenings)


def draw_mix(rng: random.Random) -> Mix:
    """Small limits mostly, so that every branch is reached with few records."""
    sources = {ORDERS: rng.randint(1, 3)}
    if rng.random() < 0.5:
        sources[BILLS] = rng.randint(1, 2)
    session_ms = rng.choice((1_500, 2_000, 3_000))
    settings = {
        "session_timeout_ms": session_ms,
        "heartbeat_interval_ms": session_ms // 6,
        "commit_interval_ms": rng.choice((20, 50, 100)),
        "commit_lead_ms": rng.choice((0, 5, 15)),
        "commit_all_workers_max": rng.choice((0, 0, 16)),
        "generation_records_max": rng.choice((2, 10, 50_000)),
        "generation_bytes_max": rng.choice((1_000, 1 << 24)),
        "done_bytes_max": rng.choice((2_000, 20_000, 1 << 26)),
        "buffer_bytes_max": rng.choice((2_000, 10_000, 50_000, 1 << 28)),
        "fetch_records_max": rng.choice((3, 20, 2_000)),
        "full_wait_ms": rng.choice((10, 100, 1_000)),
        "handler_timeout_ms": rng.choice((250, 600)),
        "merge_hold_ms": rng.choice((20, 200)),
        "balance_interval_ms": rng.choice((20, 100, 1_000)),
        "transaction_timeout_ms": rng.choice((500, 1_500)),
        "request_timeout_ms": 250,
        "default_api_timeout_ms": 2_000,
        "broker_retry_ms": rng.choice((2_000, 60_000)),
        "drain_timeout_ms": rng.choice((100, 2_000)),
        "snapshot_every_commits": rng.choice((1, 3, 10, 1_000)),
        "history_ms": rng.choice((0, 200, 1_000_000)),
    }
    return Mix(
        sources=sources,
        topics={topic: rng.randint(1, 3) for topic in (OUT, AUDIT, DEAD)},
        span_s=rng.choice((0.5, 2.0, 4.0)),
        settings=settings,
        stateful=rng.random() < 0.5,
        slice_changes=rng.choice((1, 2, 200)),
        sources_check_ms=rng.choice((50, 500)),
        release_ms=rng.choice((200, 2_000, 30_000)),
        differing=rng.choice((0.0, 0.0, 0.0, 0.2)),
        names=rng.choice(((), (), ("a", "b"), ("a", "b", "c", "d", "e", "f", "g", "h"))),
        members=rng.choice((1, 1, 2, 3, 5)),
        processes_max=rng.choice((2, 3, 5)),
        restore_records_max=rng.choice((2, 20, 4_000)),
        offsets_unknown=rng.choice((0.0, 0.0, 0.5)),
        marker_ms=rng.choice(((0.1, 2.0), (0.1, 20.0), (10.0, 200.0))),
        timeout_ms=rng.choice((300.0, 1_000.0)),
        dying=rng.random() < 0.4,
    )


def _draw_bursts(rng: random.Random, mix: Mix) -> list[Burst]:
    records, keys = rng.choice((20, 60, 120, 200)), rng.choice((1, 3, 8, 40))
    trouble = rng.choice((0.0, 0.05, 0.2))
    bursts: list[Burst] = []
    at_s, number = 0.0, 0
    while number < records:
        size = min(rng.choice((1, 3, 10, 40)), records - number)
        topic = rng.choice(list(mix.sources))
        kind = rng.choice(("plain", "plain", "holes", "committed", "committed", "aborted"))
        items = tuple(
            Item(
                _draw_key(rng, keys),
                draw_work(rng, number + i, is_sync=topic == BILLS, trouble=trouble),
                # Records of stateful mixes bring times of their own, which are not the clock's.
                EPOCH_MS + rng.randrange(4 * TTL_MS) if mix.stateful else None,
                kind == "holes" and rng.random() < 0.3,
            )
            for i in range(size)
        )
        written = "plain" if kind == "holes" else kind
        partition = rng.randrange(mix.sources[topic])
        bursts.append(Burst(round(at_s, 6), topic, partition, written, rng.getrandbits(32), items))
        number += size
        at_s += rng.random() * 2 * mix.span_s * size / records
    return bursts


def _draw_key(rng: random.Random, keys: int) -> bytes | None:
    draw = rng.random()
    if draw < 0.1:
        return None
    return b"" if draw < 0.15 else b"k%d" % int(rng.random() ** 2 * keys)


def _draw_happenings(rng: random.Random, mix: Mix) -> list[Happening]:
    count = rng.choice((4, 8, 12, 18, 24))
    impossible = STATELESS_ONLY if mix.stateful else STATEFUL_ONLY
    allowed = [kind for kind in KINDS if kind not in impossible]
    drawn = rng.choices(allowed, [KINDS[kind] for kind in allowed], k=rng.randint(2, KINDS_MAX))
    happenings: list[Happening] = []
    at_s = 0.0
    for _ in range(count):
        # Some come at once behind another: in the middle of what it began.
        at_s += rng.random() * AT_ONCE_S if rng.random() < 0.25 else rng.random() * 2 * mix.span_s / count
        happenings.append(Happening(round(at_s, 6), rng.choice(drawn), rng.getrandbits(32)))
    return happenings
