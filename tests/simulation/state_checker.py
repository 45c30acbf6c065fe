"""What must be true of state: each transaction's changelog is what its records wrote, and copies hold it."""

from collections import defaultdict
from collections.abc import Sequence

from keylanes.brokers.protocol import TopicPartition
from keylanes.offsets.control_events import CoordinatorElected, StoreDeclared
from keylanes.offsets.events import Event, StateChanged
from keylanes.state.changelog import beacon_key, changelog_topic, decode_beacon, decode_stored, is_beacon_key
from keylanes.state.keys import point_in
from keylanes.state.memory import MemoryCopies

from ..stage.cluster import Cluster, Row
from ..stage.engine import fold
from .twin import Writes

ENTRIES_MAX = 1_000_000


def numbers_of(control: list[Event]) -> dict[str, int]:
    """The numbers of stores; the first declaration of a name by whoever was in office counts."""
    term = 0
    numbers: dict[str, int] = {}
    for event in control:
        if isinstance(event, CoordinatorElected):
            term = max(term, event.term)
        elif isinstance(event, StoreDeclared) and event.term == term:
            numbers.setdefault(event.name, event.store)
    return numbers


def check_changes(place: TopicPartition, wrote: Writes, rows: Sequence[Row], event: StateChanged | None) -> None:
    """A transaction has the last value of each key that its records wrote, its writer's beacon, behind the deletes of
    those that it succeeds, and the event of all.
    """
    if not wrote:
        assert not rows, f"{place}: the changelog has {rows}, no record wrote anything"
        assert event is None, f"{place}: {event}, and no record wrote anything"
        return
    assert rows, f"{place}: records wrote {wrote}, the changelog has nothing"
    *front, beacon = rows
    changes = [row for row in front if not is_beacon_key(row.key or b"")]
    deleted = {row.key: row.value for row in front if is_beacon_key(row.key or b"")}
    seen = {row.key: row.value for row in changes}
    assert len(seen) == len(changes), f"{place}: a key is in a transaction twice"
    lasting = {key: value for key, value in seen.items() if key in wrote and lasts_otherwise(value, wrote[key])}
    assert not lasting, f"{place}: what records wrote lasts until another time: {lasting}, records wrote {wrote}"
    assert seen == wrote, f"{place}: the changelog has {seen}, records wrote {wrote}"
    assert event is not None, f"{place}: the state was changed, and the offset log does not say it"
    assert beacon.key == beacon_key(event.incarnation), f"{place}: a transaction ends with {beacon}"
    assert decode_beacon(beacon.key, beacon.value) == (event.incarnation, event.transaction), f"{place}: {event}"
    assert set(deleted.values()) <= {None}, f"{place}: {event} writes beacons of others: {deleted}"
    succeeded = {beacon_key(incarnation) for incarnation in event.succeeded}
    assert deleted.keys() == succeeded, f"{place}: {event} deletes {deleted}"
    assert event.changes == len(changes), f"{place}: {event} counts wrongly: {len(changes)}"


def lasts_otherwise(seen: bytes | None, wrote: bytes | None) -> bool:
    """Whether two stored values differ in nothing but their deadline."""
    if seen is None or wrote is None or seen == wrote:
        return False
    return decode_stored(seen).payload == decode_stored(wrote).payload


def check_folded(cluster: Cluster, app: str, place: TopicPartition, state: dict[bytes, bytes]) -> None:
    """The changelog makes the state that records made, and so does what compaction left of it."""
    changelog = TopicPartition(changelog_topic(app, place.topic), place.partition)
    assert folded(cluster.rows(changelog)) == state, f"{place}: the changelog is not what the records make"
    assert folded(left_of(cluster, changelog)) == state, f"{place}: what compaction left is another state"


def left_of(cluster: Cluster, place: TopicPartition) -> list[Row]:
    """The committed records of a partition that compaction has left."""
    return [Row(*row[1:], None) for row in cluster.committed_records(place.topic) if row.partition == place.partition]


def folded(rows: list[Row], before: float = float("inf")) -> dict[bytes, bytes]:
    """The state of a changelog, up to a position."""
    return fold((row for row in rows if row.offset < before), {})


def check_copies(cluster: Cluster, app: str, place: TopicPartition, copies: MemoryCopies) -> int:
    """A copy holds everything below its marker, and above it nothing but what was committed; how much it holds.

    What compaction took below the marker, because something newer stands above it, a copy on the way never saw.
    """
    changelog = TopicPartition(changelog_topic(app, place.topic), place.partition)
    rows, left = cluster.rows(changelog), left_of(cluster, changelog)
    copy = copies.copy(place.topic, place.partition)
    held = dict(copy.page(b"", None, ENTRIES_MAX))
    above: dict[bytes, list[tuple[int, bytes | None]]] = defaultdict(list)
    for row in rows:
        above[row.key or b""].append((row.offset, row.value))
    for first, end, marker in copy.markers().pieces():
        assert marker.position <= cluster.watermarks(changelog).high, f"{place}: {marker} lies ahead of the changelog"
        below, below_left = folded(rows, marker.position), folded(left, marker.position)
        for key in {*below, *held}:
            if first <= point_in(key) < end:
                later = [value for offset, value in above[key] if offset >= marker.position]
                allowed = [below.get(key), *later]
                if key not in below_left and later:
                    allowed.append(None)
                assert held.get(key) in allowed, f"{place}: {key!r} is {held.get(key)!r} at {marker}"
    return len(held)
