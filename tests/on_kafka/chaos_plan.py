"""What shall happen in a round of chaos: drawn from its seed, the same each time."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import msgspec

from keylanes.runtime.watch.steps import Step

from ..stage.proxy import Fault

PRODUCER = "keylanes.brokers.producer:TransactionalProducer"
COPY = "keylanes.state.copies:RocksCopy"
POINTS = (
    "step take",
    "step transact",
    "step committed",
    "step applied",
    f"before {PRODUCER}._commit",
    f"after {PRODUCER}._commit",
    f"before {COPY}.write",
    f"after {COPY}.write",
)
"""Where a process kills itself: on both sides of every step of a commit, and of a write to its copy of the state."""

STEPS: tuple[Step, ...] = ("transact", "transact", "transact", "take", "committed", "applied")
TRANSACTIONS_MAX = 12
ARMED_TIMES = 3
MORE_MAX = 12
"""Happenings behind the plan, at most."""
ARMED = (Fault.HOLD_TO_NEXT, Fault.LOSE_REPLY, Fault.CUT_REPLY, Fault.CUT_REQUEST, Fault.SILENCE)


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what. ``kills``, ``stops``: at least so many SIGKILLs and SIGSTOPs of processes of the application.

    ``pairs``: two processes that share. ``restarts``: of the broker, in order. ``fault_rate``: of the requests in a
    transaction, while the weather is bad; ``faults``: at least so many are met, and each of ``ARMED``, where there is
    bad weather at all: who dies first sends no EndTxn that could meet one. ``planted``: defects of the application (see
    chaos_app.py); ``armed``: the fault that an EndTxn of it meets.
    """

    seed: int
    records: int = 100_000
    kills: int = 20
    stops: int = 8
    pairs: int = 2
    broker_kills: int = 2
    broker_stops: int = 3
    restarts: int = 1
    fault_rate: float = 0.01
    faults: int = 10
    planted: tuple[str, ...] = ()
    armed: str = ""


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """What all have: whether the network is bad meanwhile, how many transactions are made before, and what the next
    EndTxn meets (a ``Fault``), if anything.
    """

    SECONDS: ClassVar[float] = 5.0
    """About how long it takes: the loader's pace."""

    is_stormy: bool = False
    transactions: int = 1
    armed: str = ""

    def told(self) -> str:
        """In words."""
        values = {name: value for name, value in msgspec.structs.asdict(self).items() if value}
        return f"{type(self).__name__} {values}"


class KillAt(Happening, frozen=True):
    """The process is killed when it notes a step."""

    step: str


class KillWithin(Happening, frozen=True):
    """It is killed, and the next one kills itself at a point of the code, the ``count``-th time it is there."""

    SECONDS: ClassVar[float] = 7.0
    point: str
    count: int


class KillStarting(Happening, frozen=True):
    """It is killed, and the next one too, while it starts: when it has asked for its producer."""

    is_cold: bool
    """The folder of the state is lost on the way."""


class StopAlone(Happening, frozen=True):
    """The process is suspended at a step for a time, and goes on."""

    step: str
    seconds: float


class StopTakenOver(Happening, frozen=True):
    """It is suspended for longer than a session; a second process takes over; it wakes up and must go."""

    SECONDS: ClassVar[float] = 9.0
    step: str


class StopChain(Happening, frozen=True):
    """It is suspended, a second process takes over and is suspended too, a third takes over: both must go."""

    SECONDS: ClassVar[float] = 14.0
    step: str


class Second(Happening, frozen=True):
    """Another process is started beside it and has its share; then the first stops in order."""


class Twins(Happening, frozen=True):
    """The process is killed, and two are started at the same time; when both have their share one is killed."""

    SECONDS: ClassVar[float] = 8.0


class InOrder(Happening, frozen=True):
    """The process is stopped by SIGTERM."""


class Pass(Happening, frozen=True):
    """Nothing but time passes."""


