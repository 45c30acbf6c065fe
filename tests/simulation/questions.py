"""Questions for state, asked of every process in the moment in which a transaction has changed it.

An answer is what is committed. Who has sent the transaction may not know its outcome yet, and answers with what was
before. Who was expelled may not know that, but for no longer than ``query_view_ms_max``. A copy that may be so old
answers with what was committed at some time since.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from keylanes.brokers.protocol import TopicPartition
from keylanes.errors import StateNotReady
from keylanes.offsets.events import Event, StateChanged
from keylanes.runtime.stores.answers import LocalAnswers
from keylanes.state.keys import parse_key

from .twin import SEEN, Writes

if TYPE_CHECKING:
    from .process import Process
    from .world import World

KEYS_MAX: Final = 3
"""Of one transaction and partition."""
STALE_MS_MAX: Final = 300
"""So old a copy may be that is asked."""


class Changed(NamedTuple):
    """By whom a key was changed last, to what, and what it was before."""

    incarnation: int
    value: bytes | None
    before: bytes | None


class Questions:
    """Of one world."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.reached: Counter[str] = Counter()
        self._changed: dict[tuple[TopicPartition, bytes], Changed] = {}
        self._values: dict[tuple[TopicPartition, bytes], list[tuple[float, bytes | None]]] = {}
        """When a key was changed, and to what; the newest last."""
        self._expelled_s: dict[int, float] = {}

    def expelled(self, incarnation: int) -> None:
        """It is written down."""
        self._expelled_s.setdefault(incarnation, self.world.loop.time())

    def decided(self, events: Iterable[Event], wrote: Mapping[TopicPartition, Writes]) -> None:
        """A transaction is committed. Raises AssertionError for an answer that is wrong."""
        changed = next((event for event in events if isinstance(event, StateChanged)), None)
        for place, writes in wrote.items() if changed is not None else ():
            assert changed is not None, "it is looked at"
            for at, value in writes.items():
                last = self._changed.get((place, at))
                before = None if last is None else last.value
                self._changed[place, at] = Changed(changed.incarnation, value, before)
                self._values.setdefault((place, at), []).append((self.world.loop.time(), value))
            for at in list(writes)[:KEYS_MAX]:
                for process in self.world.alive():
                    if not (process.is_paused or process.was_killed):
                        self._ask(process, place, at)

    def _ask(self, process: "Process", place: TopicPartition, at: bytes) -> None:
        try:
            asking = process.member.keeper.queries.find(f"{place.topic}.{SEEN}").partitions[place.partition]
        except StateNotReady as error:
            self.reached[f"not answered: {type(error).__name__}"] += 1
            return
        try:
            answer = asking.read_committed(at, parse_key(at).point)
        except StateNotReady as error:
            self.reached[f"not answered: {type(error).__name__}"] += 1
            self._ask_copy(process, asking._replace(stale_ms_max=STALE_MS_MAX), place, at)
            return
        last, asked = self._changed[place, at], process.incarnation
        self.reached["answered"] += 1
        if answer == last.value or (last.incarnation == asked and answer == last.before):
            return
        what = f"{process.name} ({asked}) answers {answer!r} for {at!r} of {place}, and {last} is committed"
        assert asked in self._expelled_s, what
        passed_ms = (self.world.loop.time() - self._expelled_s[asked]) * 1000
        assert passed_ms <= process.settings.query_view_ms_max, f"{what}, {passed_ms:.0f} ms after it was expelled"
        self.reached["answered by who was expelled"] += 1

    def _ask_copy(self, process: "Process", asking: LocalAnswers, place: TopicPartition, at: bytes) -> None:
        try:
            answer = asking.read_committed(at, parse_key(at).point)
        except StateNotReady:
            self.reached["not answered by a copy"] += 1
            return
        self.reached["answered by a copy"] += 1
        since_s = self.world.loop.time() - STALE_MS_MAX / 1000
        before: bytes | None = None
        allowed = []
        for changed_s, value in self._values[place, at]:
            if changed_s <= since_s:
                before = value
            else:
                allowed.append(value)
        assert answer in (before, *allowed), (
            f"{process.name} ({process.incarnation}) has a copy that answers {answer!r} for {at!r} of {place}, which "
            f"was no value of it for {STALE_MS_MAX} ms: {before!r}, then {allowed}"
        )
