"""PURE. What is run of each part, at quick and at full size."""

from dataclasses import dataclass

PARTS = ("moves", "state", "scaling", "crash", "rollout")
MOVES_PER_SECOND = 20_000.0
"""The load of the moves without state."""
TIMES = ("asked", "released", "granted", "taken up")
"""Of a move, as the history of a group has them."""
ENTRY_BYTES = 128
"""Of a value of 100 bytes, with its key, as the changelog has them."""
CHANGE_EVERY = 10
"""One of so many records of a key changes its state, the others read it: else the changelog is mostly what was changed
while the bench runs.
"""
COPY_BYTES_PER_S = 64 * 1024 * 1024
FEW_LOOKS = {"load_interval_ms": 20_000}
"""Settings that keep a move for load away for a minute behind one that is asked for: a move for load would take what is
to be measured.
"""
STEPS = (1, 2, 4, 2, 1)
"""Members of the scaling, one after the other."""
OURS, WITH_STANDBY, STREAMS = "keylanes", "keylanes, a standby", "Kafka Streams"
SCALED = (OURS, WITH_STANDBY, STREAMS)
"""The arms of the scaling. Kafka Streams has a standby, too: without one a member that goes takes its state with it."""
LARGE_MOVES = 2


@dataclass(frozen=True, kw_only=True)
class Group:
    """So many members on so many source partitions."""

    members: int
    partitions: int

    @property
    def arm(self) -> str:
        """As it is called in the book."""
        return f"{self.members} on {self.partitions}"


GROUPS = (Group(members=2, partitions=1), Group(members=3, partitions=2), Group(members=4, partitions=4))
"""The arms of the moves without state."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """``rounds`` of the moves without state; the other parts run once. ``moves``: of one run, in ``window_s``.

    The rest is for the parts with state. ``state_gb``: of the part state, each a run; ``large_gb``: one more of these
    runs, with few moves; 0: none. ``other_gb``: of the other parts. ``per_second``: records; ``four_per_second``: where
    four members share them, each of whom reads more of them than it handles. ``state_moves``: of one run; ``rest_s``:
    between two. ``watch_s``: how long a calm time, and each step of the scaling, is watched. ``crashes``: of one run.
    ``even_share``: of a mean share; where work is even every member has so much. A group whose handlers have little to
    do is not levelled by much.
    """

    rounds: int
    moves: int
    window_s: float
    state_gb: tuple[float, ...]
    large_gb: float
    other_gb: float
    per_second: float
    four_per_second: float
    state_moves: int
    rest_s: float
    watch_s: float
    crashes: int
    even_share: float


SIZES = {
    "tiny": Size(
        rounds=1, moves=3, window_s=3.0, state_gb=(0.002,), large_gb=0, other_gb=0.002, per_second=1_000,
        four_per_second=1_000, state_moves=2, rest_s=1.0, watch_s=6.0, crashes=1, even_share=0.3,
    ),
    "quick": Size(
        rounds=1, moves=8, window_s=6.0, state_gb=(0.03, 0.1), large_gb=0, other_gb=0.05, per_second=5_000,
        four_per_second=5_000, state_moves=6, rest_s=2.0, watch_s=30.0, crashes=2, even_share=0.5,
    ),
    "full": Size(
        rounds=3, moves=30, window_s=30.0, state_gb=(0.1, 0.3, 1.0), large_gb=4.0, other_gb=0.3, per_second=20_000,
        four_per_second=10_000, state_moves=20, rest_s=4.0, watch_s=60.0, crashes=5, even_share=0.7,
    ),
}  # fmt: skip


def arm_of(gb: float) -> str:
    """As a size of state is called in the book."""
    return f"{gb:g} GB"


def arms(part: str, size: Size) -> list[str]:
    """The arms of a part, as the book calls them."""
    if part == "moves":
        return [group.arm for group in GROUPS]
    if part == "state":
        return [arm_of(gb) for gb in (*size.state_gb, *((size.large_gb,) if size.large_gb else ()))]
    return [*SCALED] if part == "scaling" else [part]


def rounds_of(part: str, size: Size) -> int:
    """How often each arm of a part runs."""
    return size.rounds if part == "moves" else 1


def entries_of(gb: float, keys: int) -> int:
    """How many entries each of so many keys has, so that all of them have so much state."""
    return max(round(gb * 1e9 / ENTRY_BYTES / keys), 1)
