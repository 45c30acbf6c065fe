"""PURE. Who leads each partition, by the newest leader epoch that was heard.

A leader that was deposed and is cut off from the other brokers goes on naming itself, with its old epoch and its old
log, for as long as it is cut off. So an answer counts by its leader epoch alone: an older epoch never replaces a newer
one, whoever tells it. One object serves all connections of a process to a cluster: what one of them has heard all know.

Leader epochs rise as long as a topic lives. A topic that was created anew under its name has another identity, and its
leader epochs begin again.
"""

from collections.abc import Hashable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

from .protocol import TopicPartition

N = TypeVar("N", bound=Hashable)

UNKNOWN_EPOCH: Final = -1
"""Of a partition of which nothing was heard."""


class Leadership(NamedTuple, Generic[N]):
    """Of one partition at one leader epoch. ``leader``: None while it has none, or while it is to be asked for anew;
    ``replicas``: the nodes that keep the partition; ``identity``: of the topic, "" where brokers do not tell.
    """

    leader: N | None
    epoch: int
    replicas: tuple[N, ...] = ()
    identity: str = ""


class Leaders(Generic[N]):
    """The newest leadership of each partition. Nodes are named by whatever names them."""

    def __init__(self) -> None:
        self._known: dict[TopicPartition, Leadership[N]] = {}

    def advance(self, partition: TopicPartition, heard: Leadership[N]) -> bool:
        """Take what was heard, unless its leader epoch is older than the one that is known. Whether it was taken."""
        known = self._known.get(partition)
        if known is not None:
            is_another = bool(known.identity and heard.identity) and known.identity != heard.identity
            if heard.epoch < known.epoch and not is_another:
                return False
            heard = heard._replace(identity=heard.identity or known.identity)
        self._known[partition] = heard
        return True

    def of(self, partition: TopicPartition) -> Leadership[N] | None:
        """The newest leadership that was heard; None: nothing was."""
        return self._known.get(partition)

    def leader(self, partition: TopicPartition) -> N | None:
        """The node that leads a partition, if it is known."""
        known = self._known.get(partition)
        return None if known is None else known.leader

    def epoch(self, partition: TopicPartition) -> int:
        """The newest leader epoch that was heard, or UNKNOWN_EPOCH."""
        known = self._known.get(partition)
        return UNKNOWN_EPOCH if known is None else known.epoch

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget who leads these partitions, and keep the leader epochs: only as new an answer counts."""
        for partition in partitions:
            if (known := self._known.get(partition)) is not None:
                self._known[partition] = known._replace(leader=None)

    def forget_node(self, node: N) -> None:
        """Forget the leader of each partition that this node leads."""
        self.forget([partition for partition, known in self._known.items() if known.leader == node])
