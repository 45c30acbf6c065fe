"""Which end counts of those that replicas lead to: nothing that was acknowledged before the question lies above it."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from keylanes.spark.brokers import Place, Span
from keylanes.spark.replicas import Poll, ReplicaAnswer

from ..tiers.marks import tier

pytestmark = tier("check")

PLACE: Place = ("late", 0)
NODES_MAX = 5


@dataclass(frozen=True)
class World:
    """One partition. ``ends``: by leader epoch, rising. ``knows``: the leader epoch that each node knows."""

    in_sync_min: int
    ends: list[int]
    knows: list[int]

    @property
    def nodes(self) -> tuple[int, ...]:
        """All keep it."""
        return tuple(range(len(self.knows)))

    def answer(self, node: int) -> ReplicaAnswer:
        """What a node leads to: the end at the epoch that it knows."""
        return ReplicaAnswer(self.nodes, self.knows[node], Span(0, self.ends[self.knows[node]]))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """The newest leader has acknowledged something, so min.insync.replicas nodes know its epoch; the others may not."""
    nodes = draw(st.integers(1, NODES_MAX))
    in_sync_min = draw(st.integers(1, nodes))
    ends = draw(st.lists(st.integers(0, 100), min_size=1, max_size=4, unique=True).map(sorted))
    newest = len(ends) - 1
    behind = st.lists(st.integers(0, newest), min_size=nodes - in_sync_min, max_size=nodes - in_sync_min)
    return World(in_sync_min, ends, draw(st.permutations([newest] * in_sync_min + draw(behind))))


def polled(world: World, nodes: list[int]) -> Poll:
    """A poll in which these nodes have told."""
    poll = Poll([PLACE], {PLACE[0]: world.in_sync_min})
    poll.expect({PLACE: world.nodes})
    for node in nodes:
        poll.hear(node, {PLACE: world.answer(node)})
    return poll


@given(worlds(), st.data())
def test_a_confirmed_end_is_the_end_of_the_newest_leader(world: World, data: st.DataObject) -> None:
    """Whoever tells, in whatever order; and whoever told nothing is still to be asked."""
    told = data.draw(st.lists(st.sampled_from(world.nodes), unique=True))
    poll = polled(world, told)
    if not poll.open_places():
        assert poll.spans() == {PLACE: Span(0, world.ends[-1])}
    assert bool(poll.open_places()) == (len(told) < len(world.nodes) - world.in_sync_min + 1)
    assert set(poll.places_to_ask()) == ({*world.nodes} - {*told} if poll.open_places() else set())


def test_replicas_that_the_newest_leader_has_are_those_that_count() -> None:
    """A partition was moved to other nodes: what its first nodes say of each other confirms nothing."""
    poll = Poll([PLACE], {PLACE[0]: 2})
    poll.expect({PLACE: (0, 1, 2)})
    poll.hear(0, {PLACE: ReplicaAnswer((0, 1, 2), 5, Span(0, 100))})
    poll.hear(1, {PLACE: ReplicaAnswer((3, 4, 5), 9, Span(0, 200))})
    assert poll.open_places() == [PLACE]
    assert set(poll.places_to_ask()) == {2, 3, 4, 5}
    for node in (3, 4):
        poll.hear(node, {PLACE: ReplicaAnswer((3, 4, 5), 9, Span(0, 200))})
    assert poll.open_places() == []


def test_a_leader_is_believed_only_where_one_copy_is_acknowledged() -> None:
    """And only when all other replicas are silent."""
    for in_sync_min, silent, believed in ((1, {1, 2}, {PLACE}), (1, {1}, set()), (2, {1, 2}, set())):
        poll = polled(World(in_sync_min, [100], [0, 0, 0]), [0])
        assert poll.places_to_believe(silent) == believed
        poll.accept(believed)
        assert bool(poll.open_places()) == (not believed)
    hidden = Poll([PLACE], {})
    hidden.hear(0, {PLACE: ReplicaAnswer((0, 1, 2), 1, Span(0, 1))})
    assert hidden.places_to_believe({1, 2}) == {PLACE}
    assert Poll([PLACE], {}).places_to_believe({0, 1, 2}) == set(), "nobody told anything"
