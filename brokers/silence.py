"""PURE. Nodes of a cluster that were silent lately: clients ask other nodes first.

A node is silent when an attempt passed without an answer, or when no connection to the node came about. Clients do not
draw a silent node for a while. Each further silence doubles the pause, up to a maximum (the model is Kafka's
reconnect.backoff.ms). After the pause the node may be drawn again, and is *doubtful* until it answers. Any answer of
the node ends the silence and the doubt. One object serves all connections of a process to a cluster: each connection
knows the findings of the others. ``now_s`` is any clock that does not go back.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

N = TypeVar("N", bound=Hashable)

PAUSE_S_FIRST: Final = 1.0
PAUSE_S_MAX: Final = 8.0


class _ClientSilence(NamedTuple):
    times: int  # in a row
    last_s: float

    @property
    def until_s(self) -> float:
        """The time at which the node may be drawn again."""
        return self.last_s + min(PAUSE_S_FIRST * (1 << min(self.times - 1, 30)), PAUSE_S_MAX)


class SilentNodes(Generic[N]):
    """Nodes, each under any hashable name."""

    def __init__(self) -> None:
        self._silences: dict[N, _ClientSilence] = {}

    def note_silence(self, node: N, now_s: float) -> bool:
        """Note that a node did not answer. True: the node had answered before, or was never asked."""
        known = self._silences.get(node)
        if known is None:
            self._silences[node] = _ClientSilence(1, now_s)
            return True
        # Several requests that were lost at once are one silence.
        self._silences[node] = _ClientSilence(known.times + (now_s >= known.until_s), now_s)
        return False

    def note_answer(self, node: N) -> bool:
        """Note that a node answered. True: the node had been silent."""
        return self._silences.pop(node, None) is not None

    @property
    def has_any(self) -> bool:
        """Whether any node is doubtful."""
        return bool(self._silences)

    def is_doubtful(self, node: N) -> bool:
        """Whether the latest news of a node is a silence, however long ago."""
        return node in self._silences

    def lost_since(self, node: N, since_s: float) -> bool:
        """Whether a node was found silent after ``since_s`` and has not been heard since."""
        known = self._silences.get(node)
        return known is not None and known.last_s > since_s

    def sort_nodes(self, nodes: Sequence[N], now_s: float) -> list[N]:
        """Sort nodes: first awake nodes in the given order, then the silent nodes, the oldest silence first."""
        silent = [node for node in nodes if self._is_silent(node, now_s)]
        return [node for node in nodes if node not in silent] + sorted(silent, key=lambda n: self._silences[n].last_s)

    def draw(self, nodes: Sequence[N], now_s: float, choose: Callable[[Sequence[N]], N]) -> N:
        """Draw a node by ``choose`` from nodes that are not silent. All silent: the node with the oldest silence."""
        awake = [node for node in nodes if not self._is_silent(node, now_s)]
        return choose(awake) if awake else min(nodes, key=lambda node: self._silences[node].last_s)

    def _is_silent(self, node: N, now_s: float) -> bool:
        """Whether a node is in the pause after a silence."""
        known = self._silences.get(node)
        return known is not None and now_s < known.until_s
