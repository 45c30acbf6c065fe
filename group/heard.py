"""PURE. What was heard in the signals: who lives, who wants to take part, who leaves, what is asked for.

A fold, like those of the logs: ``hear`` changes it by one record. It is no fact: a process that lost all of it asks
nobody, it hears the same again within a session.

Partition 0 is the coordinator's, the others are the members'. A process keeps to one of these, by its name if it has
one: so a process that comes back under its name is heard in the partition in which its predecessor was.
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
"""The partition in which the coordinator is heard."""
MEMBERS: Final = 4
"""So many partitions are the members'."""
PARTITIONS: Final = 1 + MEMBERS
REQUESTS_MAX: Final = 1_000
"""So many requests wait at most; who asks does so again."""
LIVES_INTERVALS: Final = 2
"""Who was heard in so many lives, as far as anybody can tell."""
FORGOTTEN_MAX: Final = 256
"""So many who are over may still be known: they are forgotten together."""
NEWS_MAX: Final = 10_000
"""Of so many events of the control log it is known when they were written."""


def partition_of(instance: str, birth: str) -> int:
    """The partition of the signals in which a process is heard."""
    return 1 + point_of_key((instance or birth).encode()) % MEMBERS


class News:
    """When the events of the control log were written; ``add`` in the order of the log."""

    def __init__(self) -> None:
        self._positions: deque[int] = deque(maxlen=NEWS_MAX)
        self._times_ms: deque[int] = deque(maxlen=NEWS_MAX)

    def add(self, position: int, timestamp_ms: int) -> None:
        """One more event."""
        self._positions.append(position)
        self._times_ms.append(timestamp_ms)

    def unread_since_ms(self, position: int) -> int | None:
        """When the first event was written that who stands at this position has not read; None: it has read all."""
        at = bisect_left(self._positions, position)
        return self._times_ms[at] if at < len(self._times_ms) else None


