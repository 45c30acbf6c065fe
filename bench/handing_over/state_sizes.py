"""PURE. What is run of each part of the moves of state, at quick and at full size."""

from dataclasses import dataclass

PARTS = ("state", "curves", "scaling", "crash", "rollout")
ENTRY_BYTES = 128
"""Of a value of 100 bytes, with its key, as the changelog has them."""
CHANGE_EVERY = 10
"""One of so many records of a key changes its state, the others read it: else the changelog is mostly what was changed
while the bench runs.
"""
COPY_BYTES_PER_S = 64 * 1024 * 1024
FEW_LOOKS = {"load_interval_ms": 20_000}
"""Settings by which no move for load comes within a minute behind one that is asked for: it would take what is to be
measured.
"""
WAYS = ("all at once", "batched", "fluid", "cold")
"""How half of the state moves: in one range, in four, in sixteen; or without a copy, as its owner stops and waits for
nobody.
"""
PIECES = {"all at once": 1, "batched": 4, "fluid": 16}
STEPS = (1, 2, 4, 2, 1)
"""Members of the scaling, one after the other."""
OURS, WITH_STANDBY, STREAMS = "keylanes", "keylanes, a standby", "Kafka Streams"
SCALED = (OURS, WITH_STANDBY, STREAMS)
"""The arms of the scaling. Kafka Streams has a standby, too: without one a member that goes takes its state with it."""


@dataclass(frozen=True, kw_only=True)
class StateSize:
    """``state_gb``: of the moves, each a run; ``large_gb``: one more of these runs, with few moves; 0: none.
    ``other_gb``: of all other parts. ``per_second``: records; ``four_per_second``: where four members share
    them, of whom each reads more of them than it handles. ``moves``: of one run; ``rest_s``: between two. ``watch_s``:
    how long each half is watched. ``crashes``, of one run. ``even_share``: of a mean share; so much every member has
    where work is even. A group whose handlers have little to do is not levelled by much.
    """

    state_gb: tuple[float, ...]
    large_gb: float
    other_gb: float
    per_second: float
    four_per_second: float
    moves: int
    rest_s: float
    watch_s: float
    crashes: int
    even_share: float
    rounds: int


SIZES = {
    "tiny": StateSize(
        state_gb=(0.002,), large_gb=0, other_gb=0.002, per_second=1_000, four_per_second=1_000, moves=2, rest_s=1.0,
        watch_s=6.0, crashes=1, even_share=0.3, rounds=1,
    ),
    "quick": StateSize(
        state_gb=(0.03, 0.1), large_gb=0, other_gb=0.05, per_second=5_000, four_per_second=5_000, moves=6, rest_s=2.0,
        watch_s=30.0, crashes=2, even_share=0.5, rounds=1,
    ),
    "full": StateSize(
        state_gb=(0.1, 0.3, 1.0), large_gb=4.0, other_gb=0.3, per_second=20_000, four_per_second=10_000, moves=20,
        rest_s=4.0, watch_s=60.0, crashes=5, even_share=0.7, rounds=1,
    ),
}  # fmt: skip
LARGE_MOVES = 2


def arm_of(gb: float) -> str:
    """As a size of state is called in the book."""
    return f"{gb:g} GB"


def arms(part: str, size: StateSize) -> list[str]:
    """The arms of a part, as the book calls them."""
    if part == "state":
        return [arm_of(gb) for gb in (*size.state_gb, *((size.large_gb,) if size.large_gb else ()))]
    if part == "curves":
        return [*WAYS]
    return [*SCALED] if part == "scaling" else [part]


def rounds_of(_part: str, size: StateSize) -> int:
    """How often each arm of a part runs."""
    return size.rounds


def entries_of(gb: float, keys: int) -> int:
    """How many entries each of so many keys has, so that all of them have so much state."""
    return max(round(gb * 1e9 / ENTRY_BYTES / keys), 1)
