"""PURE. Which end of a partition counts, of the ends that its replicas lead to.

A leader that was deposed and is cut off from the other brokers goes on telling its old end. So each replica is asked
which leader it knows, and that leader for the end. The end at the newest leader epoch counts, as soon as
R - min.insync.replicas + 1 of the R replicas have told.

Why no more are needed: what was acknowledged before the question lies at min.insync.replicas replicas, and each of them
knew its leader epoch by then. One of them is among the replicas that told. The leader that it knows has that epoch or a
newer one, so the record lies below the end that this leader tells. Assumed: no unclean election.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from .brokers import Place, Span

BELIEVED_IN_SYNC = 1
"""min.insync.replicas where brokers do not tell: all replicas have to agree."""


class ReplicaAnswer(NamedTuple):
    """What a replica tells of its partition: who keeps it, and the epoch and the span of the leader that it knows."""

    replicas: tuple[int, ...]
    leader_epoch: int
    span: Span


class Poll:
    """One question for the ends of partitions, and what their replicas told. ``in_sync_min``: by topic."""

    def __init__(self, places: Iterable[Place], in_sync_min: Mapping[str, int]) -> None:
        self._in_sync_min = in_sync_min
        self._replicas: dict[Place, tuple[int, ...]] = dict.fromkeys(places, ())
        self._told: dict[Place, dict[int, ReplicaAnswer]] = {place: {} for place in self._replicas}
        self._accepted: set[Place] = set()

    def expect(self, replicas: Mapping[Place, tuple[int, ...]]) -> None:
        """Take who keeps partitions, as some broker knows it."""
        self._replicas.update(replicas)

    def hear(self, node: int, told: Mapping[Place, ReplicaAnswer]) -> None:
        """Take what a replica told."""
        for place, one in told.items():
            self._told[place][node] = one

    def newest_answer(self, place: Place) -> ReplicaAnswer | None:
        """What was told at the newest leader epoch; None: nothing was told."""
        told = self._told[place].values()
        return max(told, key=lambda one: (one.leader_epoch, one.span.end), default=None)

    def is_confirmed(self, place: Place) -> bool:
        """Whether enough replicas told, of those that keep the partition at the newest leader epoch."""
        newest, told = self.newest_answer(place), self._told[place]
        if newest is None:
            return False
        needed = len(newest.replicas) - self._in_sync(place) + 1
        return sum(node in told for node in newest.replicas) >= max(1, needed)

    def open_places(self) -> list[Place]:
        """The partitions that are neither confirmed nor accepted."""
        return [place for place in self._told if place not in self._accepted and not self.is_confirmed(place)]

    def missing_replicas(self, place: Place) -> set[int]:
        """The replicas that told nothing of a partition."""
        newest = self.newest_answer(place)
        known = {*self._replicas[place], *(() if newest is None else newest.replicas)}
        return known - self._told[place].keys()

    def places_to_ask(self) -> dict[int, list[Place]]:
        """The partitions to ask each replica for."""
        asked: dict[int, list[Place]] = {}
        for place in self.open_places():
            for node in self.missing_replicas(place):
                asked.setdefault(node, []).append(place)
        return asked

    def places_to_believe(self, silent: Collection[int]) -> set[Place]:
        """Open partitions whose end can only be believed: all replicas that told nothing are silent, and as
        min.insync.replicas is 1 each of them alone may have acknowledged something.
        """
        return {
            place
            for place in self.open_places()
            if self._in_sync(place) <= BELIEVED_IN_SYNC
            and self.newest_answer(place) is not None
            and self.missing_replicas(place) <= {*silent}
        }

    def accept(self, places: Iterable[Place]) -> None:
        """Ask for these no more."""
        self._accepted.update(places)

    def spans(self) -> dict[Place, Span]:
        """The newest span of each partition of which something was told."""
        newest = {place: self.newest_answer(place) for place in self._told}
        return {place: told.span for place, told in newest.items() if told is not None}

    def _in_sync(self, place: Place) -> int:
        return self._in_sync_min.get(place[0], BELIEVED_IN_SYNC)