@dataclass(slots=True)
class Heard:
    """The fold. ``session_ms``, ``interval_ms``: of this application. Times are those of the signals."""

    session_ms: int
    interval_ms: int
    news: News = field(default_factory=News)
    silences: list[Silence] = field(default_factory=list)
    asked: dict[str, JoinAsked] = field(default_factory=dict)
    """Who wants to take part, by birth, in the order in which they asked first."""
    expected: int = 0
    """How many were started together, as the last one said who asked to join."""
    asked_ms: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """When they asked first, by the time of each partition."""
    leaving: dict[int, int] = field(default_factory=dict)
    """Who leaves, by incarnation, and since when by the time of its partition."""
    returns: set[int] = field(default_factory=set)
    """Who of these has said that its name will be back."""
    done: set[int] = field(default_factory=set)
    """Who of these commits nothing more: what it was granted last and did not take up stays its own."""
    moves: dict[str, MoveAsked] = field(default_factory=dict)
    expels: dict[str, ExpelAsked] = field(default_factory=dict)
    """What was asked for, by request."""
    released: set[int] = field(default_factory=set)
    """Source partitions, by number, of which something was released since whoever reads the log last took them."""
    beats: dict[int, Beat] = field(default_factory=dict)
    """The last one of each incarnation that counts."""
    copies: dict[int, dict[int, Copy]] = field(default_factory=dict)
    """How far the copies of each incarnation have come, by move: what it said last."""
    loads: Loads = field(default_factory=Loads)
    coordinator: CoordinatorBeat | None = None
    """The last one of the highest term."""
    _copies_in: dict[int, int] = field(default_factory=dict)
    """In which partition each incarnation told of its copies."""

    def __post_init__(self) -> None:
        self.silences = self.silences or [Silence(GAP_INTERVALS * self.interval_ms) for _ in range(PARTITIONS)]

    def hear(self, partition: int, append_ms: int, signal: Signal) -> None:
        """One record of a partition of the signals, with its timestamp."""
        self.silences[partition].hear(append_ms, *self._voices(partition, append_ms, signal))
        match signal:
            case Beat() if partition != COORDINATORS:
                self.answered(signal.birth)  # by whoever coordinated then
            case JoinAsked():
                self.asked[signal.birth] = signal
                self.expected = signal.expected
                self.asked_ms.setdefault(signal.birth, tuple(silence.now_ms for silence in self.silences))
            case LeaveAsked():
                self.answered(signal.birth)
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
            case ReleaseTold() if len(self.released) < REQUESTS_MAX:
                self.released.add(signal.partition)
            case CoordinatorBeat() if partition == COORDINATORS:
                if self.coordinator is None or signal.term >= self.coordinator.term:
                    self.coordinator = signal

    def recall(self, partition: int, append_ms: int, signal: Signal) -> None:
        """One record of a partition that stood there before it was listened to: it shows who lived then, and no more.
        What it asks for may have been done. Who has asked to join by now did so behind it.
        """
        silence = self.silences[partition]
        silence.recall(append_ms, *self._voices(partition, append_ms, signal))
        for birth, times in self.asked_ms.items():
            self.asked_ms[birth] = (*times[:partition], silence.now_ms, *times[partition + 1 :])

    def _voices(self, partition: int, append_ms: int, signal: Signal) -> tuple[str | int, ...]:
        """Whose life a record shows: in partition 0 a coordinator's, by its term; in the others a process's."""
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
        """Whether who beats has not read for a session what stands in the control log: it lives, and hears nobody."""
        since_ms = self.news.unread_since_ms(beat.control_position)
        return since_ms is not None and append_ms - since_ms >= self.session_ms

    def silence_of(self, instance: str, birth: str) -> Silence:
        """The fold of the partition in which a process is heard."""
        return self.silences[partition_of(instance, birth)]

    def beats_since(self, instance: str, birth: str, asked: str) -> bool:
        """Whether a process was heard after another one asked to join: so both are at work."""
        since_ms = self.asked_ms[asked][partition_of(instance, birth)]
        return self.silence_of(instance, birth).heard_ms(birth) > since_ms

    def silent_ms(self, instance: str, birth: str) -> int:
        """So long nothing was heard of a process."""
        return self.silence_of(instance, birth).silent_ms(birth)

    def lives(self, instance: str, birth: str) -> bool:
        """Whether a process was heard, a moment ago."""
        silence = self.silence_of(instance, birth)
        return silence.was_heard(birth) and silence.silent_ms(birth) < LIVES_INTERVALS * self.interval_ms

    def begin_anew(self, partition: int) -> None:
        """It was not listened to for some time: who asked there to join may have joined, and left, meanwhile, and what
        else was asked for may have been done. Who has died stays so: whoever stands because of that listens anew.
        """
        self.silences[partition].begin_anew()
        for birth in [b for b, asked in self.asked.items() if partition_of(asked.instance, b) == partition]:
            self.answered(birth)
        for incarnation in [i for i, told_in in self._copies_in.items() if told_in == partition]:
            self._forget_copies(incarnation)
        self.moves.clear()
        self.expels = {request: asked for request, asked in self.expels.items() if asked.cause == DIED}

    def is_ready(self, incarnation: int, move: int) -> bool:
        """Whether a member has said that its copy of a move is near enough."""
        copy = self.copies.get(incarnation, {}).get(move)
        return copy is not None and copy.is_ready

    def _forget_copies(self, incarnation: int) -> None:
        self.copies.pop(incarnation, None)
        self._copies_in.pop(incarnation, None)

    def answered(self, request: str) -> None:
        """A request was answered: that of a process to join, by its birth, or one for a move or an expulsion."""
        self.asked.pop(request, None)
        self.asked_ms.pop(request, None)
        self.moves.pop(request, None)
        self.expels.pop(request, None)

    def keep(self, members: Mapping[int, str]) -> None:
        """Forget who is over, when many are. ``members``: the births of those that are there, by incarnation."""
        if len(self.beats) + len(self.leaving) > 2 * len(members) + FORGOTTEN_MAX:
            self.beats = {i: beat for i, beat in self.beats.items() if i in members}
            self.leaving = {i: since for i, since in self.leaving.items() if i in members}
            self.done &= self.leaving.keys()
            self.returns &= self.leaving.keys()
        for incarnation in self.copies.keys() - members.keys():
            self._forget_copies(incarnation)
        if len(self.expels) > FORGOTTEN_MAX:
            self.expels = {request: asked for request, asked in self.expels.items() if asked.incarnation in members}
        births = {*members.values(), *self.asked}
        for silence in self.silences[COORDINATORS + 1 :]:
            silence.keep(births, FORGOTTEN_MAX)
