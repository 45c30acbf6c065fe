"""The writers of the state of source partitions: their beacons, and the succession of fenced writers.

1. A restore finds the beacons of fenced writers in order.
2. The next transaction of this process that changes the partition's state deletes these beacons and names the writers
   as succeeded, in the changelog and in the offset log.
3. Until such a transaction is committed, each further one does the same.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from ...brokers.protocol import Outgoing
from ...offsets.decide import WRITERS_MAX
from ...offsets.events import StateChanged
from ...offsets.ledger import Ledger, SourcePartition
from ...state.changelog import Beacon, beacon_key, changelog_topic, encode_beacon
from ...state.changes import StateChanges
from ...state.restore import Writers


class StateLogs(Protocol):
    """The logs of the application, as this process reads them."""

    @property
    def ledger(self) -> Ledger:
        """The fold of both logs, as far as read."""

    @property
    def incarnation(self) -> int:
        """The incarnation of this process."""

    async def read_of(self, places: Sequence[SourcePartition]) -> None:
        """Read the logs of these partitions to their ends. Raises LogError, BrokerError."""


class StateWriters:
    """The writers of all partitions, as this process knows them."""

    def __init__(self, app: str, logs: StateLogs) -> None:
        self.app = app
        self.logs = logs
        self._succeeded: dict[SourcePartition, tuple[int, ...]] = {}
        """Fenced writers that no committed transaction has named yet as succeeded."""
        self._seen: dict[SourcePartition, set[int]] = {}
        """Fenced writers with beacons that were found in order."""

    async def ask(self, place: SourcePartition) -> Writers:
        """Read the logs; the writers of a partition's state. Raises LogError, BrokerError."""
        await self.logs.read_of([place])
        return self.by_logs([place], self.logs.ledger, self.logs.incarnation)[place]

    def by_logs(self, places: Iterable[SourcePartition], ledger: Ledger, own: int) -> dict[SourcePartition, Writers]:
        """The writers of the state of partitions, by a ledger. ``own``: the incarnation of this process."""
        living = frozenset(member.incarnation for member in ledger.control.unfenced_members())
        return {place: self._writers(ledger, place, living, own) for place in places}

    def _writers(self, ledger: Ledger, place: SourcePartition, living: frozenset[int], own: int) -> Writers:
        """The writers of one partition, without succeeded ones. A range of the partition may have been taken up before,
        or be taken up now: the succession may be committed while the beacons are looked for again.
        """
        succeeding = self._seen.setdefault(place, set())
        changed = {i: last for i, last in ledger.partition(place).changed.items() if i not in succeeding}
        newest = frozenset(sorted(changed)[-WRITERS_MAX:])
        maximum = ledger.control.incarnation_max
        return Writers(changed, newest, living, maximum, own=own, succeeding=succeeding)

    def succeed(self, place: SourcePartition, known: Writers) -> None:
        """Delete the beacons of fenced writers with the next change: they were found in order."""
        seen = self._seen[place]
        new = tuple(i for i in sorted(known.required) if known.is_fenced(i) and i not in seen)
        seen.update(new)
        if new:
            self._succeeded[place] = (*self._succeeded.get(place, ()), *new)

    def records(
        self, changes: Sequence[StateChanges], incarnation: int, transaction: int
    ) -> tuple[list[Outgoing], list[StateChanged]]:
        """The part of a transaction that is state: changelog records with the beacons, and the events."""
        records: list[Outgoing] = []
        events: list[StateChanged] = []
        key, beacon = encode_beacon(Beacon(incarnation, transaction))
        for changed in changes:
            topic, partition = changelog_topic(self.app, changed.place[0]), changed.place[1]
            records += [Outgoing(topic, partition, cell.key, value) for cell, value in changed.last.items()]
            succeeded = self._succeeded.get(changed.place, ())
            records += [Outgoing(topic, partition, beacon_key(one), None) for one in succeeded]
            records.append(Outgoing(topic, partition, key, beacon))
            events.append(
                StateChanged(
                    incarnation=incarnation,
                    transaction=transaction,
                    topic=changed.place[0],
                    partition=partition,
                    changes=len(changed.last),
                    succeeded=succeeded,
                )
            )
        return records, events

    def note_committed(self, place: SourcePartition) -> None:
        """A transaction was committed that names the succeeded writers of a partition."""
        self._succeeded.pop(place, None)
