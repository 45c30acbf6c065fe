"""The control log of an application, read along while the application runs."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

from keylanes.keyrange.hashing import point_of_key
from keylanes.offsets.codec import decode
from keylanes.offsets.control_events import (
    CoordinatorElected,
    MemberExpelled,
    MemberFenced,
    MemberJoined,
    RangesGranted,
)
from keylanes.offsets.events import Event

from .deposed_cluster import CLIENT_SETTINGS

TOLD = (MemberExpelled, MemberFenced, RangesGranted)
QUIET_S_MAX = 2.0
"""A consumer with no event for so long is replaced."""


class Entry(NamedTuple):
    """An event of the control log. ``at``: the time of reading, in seconds of ``time.time``."""

    at: float
    offset: int
    event: Event


class ControlLog:
    """A thread reads a control log, from ``start`` to ``stop``. ``tell`` hears of fences, expulsions and grants."""

    def __init__(self, bootstrap: str, topic: str, tell: Callable[[str], None]) -> None:
        self._bootstrap, self._topic, self._tell = bootstrap, topic, tell
        self._entries: list[Entry] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, name="control log", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def entries(self) -> list[Entry]:
        """All entries up to now."""
        return list(self._entries)

    def joined(self) -> list[int]:
        """The incarnations in order of joining."""
        return [one.event.incarnation for one in self.entries() if isinstance(one.event, MemberJoined)]

    def elections(self) -> int:
        """The number of elections in the log."""
        return sum(isinstance(one.event, CoordinatorElected) for one in self.entries())

    def granted(self, incarnation: int) -> list[RangesGranted]:
        """The grants to an incarnation."""
        events = [one.event for one in self.entries() if isinstance(one.event, RangesGranted)]
        return [event for event in events if event.incarnation == incarnation]

    def owner(self, partition: int, key: bytes) -> int:
        """The incarnation with the last grant of a key; 0: none yet."""
        point = point_of_key(key)
        for one in reversed(self.entries()):
            event = one.event
            if not isinstance(event, RangesGranted) or event.partition != partition:
                continue
            if any(band.first <= point < band.end for band in event.bands):
                return event.incarnation
        return 0

    def rest_s(self, now: float) -> float:
        """The seconds since the last grant; 0: there was none."""
        times = [one.at for one in self.entries() if isinstance(one.event, RangesGranted)]
        return now - times[-1] if times else 0.0

    def find(self, is_it: Callable[[Entry], bool]) -> Entry | None:
        """The first entry with a property; None: there is none yet."""
        return next(filter(is_it, self.entries()), None)

    def _read(self) -> None:
        while not self._stopped.is_set():
            consumer = self._consumer()
            heard_s = time.monotonic()
            while not self._stopped.is_set() and time.monotonic() < heard_s + QUIET_S_MAX:
                message = consumer.poll(0.1)
                if message is None or message.error() is not None:
                    continue
                heard_s, event = time.monotonic(), decode(message.value())
                self._entries.append(Entry(time.time(), message.offset(), event))
                if isinstance(event, TOLD):
                    self._tell(f"control log {message.offset()}: {described(event)}")
            consumer.close()

    def _consumer(self) -> Consumer:
        """A new consumer behind the last entry. An old one stays with a leader that was deposed and still answers."""
        settings = {"group.id": "deposed", "enable.auto.commit": False, "isolation.level": "read_committed"}
        consumer = Consumer({"bootstrap.servers": self._bootstrap, **settings, **CLIENT_SETTINGS})
        begin = self._entries[-1].offset + 1 if self._entries else 0
        consumer.assign([TopicPartition(self._topic, 0, begin)])
        return consumer


def described(event: MemberExpelled | MemberFenced | RangesGranted) -> str:
    """An event in a few words."""
    who = f"incarnation {event.incarnation}"
    match event:
        case MemberExpelled():
            return f"{who} is expelled: {event.cause}"
        case MemberFenced():
            return f"{who} is fenced"
        case RangesGranted():
            bands = ", ".join(f"{band.first:08x}-{band.end:08x} from {band.offset_from}" for band in event.bands[:3])
            return f"{who} is granted partition {event.partition}, epoch {event.epoch}: {bands}"
