"""PURE. The fold of the signals: processes alive, processes asking to join, members leaving, open requests.

``hear`` adds one record to the fold. Nothing here is a fact: a process with an empty fold asks nobody for the lost
signals, because the others tell all of them again within a session.

The coordinator speaks in partition 0, the members in the other partitions. A process speaks in one partition only,
chosen by the name, or by the birth of a process without a name. So a process with the name of a predecessor is heard in
the partition of the predecessor.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..keyrange.hashing import point_of_key
from ..offsets.signals import (
    DIED,
    Beat,
    CoordinatorBeat,
    Copies,
    Copy,
    ExpelAsked,
    JoinAsked,
    LeaveAsked,
    Load,
    MoveAsked,
    ReleaseTold,
    Signal,
)
from .loads import Loads
from .silence import GAP_INTERVALS, Silence

COORDINATORS: Final = 0
"""The partition of the coordinator."""
MEMBERS: Final = 4
"""The number of partitions for the members."""
PARTITIONS: Final = 1 + MEMBERS
"""The number of partitions of the signals."""
REQUESTS_MAX: Final = 1_000
"""The most open requests of a kind; further requests are not heard, and their senders ask again."""
LIVES_INTERVALS: Final = 2
"""A process lives if it was heard within this many intervals, as far as anybody can tell."""
FORGOTTEN_MAX: Final = 256
"""The most former members that stay known. When there are more, ``keep`` forgets all of them together."""
NEWS_MAX: Final = 10_000
"""The number of events of the control log with a known time: the newest events."""


def partition_of(instance: str, birth: str) -> int:
    """The partition of the signals in which a process is heard."""
    return 1 + point_of_key((instance or birth).encode()) % MEMBERS


class News:
    """The times at which the events of the control log were written. Call ``add`` in the order of the log."""

    def __init__(self) -> None:
        self._positions: deque[int] = deque(maxlen=NEWS_MAX)
        self._times_ms: deque[int] = deque(maxlen=NEWS_MAX)

    def add(self, position: int, timestamp_ms: int) -> None:
        """Add one event."""
        self._positions.append(position)
        self._times_ms.append(timestamp_ms)

    def unread_since_ms(self, position: int) -> int | None:
        """The time of the first event that a reader at ``position`` has not read. None: all events are read."""
        at = bisect_left(self._positions, position)
        return self._times_ms[at] if at < len(self._times_ms) else None


@dataclass(slots=True)
class Heard:
    """The fold. ``session_ms`` and ``interval_ms`` are settings of the application. Times in the fold are times of the
    partitions of the signals, in ms (silence.py).
    """

    session_ms: int
    interval_ms: int
    news: News = field(default_factory=News)
    silences: list[Silence] = field(default_factory=list)
    """The silence of the senders in each partition."""
    join_requests: dict[str, JoinAsked] = field(default_factory=dict)
    """Requests to join, by birth, in the order of each process's first request."""
    expected: int = 0
    """The number of processes that were started together, by the last request to join."""
    join_request_ms: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """When a process first asked to join, by birth: the times of all partitions at that moment."""
    leaving: dict[int, int] = field(default_factory=dict)
    """Leaving members: incarnation to the time of the first request to leave, by the clock of the partition."""
    returns: set[int] = field(default_factory=set)
    """The leaving members whose names will be back."""
    done: set[int] = field(default_factory=set)
    """Leaving members that have made their last commit. Such a member may own a range that was granted too late to be
    taken up.
    """
    moves: dict[str, MoveAsked] = field(default_factory=dict)
    """Open requests for moves, by request."""
    expels: dict[str, ExpelAsked] = field(default_factory=dict)
    """Open requests for expulsions, by request."""
    release_partitions: set[int] = field(default_factory=set)
    """The numbers of source partitions for which a release was told. The reader of the offset log empties the set, and
    reads these partitions.
    """
    beats: dict[int, Beat] = field(default_factory=dict)
    """The last beat of each incarnation. Beats of a deaf process do not count (``is_deaf``)."""
    copies: dict[int, dict[int, Copy]] = field(default_factory=dict)
    """The progress of copies that each member told last: by incarnation, then by move."""
    loads: Loads = field(default_factory=Loads)
    coordinator: CoordinatorBeat | None = None
    """The last beat of the highest term."""
    _copies_in: dict[int, int] = field(default_factory=dict)
    """The partition in which each incarnation told of its copies."""

    def __post_init__(self) -> None:
        self.silences = self.silences or [Silence(GAP_INTERVALS * self.interval_ms) for _ in range(PARTITIONS)]

    def hear(self, partition: int, append_ms: int, signal: Signal) -> None:
        """Take one record of a partition of the signals, with its timestamp."""
        self.silences[partition].hear(append_ms, *self._voices(partition, append_ms, signal))
        match signal:
            case Beat() if partition != COORDINATORS:
                self.drop_request(signal.birth)  # only a member beats: an earlier coordinator has admitted the process
            case JoinAsked():
                self.join_requests[signal.birth] = signal
                self.expected = signal.expected
                self.join_request_ms.setdefault(signal.birth, tuple(silence.now_ms for silence in self.silences))
            case LeaveAsked():
                self.drop_request(signal.birth)
                self.leaving.setdefault(signal.incarnation, self.silences[partition].now_ms)
                if signal.returns_in_ms:
                    self.returns.add(signal.incarnation)
                if signal.is_done:
                    self.done.add(signal.incarnation)
            case Copies() if partition != COORDINATORS:
                self.copies[signal.incarnation] = {copy.move: copy for copy in signal.copies}
                self._copies_in[signal.incarnation] = partition
            case MoveAsked() if len(self.moves) < REQUESTS_MAX:
                self.moves[signal.request] = signal
            case ExpelAsked() if len(self.expels) < REQUESTS_MAX:
                self.expels[signal.request] = signal
            case Load():
                self.loads.hear(signal, append_ms)
            case ReleaseTold() if len(self.release_partitions) < REQUESTS_MAX:
                self.release_partitions.add(signal.partition)
            case CoordinatorBeat() if partition == COORDINATORS:
                if self.coordinator is None or signal.term >= self.coordinator.term:
                    self.coordinator = signal

    def recall(self, partition: int, append_ms: int, signal: Signal) -> None:
        """Take one record written before this process began to listen. The record shows only who lived then: a request
        in the record may be answered already. Each request to join in the fold counts as newer than the record.
        """
        silence = self.silences[partition]
        silence.recall(append_ms, *self._voices(partition, append_ms, signal))
        for birth, times in self.join_request_ms.items():
            self.join_request_ms[birth] = (*times[:partition], silence.now_ms, *times[partition + 1 :])

    def _voices(self, partition: int, append_ms: int, signal: Signal) -> tuple[str | int, ...]:
        """The voices that a record shows alive: a term in partition 0, the birth of a process elsewhere. A beat that
        counts is kept in ``beats``.
        """
        match signal:
            case JoinAsked():
                return (signal.birth,)
            case LeaveAsked() if partition != COORDINATORS:
                return (signal.birth,)
            case Beat() if partition != COORDINATORS:
                if self.is_deaf(signal, append_ms):
                    return ()
                self.beats[signal.incarnation] = signal
                return (signal.birth,)
            case CoordinatorBeat() if partition == COORDINATORS:
                return (signal.term,)
        return ()

    def is_deaf(self, beat: Beat, append_ms: int) -> bool:
        """Whether the sender of a beat has left events of the control log unread for a session. A deaf process beats,
        but obeys no decision. So a deaf process counts as silent.
        """
        since_ms = self.news.unread_since_ms(beat.control_position)
        return since_ms is not None and append_ms - since_ms >= self.session_ms

    def silence_of(self, instance: str, birth: str) -> Silence:
        """The fold of the partition in which a process is heard."""
        return self.silences[partition_of(instance, birth)]

    def beats_since(self, instance: str, birth: str, asked: str) -> bool:
        """Whether a process was heard after another process first asked to join. If so, both are at work.
        ``join_requests``:
        the birth of the other process.
        """
        since_ms = self.join_request_ms[asked][partition_of(instance, birth)]
        return self.silence_of(instance, birth).heard_ms(birth) > since_ms

    def silent_ms(self, instance: str, birth: str) -> int:
        """The time in ms since a process was heard last."""
        return self.silence_of(instance, birth).silent_ms(birth)

    def lives(self, instance: str, birth: str) -> bool:
        """Whether a process was heard within the last ``LIVES_INTERVALS`` intervals."""
        silence = self.silence_of(instance, birth)
        return silence.was_heard(birth) and silence.silent_ms(birth) < LIVES_INTERVALS * self.interval_ms

    def begin_anew(self, partition: int) -> None:
        """Begin a partition anew after a time without listening. Requests heard before may have been answered since,
        and a process that asked there to join may have joined and left. So these requests are dropped. Requests to
        expel dead processes stay: a process that stands for coordinator because of a death begins to listen anew, and
        has to expel the dead process after its election.
        """
        self.silences[partition].begin_anew()
        for birth in [b for b, asked in self.join_requests.items() if partition_of(asked.instance, b) == partition]:
            self.drop_request(birth)
        for incarnation in [i for i, told_in in self._copies_in.items() if told_in == partition]:
            self._forget_copies(incarnation)
        self.moves.clear()
        self.expels = {request: asked for request, asked in self.expels.items() if asked.cause == DIED}

    def is_ready(self, incarnation: int, move: int) -> bool:
        """Whether a member has said that its copy for a move is near enough."""
        copy = self.copies.get(incarnation, {}).get(move)
        return copy is not None and copy.is_ready

    def _forget_copies(self, incarnation: int) -> None:
        self.copies.pop(incarnation, None)
        self._copies_in.pop(incarnation, None)

    def drop_request(self, request: str) -> None:
        """Drop an answered request: a request to join, by the birth, or a request for a move or an expulsion."""
        self.join_requests.pop(request, None)
        self.join_request_ms.pop(request, None)
        self.moves.pop(request, None)
        self.expels.pop(request, None)

    def keep(self, members: Mapping[int, str]) -> None:
        """Forget members that are gone, once there are many. ``members``: the births of the present members, by
        incarnation.
        """
        if len(self.beats) + len(self.leaving) > 2 * len(members) + FORGOTTEN_MAX:
            self.beats = {i: beat for i, beat in self.beats.items() if i in members}
            self.leaving = {i: since for i, since in self.leaving.items() if i in members}
            self.done &= self.leaving.keys()
            self.returns &= self.leaving.keys()
        for incarnation in self.copies.keys() - members.keys():
            self._forget_copies(incarnation)
        if len(self.expels) > FORGOTTEN_MAX:
            self.expels = {request: asked for request, asked in self.expels.items() if asked.incarnation in members}
        births = {*members.values(), *self.join_requests}
        for silence in self.silences[COORDINATORS + 1 :]:
            silence.keep(births, FORGOTTEN_MAX)
