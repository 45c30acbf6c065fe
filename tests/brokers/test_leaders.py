"""Who leads a partition, against a twin that keeps all that was ever heard."""

from hypothesis import given
from hypothesis import strategies as st

from keylanes.brokers.leaders import UNKNOWN_EPOCH, Leaders, Leadership
from keylanes.brokers.protocol import TopicPartition

from ..tiers.marks import tier

pytestmark = tier("check")

PLACES = [TopicPartition("a", 0), TopicPartition("a", 1)]
NODES = st.none() | st.integers(0, 3)
HEARD = st.tuples(st.sampled_from(PLACES), NODES, st.integers(0, 4), st.sampled_from(["", "one"]))


@given(st.lists(HEARD))
def test_the_newest_leader_epoch_wins_whoever_tells_it(
    heard: list[tuple[TopicPartition, int | None, int, str]],
) -> None:
    """Of one epoch the last answer counts: a leader may be away for a while, and lead on."""
    leaders = Leaders[int]()
    for place, node, epoch, identity in heard:
        leaders.advance(place, Leadership(node, epoch, (), identity))
    for place in PLACES:
        told = [(node, epoch) for where, node, epoch, _ in heard if where == place]
        newest = max((epoch for _, epoch in told), default=UNKNOWN_EPOCH)
        assert leaders.epoch(place) == newest
        assert leaders.leader(place) == next((node for node, epoch in reversed(told) if epoch == newest), None)


def test_who_is_forgotten_comes_back_by_as_new_an_answer_alone() -> None:
    """A leader that was deposed names itself again and again: it stays forgotten."""
    leaders, (place, other) = Leaders[int](), PLACES
    leaders.advance(place, Leadership(1, 3))
    leaders.advance(other, Leadership(2, 3))
    leaders.forget_node(1)
    assert (leaders.leader(place), leaders.leader(other)) == (None, 2)
    assert not leaders.advance(place, Leadership(1, 2))
    assert leaders.leader(place) is None
    assert leaders.advance(place, Leadership(0, 3))
    assert leaders.leader(place) == 0


def test_a_topic_that_is_created_anew_begins_its_epochs_anew() -> None:
    """Its identity tells it; an answer without one is of the topic that is known."""
    leaders, place = Leaders[int](), PLACES[0]
    leaders.advance(place, Leadership(1, 7, (), "one"))
    assert not leaders.advance(place, Leadership(2, 0))
    assert leaders.advance(place, Leadership(2, 0, (), "two"))
    assert (leaders.leader(place), leaders.epoch(place)) == (2, 0)
