"""PURE. Which nodes of a cluster were silent lately, so that others are asked first.

A node is silent when it let a whole attempt pass without an answer, or could not be connected to. It is not drawn again
for a while, which doubles with each further silence (Kafka's reconnect.backoff.ms and its maximum are the model); any
answer of it ends that. One object serves all connections of a process to a cluster: what one has found out the others
need not find out again. ``now_s`` is any clock that does not go back.
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
        """Until then it is not drawn."""
        return self.last_s + min(PAUSE_S_FIRST * (1 << min(self.times - 1, 30)), PAUSE_S_MAX)


class SilentNodes(Generic[N]):
    """Nodes by whatever names them."""

    def __init__(self) -> None:
        self._silences: dict[N, _ClientSilence] = {}

    def lost(self, node: N, now_s: float) -> bool:
        """It did not answer. Whether it had answered, or was never asked, before."""
        known = self._silences.get(node)
        if known is None:
            self._silences[node] = _ClientSilence(1, now_s)
            return True
        # Several requests that were lost at once are one silence.
        self._silences[node] = _ClientSilence(known.times + (now_s >= known.until_s), now_s)
        return False

    def heard(self, node: N) -> bool:
        """It answered. Whether it had been silent."""
        return self._silences.pop(node, None) is not None

    @property
    def has_any(self) -> bool:
        """Whether there is a node that was silent, and was not heard since."""
        return bool(self._silences)

    def is_doubtful(self, node: N) -> bool:
        """Whether the last thing that is known of it is that it did not answer."""
        return node in self._silences

    def lost_since(self, node: N, since_s: float) -> bool:
        """Whether it was found to be silent later than that, and was not heard again."""
        known = self._silences.get(node)
        return known is not None and known.last_s > since_s

    def ordered(self, nodes: Sequence[N], now_s: float) -> list[N]:
        """Those that are not silent as they stand, then the others, whose silence was noticed longest ago first."""
        silent = [node for node in nodes if self._is_silent(node, now_s)]
        return [node for node in nodes if node not in silent] + sorted(silent, key=lambda n: self._silences[n].last_s)

    def draw(self, nodes: Sequence[N], now_s: float, choose: Callable[[Sequence[N]], N]) -> N:
        """One that is not silent, by ``choose``; when all are, the one whose silence was noticed longest ago."""
        awake = [node for node in nodes if not self._is_silent(node, now_s)]
        return choose(awake) if awake else min(nodes, key=lambda node: self._silences[node].last_s)

    def _is_silent(self, node: N, now_s: float) -> bool:
        known = self._silences.get(node)
        return known is not None and now_s < known.until_s
