"""The facts in the control log ``<app>.control``: one partition, written by the coordinator. See events.py."""

from typing import TypeAlias

from .event_values import Band, LogEvent, OfPartition, PinnedEnd, PlannedMove, Sourced, Span, Writer


class AppCreated(LogEvent, frozen=True, tag="app_created/1"):
    """The first event of an application: its name, the hash function and the partition count of its offset log."""

    app: str
    hash_name: str
    log_partitions: int


class CoordinatorElected(LogEvent, frozen=True, tag="coordinator_elected/2"):
    """``birth`` coordinates from here on if ``term`` is higher than every term before it in the log.

    ``instance``: the name of the process; ``birth``: a text unique to this run of the process. ``app_birth``: a text
    that no other application's logs have. The first election fixes ``app_birth``; an election with another value does
    not count. The numbers of a term begin at 1.
    """

    term: int
    instance: str
    birth: str
    app_birth: str


class _Numbered(LogEvent, frozen=True):
    """A decision of the coordinator of ``term``: the ``number``-th in its term. A decision counts once and in turn."""

    term: int
    number: int


class MemberJoined(_Numbered, frozen=True, tag="member_joined/2"):
    """A process takes part as ``incarnation``, the next number above all earlier incarnations; once for each ``birth``.

    ``transactional_ids``: no other member ever gets these ids, and fencing the member means all of them. ``host``,
    ``endpoint``: the host of the process and its address for requests, "" if not given. ``capacity``: relative to 1.0.
    ``level``: the highest level of events that the process reads. ``topics``: the topics that the process can handle;
    ``writes``: its declared output topics; ``until_level``: the process ends when the group has committed everything
    before the pinned ends.
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
    """The process ``birth`` may not join: its name is in use, its level too low, or a store differs."""

    birth: str
    reason: str


class MemberExpelled(_Numbered, frozen=True, tag="member_expelled/2"):
    """The incarnation may not commit any more. The event itself ends no epoch: the next grant of the points does.

    ``cause``: silent, left, superseded, stuck, died or operator. ``hold_ms``: the time for which its ranges with state
    wait for the return of its name.
    """

    incarnation: int
    cause: str
    hold_ms: int


class MemberFenced(_Numbered, frozen=True, tag="member_fenced/2"):
    """All transactional ids of an expelled incarnation were fenced after the expulsion; its last transaction is
    decided.
    """

    incarnation: int


class PlanMade(_Numbered, frozen=True, tag="plan_made/1"):
    """The planned moves. A plan takes effect with the last of its ``parts``, and replaces all moves not yet begun.

    ``group_epoch``: the number of causes so far, all of which the plan answers; ``cause``: in words, "load" when no
    event of this log is the cause; ``input``: the position of the control log that the plan was made from.
    """

    plan: int
    group_epoch: int
    cause: str
    input: int
    part: int
    parts: int
    moves: tuple[PlannedMove, ...]


class CopyAsked(OfPartition, _Numbered, frozen=True, tag="copy_asked/1"):
    """The incarnation shall have a copy of the state of these bands, before it owns them (role "learner"), or for later
    (role "standby"). ``bytes_per_s``: the limit of the copying; 0: no limit.
    """

    move: int
    incarnation: int
    topic: str
    partition: int
    bands: tuple[Span, ...]
    role: str
    bytes_per_s: int


class CopyEnded(_Numbered, frozen=True, tag="copy_ended/1"):
    """The copy requested under ``move`` is of no use any more."""

    move: int
    reason: str


class ReleaseAsked(OfPartition, _Numbered, frozen=True, tag="release_asked/1"):
    """The owner at ``epoch`` shall release ``[first, end)`` within ``deadline_ms``. A request."""

    move: int
    incarnation: int
    epoch: int
    topic: str
    partition: int
    first: int
    end: int
    deadline_ms: int


class ReleaseWithdrawn(_Numbered, frozen=True, tag="release_withdrawn/1"):
    """Points of ``move`` without a release stay with their owner."""

    move: int
    reason: str


class PartitionStarted(OfPartition, _Numbered, frozen=True, tag="partition_started/3"):
    """The application reads a source partition from ``offset`` on: the audit's left edge.

    ``start``: the configured start, in its own words, or "added" for a partition that came to its topic later (see
    starts.py). ``partitions``: the number of the topic's partitions at that time.
    """

    topic: str
    partition: int
    offset: int
    start: str
    partitions: int


class RangesGranted(OfPartition, _Numbered, frozen=True, tag="ranges_granted/2"):
    """Bands of one source partition belong to ``incarnation`` at ``epoch``, each from its own offset.

    The offset is the edge that the coordinator found by reading the offset log to its end, or the edge in the release.
    An epoch is never used again over overlapping points; over 256 KB a grant is written as several events of one epoch.
    ``bounds``: the cuts of hot bands, in rising order; ``writers``: the writers with changes that the changelog must
    show before the state of these bands is whole.
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

    ``kind``: value or map; ``key_type``: the type of a map's keys, else empty; ``value_type``: the shape of the values;
    ``codec``: the name of the codec. All of this stays for ever: the number of the store is part of every state key,
    the rest tells how to read the bytes of a value.
    """

    store: int
    name: str
    topic: str
    kind: str
    key_type: str
    value_type: str
    codec: str


class SourceIdentified(_Numbered, frozen=True, tag="source_identified/2"):
    """The broker's id for the source topic is ``identity``. Offsets of another topic of that name do not count here."""

    topic: str
    identity: str


class EndsPinned(_Numbered, frozen=True, tag="ends_pinned/1"):
    """The ends at which members with ``until_level`` stop; the first event counts until no such member is left."""

    ends: tuple[PinnedEnd, ...]


class AnswerAsked(_Numbered, frozen=True, tag="answer_asked/1"):
    """A member shall plan, from the control log before position ``input``, within ``deadline_ms``."""

    input: int
    incarnation: int
    deadline_ms: int


class LevelRaised(_Numbered, frozen=True, tag="level_raised/1"):
    """Events up to ``level`` may be written from here on. A process with a lower level must not take part."""

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
"""The decisions of a coordinator: each has a term and a number."""
ControlEvent: TypeAlias = AppCreated | CoordinatorElected | Decision
