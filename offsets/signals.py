"""What members tell each other in ``<app>.signals``: requests and what they see. Nothing here is a fact.

Whoever loses all of it is slow, never wrong. Partition 0 holds what the coordinator tells, the others what members and
operators tell. The bytes are those of events (see events.py): an array whose first item is the tag.
"""

from typing import Annotated, Final, TypeAlias

import msgspec

from .event_values import RATE_PER_S_MAX, Edge, LogEvent, PlannedMove, Sourced

CAPACITY_MAX: Final = 1_000_000.0
DIED: Final = "died"
"""Why a member shall be expelled: whoever started its process has seen its end."""
SLOT: Final = "slot"
"""A move has not begun, as its target makes as many other copies as it may."""
TURN: Final = "turn"
"""As many moves with state have begun as may begin in a minute."""
COOLING: Final = "cooling"
"""The same, while only half as many may."""
WAITS_MAX: Final = 100


class StoreAsked(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A store that a member's handlers need; the fields are those of ``store_declared``."""

    name: str
    topic: str
    kind: str
    key_type: str
    value_type: str
    codec: str


class JoinAsked(LogEvent, frozen=True, tag="join_asked/1"):
    """A process wants to take part; the fields are those of ``member_joined``.

    ``producers``: how many transactional ids it needs; ``stores``: what it needs declared; ``expected``: how many
    processes are being started with it, itself included.
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


class MoveAsked(LogEvent, frozen=True, tag="move_asked/1"):
    """Points ``[first, end)`` of a source partition, held at ``epoch``, shall go to incarnation ``target`` (0: whoever
    the coordinator finds best). ``request``: text of its own, ``by``: who asks, in words.
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
    """How many attempts a member may begin in a second at records of a topic whose rate is limited for the whole group:
    its share.
    """

    topic: str
    share_per_s: Annotated[float, msgspec.Meta(ge=0, le=RATE_PER_S_MAX)]


class Beat(LogEvent, frozen=True, tag="beat/1"):
    """A member lives, and has read the control log up to ``control_position``. ``loop_lag_ms``: how late its event loop
    came to this beat.

    ``term``, ``number``: of the newest coordinator's beat that it has heard, 0 for none. ``rates``: its shares now.
    """

    incarnation: int
    birth: str
    control_position: int
    loop_lag_ms: int
    term: int
    number: int
    rates: tuple[Rate, ...]


class LeaveAsked(LogEvent, frozen=True, tag="leave_asked/1"):
    """A member stops in order. ``returns_in_ms``: its name will be back by then; 0: it will not. ``is_done``: it has
    made its last commit.
    """

    incarnation: int
    birth: str
    returns_in_ms: int
    is_done: bool


class Copy(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How far the copy of a move has come: it has read the changelog up to ``position`` of ``high``."""

    move: int
    position: int
    high: int
    bytes_per_s: int
    is_ready: bool


class Copies(LogEvent, frozen=True, tag="copies/1"):
    """How far a member's copies have come."""

    incarnation: int
    copies: tuple[Copy, ...]


class BandLoad(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a band took in an interval: ``busy_us`` of handlers' time and ``records``; how many are left of it, and how
    large its state is. ``points``: where the time was spent, as (first point of a cell of the declared cut, busy_us) in
    rising order, light neighbours melted into the heaviest; may be ().
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
    """What a member's bands took in ``interval_ms``: those that have changed since they were told."""

    incarnation: int
    interval_ms: int
    bands: tuple[BandLoad, ...]


class ReleaseTold(LogEvent, frozen=True, tag="released/1"):
    """The member's ``transaction``, which was committed, released these bands: the log will show it."""

    incarnation: int
    transaction: int
    move: int
    topic: str
    partition: int
    bands: tuple[Edge, ...]


class Answer(LogEvent, frozen=True, tag="answer/1"):
    """What a member that was asked for a plan (``answer_asked`` with this ``input``) would do."""

    incarnation: int
    input: int
    moves: tuple[PlannedMove, ...]


class MemberRates(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The shares of a member. Of a topic that is not among them it keeps the share that it has."""

    incarnation: int
    rates: tuple[Rate, ...]


class Wait(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Why a planned move with state has not begun: one of the words above."""

    move: int
    reason: str


class CoordinatorBeat(LogEvent, frozen=True, tag="coordinator_beat/1"):
    """The coordinator of ``term`` lives; ``number`` rises with each beat.

    ``resigns``: it stops in order, and the next may stand at once. ``dismissed``: the members that have asked to leave
    and need not wait for others to have copies of their state. ``interval_ms``: how often beats are due;
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
