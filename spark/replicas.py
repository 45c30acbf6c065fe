"""PURE. The end of a partition that counts, of several ends told by brokers.

A deposed leader, cut off from the other brokers, goes on telling its old end. Therefore several replicas name the
leader and the leader epoch known to each replica, and the named leaders tell their ends. The end at the newest leader
epoch counts as soon as R - min.insync.replicas + 1 of the R replicas have answered.

Proof: a record acknowledged before the question lies at min.insync.replicas replicas, and all of these replicas knew
the record's leader epoch by then. At least one of these replicas has answered. The leader named in the answer has the
same epoch or a newer epoch. Therefore the record lies below the end of the leader. Assumed: unclean election is off.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from .brokers import Place, Span

BELIEVED_IN_SYNC = 1
"""min.insync.replicas of a topic with a hidden configuration: all replicas have to answer."""


class ReplicaAnswer(NamedTuple):
    """The answer of one replica: all replicas of the partition, the leader epoch, and the span from that leader."""

    replicas: tuple[int, ...]
    leader_epoch: int
    span: Span


class Poll:
    """One question for the spans of partitions, with the answers of their replicas. ``in_sync_min``: by topic."""

    def __init__(self, places: Iterable[Place], in_sync_min: Mapping[str, int]) -> None:
        self._in_sync_min = in_sync_min
        self._replicas: dict[Place, tuple[int, ...]] = dict.fromkeys(places, ())
        self._told: dict[Place, dict[int, ReplicaAnswer]] = {place: {} for place in self._replicas}
        self._accepted: set[Place] = set()

    def expect(self, replicas: Mapping[Place, tuple[int, ...]]) -> None:
        """Take the replicas of partitions, as any broker lists them."""
        self._replicas.update(replicas)

    def hear(self, node: int, told: Mapping[Place, ReplicaAnswer]) -> None:
        """Take the answers of one replica."""
        for place, one in told.items():
            self._told[place][node] = one

    def newest_answer(self, place: Place) -> ReplicaAnswer | None:
        """The answer at the newest leader epoch; None: no replica has answered."""
        told = self._told[place].values()
        return max(told, key=lambda one: (one.leader_epoch, one.span.end), default=None)

    def is_confirmed(self, place: Place) -> bool:
        """Whether enough replicas have answered, among the replicas named in the newest answer."""
        newest, told = self.newest_answer(place), self._told[place]
        if newest is None:
            return False
        needed = len(newest.replicas) - self._in_sync(place) + 1
        return sum(node in told for node in newest.replicas) >= max(1, needed)

    def open_places(self) -> list[Place]:
        """The partitions neither confirmed nor accepted."""
        return [place for place in self._told if place not in self._accepted and not self.is_confirmed(place)]

    def missing_replicas(self, place: Place) -> set[int]:
        """The replicas without an answer."""
        newest = self.newest_answer(place)
        known = {*self._replicas[place], *(() if newest is None else newest.replicas)}
        return known - self._told[place].keys()

    def places_to_ask(self) -> dict[int, list[Place]]:
        """The open partitions, by replica without an answer."""
        asked: dict[int, list[Place]] = {}
        for place in self.open_places():
            for node in self.missing_replicas(place):
                asked.setdefault(node, []).append(place)
        return asked

    def places_to_believe(self, silent: Collection[int]) -> set[Place]:
        """Open partitions with an answer that no further question confirms.

        All replicas without an answer are silent. With min.insync.replicas 1 each silent replica may be a newer leader.
        """
        return {
            place
            for place in self.open_places()
            if self._in_sync(place) <= BELIEVED_IN_SYNC
            and self.newest_answer(place) is not None
            and self.missing_replicas(place) <= {*silent}
        }

    def accept(self, places: Iterable[Place]) -> None:
        """Close partitions with their newest answer."""
        self._accepted.update(places)

    def spans(self) -> dict[Place, Span]:
        """The span of the newest answer, by partition."""
        newest = {place: self.newest_answer(place) for place in self._told}
        return {place: told.span for place, told in newest.items() if told is not None}

    def _in_sync(self, place: Place) -> int:
        return self._in_sync_min.get(place[0], BELIEVED_IN_SYNC)
