"""The facts in the control log ``<app>.control``: one partition, written by the coordinator. See events.py."""

from typing import TypeAlias

from .event_values import Band, LogEvent, PinnedEnd, PlannedMove, Sourced, Span, Writer


class AppCreated(LogEvent, frozen=True, tag="app_created/1"):
    """The first event of an application: its name, the hash function and the partition count of its offset log."""

    app: str
    hash_name: str
    log_partitions: int


class CoordinatorElected(LogEvent, frozen=True, tag="coordinator_elected/2"):
    """``birth`` coordinates from here on if ``term`` is higher than every term before it in the log.

    ``instance``: the name that the process goes by; ``birth``: text that no other run of a process ever had.
    ``app_birth``: text that no other application's logs have. The first election fixes it, and one with another does
    not count. The numbers of its term begin at 1.
    """

    term: int
    instance: str
    birth: str
    app_birth: str


class _Numbered(LogEvent, frozen=True):
    """A decision of the coordinator of ``term``: the ``number``-th in its term. It counts once and in turn."""

    term: int
    number: int


class MemberJoined(_Numbered, frozen=True, tag="member_joined/2"):
    """A process takes part as ``incarnation``, which is one above all before it; once for each ``birth``.

    ``transactional_ids``: nobody else ever gets one of these, and fencing the member means all of them. ``host``,
    ``endpoint``: where it runs and where it may be asked, "" if it does not say. ``capacity``: relative to 1.0.
    ``level``: up to which it reads events. ``topics``: what it can handle; ``writes``: the topics that it declared to
    write to; ``until_level``: it ends when the group is level.
    """

    incarnation: int
    instance: str
    birth: str
    transactional_ids: tuple[str, ...]
    host: str
    endpoint: str
    capacity: float
    level: int
    topics: tuple[Sourced, ...]
    writes: tuple[str, ...]
    until_level: bool


class MemberRefused(_Numbered, frozen=True, tag="member_refused/1"):
    """Who asked to join as ``birth`` may not: its name is in use, its level too low, a store is another one."""

    birth: str
    reason: str


class MemberExpelled(_Numbered, frozen=True, tag="member_expelled/2"):
    """The incarnation is to commit no more. Ends nothing by itself: the next grant does.

    ``cause``: silent, left, superseded, stuck or operator. ``hold_ms``: so long its ranges with state wait for the
    return of its name.
    """

    incarnation: int
    cause: str
    hold_ms: int


class MemberFenced(_Numbered, frozen=True, tag="member_fenced/2"):
    """All transactional ids of the incarnation were fenced after it was expelled; its last transaction is decided."""

    incarnation: int


class PlanMade(_Numbered, frozen=True, tag="plan_made/1"):
    """What shall be: takes effect with the last of its ``parts``, and replaces what no earlier move has begun.

    ``group_epoch``: the causes that it answers; ``cause``: in words, "load" when it is no event of this log; ``input``:
    the position of the control log that it was made from.
    """

    plan: int
    group_epoch: int
    cause: str
    input: int
    part: int
    parts: int
    moves: tuple[PlannedMove, ...]


class CopyAsked(_Numbered, frozen=True, tag="copy_asked/1"):
    """The incarnation shall have a copy of the state of these bands before it owns them (role "learner"), or to have
    one (role "standby"). ``bytes_per_s``: no faster than that; 0: as fast as it goes.
    """

    move: int
    incarnation: int
    topic: str
    partition: int
    bands: tuple[Span, ...]
    role: str
    bytes_per_s: int


class CopyEnded(_Numbered, frozen=True, tag="copy_ended/1"):
    """The copy that was asked for under this move is of no use any more."""

    move: int
    reason: str


class ReleaseAsked(_Numbered, frozen=True, tag="release_asked/1"):
    """The owner shall release ``[first, end)``, which it holds at ``epoch``, within ``deadline_ms``. A request."""

    move: int
    incarnation: int
    epoch: int
    topic: str
    partition: int
    first: int
    end: int
    deadline_ms: int


class ReleaseWithdrawn(_Numbered, frozen=True, tag="release_withdrawn/1"):
    """What was not released of this move yet stays where it is."""

    move: int
    reason: str


class PartitionStarted(_Numbered, frozen=True, tag="partition_started/3"):
    """The application reads a source partition from ``offset`` on: the audit's left edge.

    ``start``: what it was told to start from, in its own words, or "added" for a partition that came to its topic
    later (see starts.py). ``partitions``: how many the topic had then.
    """

    topic: str
    partition: int
    offset: int
    start: str
    partitions: int


class RangesGranted(_Numbered, frozen=True, tag="ranges_granted/2"):
    """Bands of one source partition belong to ``incarnation`` at ``epoch``, each from its own offset.

    The offset is the edge that was found by reading the offset log to its end, or stands in what released it. An epoch
    is never used again over overlapping points; over 256 KB a grant is written as several events of one epoch.
    ``bounds``: where hot bands were cut, in rising order; ``writers``: whose changes the changelog must show before the
    state of these bands is whole.
    """

    move: int
    incarnation: int
    epoch: int
    topic: str
    partition: int
    bands: tuple[Band, ...]
    bounds: tuple[int, ...]
    writers: tuple[Writer, ...]


class StoreDeclared(_Numbered, frozen=True, tag="store_declared/2"):
    """The application keeps state in ``store`` (dense, from 0), called ``name``, for the keys of a source topic.

    ``kind``: value or map; ``key_type``: of a map's keys, else empty; ``value_type``: the shape of its values;
    ``codec``: its name. All of it stays for ever: the number of the store is part of every state key, the rest says
    what the bytes behind it are.
    """

    store: int
    name: str
    topic: str
    kind: str
    key_type: str
    value_type: str
    codec: str


class SourceIdentified(_Numbered, frozen=True, tag="source_identified/2"):
    """The broker calls the source topic ``identity``. Offsets of another topic of that name mean nothing here."""

    topic: str
    identity: str


class EndsPinned(_Numbered, frozen=True, tag="ends_pinned/1"):
    """The ends of a run to its level; the first counts until no member that ends at the level is left."""

    ends: tuple[PinnedEnd, ...]


class AnswerAsked(_Numbered, frozen=True, tag="answer_asked/1"):
    """A member shall plan, by what stands in the control log before position ``input``, within ``deadline_ms``."""

    input: int
    incarnation: int
    deadline_ms: int


class LevelRaised(_Numbered, frozen=True, tag="level_raised/1"):
    """Events up to ``level`` may be written from here on. Who reads less must not take part."""

    level: int


Decision: TypeAlias = (
    MemberJoined
    | MemberRefused
    | MemberExpelled
    | MemberFenced
    | PlanMade
    | CopyAsked
    | CopyEnded
    | ReleaseAsked
    | ReleaseWithdrawn
    | PartitionStarted
    | RangesGranted
    | StoreDeclared
    | SourceIdentified
    | EndsPinned
    | AnswerAsked
    | LevelRaised
)
"""What a coordinator decides: each has a term and a number."""
ControlEvent: TypeAlias = AppCreated | CoordinatorElected | Decision
