"""PURE. When an application is caught up with its sources, also where the application writes to some sources itself.

A source that only others write to ends at its high watermark of the start. A source that the application writes to (a
handler's ``to`` is another handler's topic) gets outputs of the sources *upstream*. The end of such a source is
*pinned* at its high watermark as soon as all sources upstream are caught up: their outputs lie below. So records that
others go on sending do not delay the end of a run.

Topics that write to each other in a circle are upstream of themselves: outputs of their own records never end. The
topics of a circle are judged together, and pinned only after the sources upstream of the whole circle.

Order matters: first look at the edges, then ask the broker for the watermarks of ``to_pin``, then ``pin``. The caller
reports a write that no handler declares with ``discover``, before the edge of the record is committed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...brokers.protocol import TopicPartition


@dataclass(frozen=True, slots=True)
class _SourceCircle:
    """Sources judged together: a single source, or sources that write to each other in a circle. ``upstream``: the
    sources upstream of these.
    """

    topics: frozenset[str]
    upstream: frozenset[str]


class Ends:
    """The ends of all source partitions. ``ends``: the high watermarks at the start.

    ``writes``: (source topic, destination topic) as declared by handlers, dead letters too; destinations that are no
    sources don't matter.
    """

    def __init__(self, ends: Mapping[TopicPartition, int], writes: Iterable[tuple[str, str]] = ()) -> None:
        self._ends = dict(ends)
        self._topics = {source.topic for source in ends}
        self._writes: dict[str, set[str]] = {topic: set() for topic in self._topics}
        for source, destination in writes:
            if source in self._topics and destination in self._topics:
                self._writes[source].add(destination)
        self._circles = _circles(self._writes)
        self._pinned: set[str] = set()
        """Topics that were pinned after all their upstream was caught up."""

    @property
    def ends(self) -> Mapping[TopicPartition, int]:
        """The end of each source partition, as known now."""
        return self._ends

    def discover(self, source: str, destination: str) -> bool:
        """Report that a handler of ``source`` wrote to ``destination``; True when the write is new and matters."""
        if source not in self._topics or destination not in self._topics or destination in self._writes[source]:
            return False
        self._writes[source].add(destination)
        self._circles = _circles(self._writes)
        self._pinned -= {destination, *_downstream(destination, self._writes)}
        return True

    def is_caught_up(self, edges: Mapping[TopicPartition, int]) -> bool:
        """Whether everything up to the ends is committed, and the ends are final. ``edges``: the least edge of each
        source partition; a missing partition is not caught up.
        """
        reached = self._topics_at_end(edges)
        return all(self._is_final(circle) and circle.topics <= reached for circle in self._circles)

    def to_pin(self, edges: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """The source partitions whose high watermarks ``pin`` needs now, in order of names."""
        reached = self._topics_at_end(edges)
        caught_up: set[str] = set()
        wanted: set[str] = set()
        for circle in self._circles:  # upstream first
            if not circle.upstream <= caught_up:
                continue
            if not self._is_final(circle):
                wanted |= circle.topics
            elif circle.topics <= reached:
                caught_up |= circle.topics
        return sorted(source for source in self._ends if source.topic in wanted)

    def pin(self, ends: Mapping[TopicPartition, int]) -> None:
        """Pin the partitions of ``to_pin`` at ``ends``, high watermarks read after the call of ``to_pin``."""
        for source, end in ends.items():
            self._pinned.add(source.topic)
            self._ends[source] = max(self._ends[source], end)

    def _topics_at_end(self, edges: Mapping[TopicPartition, int]) -> set[str]:
        """The topics whose partitions are all committed up to their ends as known now."""
        behind = {source.topic for source, end in self._ends.items() if edges.get(source, -1) < end}
        return self._topics - behind

    def _is_final(self, circle: _SourceCircle) -> bool:
        """Whether the ends of a circle are final."""
        return not circle.upstream or circle.topics <= self._pinned


def _circles(writes: Mapping[str, Iterable[str]]) -> list[_SourceCircle]:
    """The sources in circles; a circle comes behind all circles upstream."""
    reach = {topic: _downstream(topic, writes) for topic in writes}
    found: list[_SourceCircle] = []
    for topic in sorted(writes):
        circle = frozenset({topic} | {other for other in reach[topic] if topic in reach[other]})
        if topic == min(circle):
            upstream = frozenset(other for other in writes if topic in reach[other]) - circle
            found.append(_SourceCircle(circle, upstream))
    # A circle upstream of another circle has fewer sources upstream than the other one.
    return sorted(found, key=lambda circle: (len(circle.upstream), min(circle.topics)))


def _downstream(topic: str, writes: Mapping[str, Iterable[str]]) -> set[str]:
    """The sources downstream of a topic; a topic in a circle is downstream of itself."""
    found: set[str] = set()
    todo = list(writes[topic])
    while todo:
        at = todo.pop()
        if at not in found:
            found.add(at)
            todo.extend(writes[at])
    return found
