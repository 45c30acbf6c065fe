"""Messages of members in ``<app>.signals``: requests and observations. Nothing here is a fact.

A process that loses all signals is slow, never wrong. Partition 0 holds the coordinator's signals, the others hold the
signals of members and operators. The bytes are as in events (see events.py): an array whose first item is the tag.
"""

from typing import Annotated, Final, TypeAlias

import msgspec

from .event_values import RATE_PER_S_MAX, Edge, LogEvent, OfPartition, PlannedMove, Sourced

CAPACITY_MAX: Final = 1_000_000.0
DIED: Final = "died"
"""The cause of an expulsion: the process that started the member's process has seen its end."""
SLOT: Final = "slot"
"""A move with state has not begun: its target makes as many other copies as it may at once."""
TURN: Final = "turn"
"""A move with state has not begun: as many others as may begin in a minute have begun."""
COOLING: Final = "cooling"
"""As ``TURN``, while only half as many may begin."""
WAITS_MAX: Final = 100
"""The most waits in a beat of the coordinator."""


class StoreAsked(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A store that a member's handlers need; the fields are as in ``store_declared``."""

    name: str
    topic: str
    kind: str
    key_type: str
    value_type: str
    codec: str


class JoinAsked(LogEvent, frozen=True, tag="join_asked/1"):
    """A process wants to take part; the fields are the fields of ``member_joined``.

    ``producers``: the number of transactional ids that the process needs; ``stores``: the stores that the process
    needs declared; ``expected``: the number of processes that are being started together, including this process.
    """

    instance: str
    birth: str
    producers: int
    host: str
    endpoint: str
    capacity: Annotated[float, msgspec.Meta(gt=0, le=CAPACITY_MAX)]
    level: int
    topics: tuple[Sourced, ...]
    writes: tuple[str, ...]
    until_level: bool
    stores: tuple[StoreAsked, ...]
    expected: int


class MoveAsked(OfPartition, LogEvent, frozen=True, tag="move_asked/1"):
    """Points ``[first, end)`` of a source partition, owned at ``epoch``, shall go to incarnation ``target`` (0: the
    coordinator chooses). ``request``: a unique text, ``by``: the requester, in words.
    """

    request: str
    by: str
    topic: str
    partition: int
    first: int
    end: int
    target: int
    epoch: int


class ExpelAsked(LogEvent, frozen=True, tag="expel_asked/1"):
    """A member shall be expelled. ``cause``: ``died``, or in words."""

    request: str
    by: str
    incarnation: int
    cause: str


class Rate(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The attempts that a member may begin in a second at records of a topic with a rate limit for the whole group: the
    share of the member.
    """

    topic: str
    share_per_s: Annotated[float, msgspec.Meta(ge=0, le=RATE_PER_S_MAX)]


class Beat(LogEvent, frozen=True, tag="beat/1"):
    """A member lives, and has read the control log up to ``control_position``. ``loop_lag_ms``: the delay of its event
    loop at this beat.

    ``term``, ``number``: of the newest coordinator's beat that the member has read, 0 for none. ``rates``: the member's
    shares now.
    """

    incarnation: int
    birth: str
    control_position: int
    loop_lag_ms: int
    term: int
    number: int
    rates: tuple[Rate, ...]


class LeaveAsked(LogEvent, frozen=True, tag="leave_asked/1"):
    """A member stops in order. ``returns_in_ms``: the time until its name will be back; 0: no return. ``is_done``: the
    member has made its last commit.
    """

    incarnation: int
    birth: str
    returns_in_ms: int
    is_done: bool


class Copy(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The progress of the copy of a move: the changelog was read up to ``position`` of ``high``."""

    move: int
    position: int
    high: int
    bytes_per_s: int
    is_ready: bool


class Copies(LogEvent, frozen=True, tag="copies/1"):
    """The progress of a member's copies."""

    incarnation: int
    copies: tuple[Copy, ...]


class BandLoad(OfPartition, msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The load of a band in an interval: ``busy_us`` of handlers' time and ``records``; the records that are left, and
    the size of its state. ``points``: the distribution of the time, as (first point of a range of the declared cut,
    busy_us) in rising order, light neighbours melted into the heaviest; may be ().
    """

    topic: str
    partition: int
    first: int
    end: int
    epoch: int
    busy_us: int
    records: int
    backlog: int
    state_bytes: int
    points: tuple[tuple[int, int], ...]


class Load(LogEvent, frozen=True, tag="load/1"):
    """The load of a member's bands in ``interval_ms``: only bands with a change since the last signal."""

    incarnation: int
    interval_ms: int
    bands: tuple[BandLoad, ...]


class ReleaseTold(OfPartition, LogEvent, frozen=True, tag="released/1"):
    """The member's committed ``transaction`` released these bands: the log will show the release."""

    incarnation: int
    transaction: int
    move: int
    topic: str
    partition: int
    bands: tuple[Edge, ...]


class Answer(LogEvent, frozen=True, tag="answer/1"):
    """The plan of a member that received ``answer_asked`` with this ``input``."""

    incarnation: int
    input: int
    moves: tuple[PlannedMove, ...]


class MemberRates(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The shares of a member. For topics missing here the member keeps its present share."""

    incarnation: int
    rates: tuple[Rate, ...]


class Wait(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The reason why a planned move with state has not begun: ``SLOT``, ``TURN`` or ``COOLING``."""

    move: int
    reason: str


class CoordinatorBeat(LogEvent, frozen=True, tag="coordinator_beat/1"):
    """The coordinator of ``term`` lives; ``number`` rises with each beat.

    ``resigns``: the coordinator stops in order, and the next may stand at once. ``dismissed``: members that have asked
    to leave and need not wait for others to have copies of their state. ``interval_ms``: the time between beats;
    ``is_level``: all is committed up to the pinned ends. In the coordinators' partition only: ``rates``, the shares of
    limited rates, and ``waits``, the first ``WAITS_MAX`` moves that have not begun.
    """

    term: int
    number: int
    resigns: bool
    interval_ms: int
    is_level: bool
    dismissed: tuple[int, ...]
    rates: tuple[MemberRates, ...]
    waits: tuple[Wait, ...]


Signal: TypeAlias = (
    JoinAsked | MoveAsked | ExpelAsked | Beat | LeaveAsked | Copies | Load | ReleaseTold | Answer | CoordinatorBeat
)
