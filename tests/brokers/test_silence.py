"""Which node is asked, when some of them were silent: beside a dumb twin that remembers everything."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from keylanes.brokers.silence import PAUSE_S_FIRST, PAUSE_S_MAX, SilentNodes

from ..tiers.marks import tier

pytestmark = tier("check")

NODES = ("a", "b", "c")


class Twin:
    """All that happened to each node, in order; every question looks through all of it."""

    def __init__(self) -> None:
        self.happened: list[tuple[str, str, float]] = []

    def losses(self, node: str) -> list[float]:
        """When it was lost since it was last heard."""
        found: list[float] = []
        for what, who, at in self.happened:
            if who == node:
                found = [*found, at] if what == "lost" else []
        return found

    def is_silent(self, node: str, now: float) -> bool:
        """Whether the pause after its last loss is not over: those that came within a pause are one."""
        times, until = 0, 0.0
        for at in self.losses(node):
            times += at >= until
            until = at + min(PAUSE_S_FIRST * 2 ** (times - 1), PAUSE_S_MAX)
        return now < until

    def among(self, nodes: Sequence[str], now: float) -> set[str]:
        """Those of which one may be drawn."""
        awake = {node for node in nodes if not self.is_silent(node, now)}
        oldest = min((self.losses(node)[-1] for node in nodes if self.losses(node)), default=0.0)
        return awake or {node for node in nodes if self.losses(node)[-1] == oldest}


steps = st.lists(
    st.tuples(st.sampled_from(("lost", "heard")), st.sampled_from(NODES), st.integers(0, 120).map(lambda t: t / 10)),
    max_size=30,
)


@given(steps, st.integers(0, 200).map(lambda t: t / 10), st.integers(0, 2))
def test_nodes_are_drawn_as_the_twin_says(happened: list[tuple[str, str, float]], later: float, which: int) -> None:
    """Silent nodes are passed over; when all are silent, the one that has been so for longest is drawn."""
    nodes, twin, now = SilentNodes[str](), Twin(), 0.0
    for what, node, after in happened:
        now += after
        twin.happened.append((what, node, now))
        (nodes.note_silence if what == "lost" else lambda node, _: nodes.note_answer(node))(node, now)
    now += later
    assert nodes.draw(NODES, now, lambda awake: awake[which % len(awake)]) in twin.among(NODES, now)
    order = nodes.sort_nodes(NODES, now)
    assert sorted(order) == list(NODES)
    assert [node for node in order if not twin.is_silent(node, now)] == order[
        : len(order) - sum(twin.is_silent(node, now) for node in NODES)
    ]
    for node in NODES:
        assert nodes.is_doubtful(node) == bool(twin.losses(node))
    assert nodes.has_any == any(twin.losses(node) for node in NODES)


def test_a_node_that_is_silent_again_and_again_is_left_alone_for_longer() -> None:
    """Up to a limit: it is asked now and then, or it would never be found to have come back."""
    nodes, now, pauses = SilentNodes[str](), 0.0, []
    for _ in range(6):
        nodes.note_silence("a", now)
        lost = now
        while nodes.draw(("a", "b"), now, lambda awake: awake[0]) == "b":
            now += 0.5
        pauses.append(now - lost)
    assert pauses == [1, 2, 4, 8, 8, 8]
    assert nodes.note_answer("a")
    assert nodes.draw(("a", "b"), now, lambda awake: awake[0]) == "a"


def test_requests_that_are_lost_together_are_one_silence() -> None:
    """Ten requests to one broker say no more than one of them."""
    nodes = SilentNodes[str]()
    assert [nodes.note_silence("a", 0.0) for _ in range(10)] == [True, *[False] * 9]
    assert nodes.draw(("a", "b"), 1.0, lambda awake: awake[0]) == "a"


def test_what_was_heard_before_the_loss_is_out_of_date() -> None:
    """A connection that has answered since is good; an older one to a node that was lost is not."""
    nodes = SilentNodes[str]()
    assert not nodes.lost_since("a", 0.0)
    nodes.note_silence("a", 5.0)
    assert nodes.lost_since("a", 4.0)
    assert not nodes.lost_since("a", 5.0)
    nodes.note_answer("a")
    assert not nodes.lost_since("a", 4.0)
