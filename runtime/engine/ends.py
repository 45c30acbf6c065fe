"""PURE. When an application is level with its sources, also where it writes to some of them itself.

A source that only others write to ends where it ended at the start. A source that the application itself writes to (a
handler's ``to`` is another handler's topic) ends where everything upstream of it, done to its end, has left it: it is
*pinned anew* as soon as all of that is level. So records that others go on sending keep nobody from coming to an end.

Topics that write to each other in a circle are upstream of themselves: what they make of their own records never ends.
They are judged together, and pinned anew only for what lies upstream of all of them.

Order matters: first look at the edges, then ask the broker for the watermarks of ``to_pin``, then ``pin``. A write that
no handler declares has to be told by ``discover`` before the edge of its record is committed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...brokers.protocol import TopicPartition


@dataclass(frozen=True, slots=True)
class _SourceCircle:
    """Sources that are judged together: one, or some that write to each other in a circle; and who writes to them."""

    topics: frozenset[str]
    upstream: frozenset[str]


class Ends:
    """``ends``: the high watermarks of all source partitions at the start.

    ``writes``: (source topic, destination topic) as handlers declare them, dead letters too; destinations that are no
    sources don't matter.
    """

    def __init__(self, ends: Mapping[TopicPartition, int], writes: Iterable[tuple[str, str]] = ()) -> None:
        self._ends = dict(ends)
        self._topics = {source.topic for source in ends}
        self._writes: dict[str, set[str]] = {topic: set() for topic in self._topics}
        for source, destination in writes:
            if source in self._topics and destination in self._topics:
                self._writes[source].add(destination)
        self._groups = _groups(self._writes)
        self._pinned: set[str] = set()
        """Pinned when all their upstream was level."""

    @property
    def ends(self) -> Mapping[TopicPartition, int]:
        """The end of each source partition as it is known now."""
        return self._ends

    def discover(self, source: str, destination: str) -> bool:
        """A handler of ``source`` wrote to ``destination``; True when that was not known and matters."""
        if source not in self._topics or destination not in self._topics or destination in self._writes[source]:
            return False
        self._writes[source].add(destination)
        self._groups = _groups(self._writes)
        self._pinned -= {destination, *_downstream(destination, self._writes)}
        return True

    def is_level(self, edges: Mapping[TopicPartition, int]) -> bool:
        """Whether everything up to the ends is committed, and the ends are final. ``edges``: the least of each source
        partition; one that is missing is not level.
        """
        reached = self._reached(edges)
        return all(self._is_final(group) and group.topics <= reached for group in self._groups)

    def to_pin(self, edges: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """The source partitions whose high watermarks are to be taken now, for ``pin``; in order of names."""
        reached = self._reached(edges)
        level: set[str] = set()
        wanted: set[str] = set()
        for group in self._groups:  # upstream first
            if not group.upstream <= level:
                continue
            if not self._is_final(group):
                wanted |= group.topics
            elif group.topics <= reached:
                level |= group.topics
        return sorted(source for source in self._ends if source.topic in wanted)

    def pin(self, ends: Mapping[TopicPartition, int]) -> None:
        """The high watermarks of what ``to_pin`` named, taken after that."""
        for source, end in ends.items():
            self._pinned.add(source.topic)
            self._ends[source] = max(self._ends[source], end)

    def _reached(self, edges: Mapping[TopicPartition, int]) -> set[str]:
        behind = {source.topic for source, end in self._ends.items() if edges.get(source, -1) < end}
        return self._topics - behind

    def _is_final(self, group: _SourceCircle) -> bool:
        """Whether the ends of a group stay as they are."""
        return not group.upstream or group.topics <= self._pinned


def _groups(writes: Mapping[str, Iterable[str]]) -> list[_SourceCircle]:
    """The sources by groups, those upstream first."""
    reach = {topic: _downstream(topic, writes) for topic in writes}
    found: list[_SourceCircle] = []
    for topic in sorted(writes):
        circle = frozenset({topic} | {other for other in reach[topic] if topic in reach[other]})
        if topic == min(circle):
            upstream = frozenset(other for other in writes if topic in reach[other]) - circle
            found.append(_SourceCircle(circle, upstream))
    # Whatever is upstream of a group has less upstream than the group itself.
    return sorted(found, key=lambda group: (len(group.upstream), min(group.topics)))


def _downstream(topic: str, writes: Mapping[str, Iterable[str]]) -> set[str]:
    """The sources that come behind a topic; with itself when it is in a circle."""
    found: set[str] = set()
    todo = list(writes[topic])
    while todo:
        at = todo.pop()
        if at not in found:
            found.add(at)
            todo.extend(writes[at])
    return found