class BrokerKill(Happening, frozen=True):
    """The broker is killed and started again; meanwhile the application is ``killed``, or ``suspended``, or waits."""

    SECONDS: ClassVar[float] = 12.0
    application: str


class BrokerStop(Happening, frozen=True):
    """The broker is suspended for a time."""

    seconds: float


class BrokerRestart(Happening, frozen=True):
    """The broker is stopped in order and started again."""

    SECONDS: ClassVar[float] = 10.0


Planned: TypeAlias = (
    KillAt
    | KillWithin
    | KillStarting
    | StopAlone
    | StopTakenOver
    | StopChain
    | Second
    | Twins
    | InOrder
    | Pass
    | BrokerKill
    | BrokerStop
    | BrokerRestart
)


def draw(round_: Round) -> list[Planned]:
    """The happenings of a round, in their order."""
    chance = random.Random(f"plan {round_.seed}")
    due = random.Random(f"armed {round_.seed}").sample(ARMED, len(ARMED))  # each once, before any a second time

    def common() -> dict[str, Any]:
        stormy = round_.fault_rate > 0 and chance.random() < 0.6
        armed = chance.choice(ARMED) if stormy and chance.random() < 0.5 else None
        if armed is not None and due:
            armed = due.pop()
        return {
            "is_stormy": stormy,
            "transactions": chance.randint(1, TRANSACTIONS_MAX),
            "armed": armed.name if armed is not None else "",
        }

    found: list[Planned] = [Second(**common()) if i % 2 else Twins(**common()) for i in range(round_.pairs)]
    kills = round_.kills - sum(isinstance(one, Twins) for one in found)
    while kills > 0:
        kind = chance.random()
        if kind < 0.4 or kills == 1:
            found.append(KillAt(step=chance.choice(STEPS), **common()))
            kills -= 1
        elif kind < 0.75:
            found.append(KillWithin(point=chance.choice(POINTS), count=chance.randint(1, 15), **common()))
            kills -= 2
        else:
            found.append(KillStarting(is_cold=chance.random() < 0.5, **common()))
            kills -= 2
    stops = round_.stops
    while stops > 0:
        kind = chance.random()
        if kind < 0.4:
            found.append(StopAlone(step=chance.choice(STEPS), seconds=chance.uniform(0.2, 4.0), **common()))
        elif kind < 0.8 or stops == 1:
            found.append(StopTakenOver(step=chance.choice(STEPS), **common()))
        else:
            found.append(StopChain(step=chance.choice(STEPS), **common()))
            stops -= 1
        stops -= 1
    meanwhile = ("suspended", "killed", "")
    found += [BrokerKill(application=meanwhile[i % 3], **common()) for i in range(round_.broker_kills)]
    found += [BrokerStop(seconds=chance.uniform(0.5, 5.0), **common()) for _ in range(round_.broker_stops)]
    found += [BrokerRestart(**common()) for _ in range(round_.restarts)]
    found += [InOrder(**common()) for _ in range(1 + round_.kills // 10)] if round_.kills else []
    chance.shuffle(found)
    if round_.planted:
        found.append(Pass(transactions=25))  # the defects need so many
        # More than once: a transaction may carry nothing but a change of structure.
        found += [Pass(transactions=5, armed=round_.armed) for _ in range(ARMED_TIMES)]
    return found


def one_more(round_: Round, met: Mapping[Fault, int]) -> Pass | None:
    """What is still to happen behind the plan, when so many faults were met; None when they are enough."""
    if not round_.fault_rate:
        return None
    missing = [fault for fault in ARMED if not met.get(fault)]
    if not missing and sum(met.values()) >= round_.faults:
        return None
    rarest = missing[0] if missing else min(ARMED, key=lambda fault: met[fault])
    return Pass(transactions=5, armed=rarest.name)


def seconds_of(plan: Sequence[Planned]) -> float:
    """About how long a plan takes."""
    return sum(happening.SECONDS for happening in plan)
