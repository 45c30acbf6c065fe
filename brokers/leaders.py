"""PURE. The leader of each partition, by the newest leader epoch heard.

A deposed leader without a link to the other brokers goes on naming itself as the leader, with an old epoch and an old
log, until the link is back. So the leader epoch alone decides about an answer: an older epoch never replaces a newer
epoch, from whichever broker the answer comes. One object serves all connections of a process to a cluster: each
connection knows the findings of the others.

Leader epochs rise as long as a topic lives. A topic created anew under an old name has another identity, and the leader
epochs begin again.
"""

from collections.abc import Hashable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

from .protocol import TopicPartition

N = TypeVar("N", bound=Hashable)

UNKNOWN_EPOCH: Final = -1
"""The leader epoch of a partition without any news."""


class Leadership(NamedTuple, Generic[N]):
    """The leadership of one partition at one leader epoch. ``leader``: None while the partition has no leader, or while
    clients have to ask for the leader anew; ``replicas``: the nodes that keep the partition; ``identity``: the identity
    of the topic, "" where brokers do not tell.
    """

    leader: N | None
    epoch: int
    replicas: tuple[N, ...] = ()
    identity: str = ""


class Leaders(Generic[N]):
    """The newest leadership of each partition. Nodes have any hashable names."""

    def __init__(self) -> None:
        self._known: dict[TopicPartition, Leadership[N]] = {}

    def advance(self, partition: TopicPartition, heard: Leadership[N]) -> bool:
        """Take a leadership, unless the known leader epoch is newer. Returns whether the leadership was taken."""
        known = self._known.get(partition)
        if known is not None:
            is_another = bool(known.identity and heard.identity) and known.identity != heard.identity
            if heard.epoch < known.epoch and not is_another:
                return False
            heard = heard._replace(identity=heard.identity or known.identity)
        self._known[partition] = heard
        return True

    def of(self, partition: TopicPartition) -> Leadership[N] | None:
        """The newest leadership heard of a partition; None: no leadership was heard."""
        return self._known.get(partition)

    def leader(self, partition: TopicPartition) -> N | None:
        """The node that leads a partition; None: not known."""
        known = self._known.get(partition)
        return None if known is None else known.leader

    def epoch(self, partition: TopicPartition) -> int:
        """The newest leader epoch heard of a partition, or UNKNOWN_EPOCH."""
        known = self._known.get(partition)
        return UNKNOWN_EPOCH if known is None else known.epoch

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the leaders of partitions, and keep the leader epochs: only an answer with an epoch as new counts."""
        for partition in partitions:
            if (known := self._known.get(partition)) is not None:
                self._known[partition] = known._replace(leader=None)

    def forget_node(self, node: N) -> None:
        """Forget the leader of each partition that a node leads."""
        self.forget([partition for partition, known in self._known.items() if known.leader == node])
