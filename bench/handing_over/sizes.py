"""PURE. What is run of each part, at quick and at full size."""

from dataclasses import dataclass

MEMBERS = (1, 2, 4, 8)
PARTS = ("amplification", "moves", "skew", "join", "held")
MOVES_PER_SECOND = 20_000.0
"""The load of the moves."""
TIMES = ("asked", "released", "granted", "taken up")
"""Of a move, as the history of a group has them."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """So many members on so many source partitions."""

    members: int
    partitions: int

    @property
    def arm(self) -> str:
        """As it is called in the book."""
        return f"{self.members} on {self.partitions}"


@dataclass(frozen=True, kw_only=True)
class Size:
    """``load_s``: of amplification, a multiple of a window of 10 s. ``spin``: whether that is also run with a handler
    that uses the processor. ``moves``: of one run of a group, in a window of ``window_s``; ``joins``: of one run;
    ``skew_s``: so long a skew is watched at most; ``held_moves``: beside a range that is held.
    """

    rounds: int
    load_s: float
    spin: bool
    moves: int
    window_s: float
    joins: int
    skew_s: float
    held_moves: tuple[int, ...]


SIZES = {
    "tiny": Size(
        rounds=1, load_s=10.0, spin=False, moves=3, window_s=3.0, joins=1, skew_s=8.0, held_moves=(10, 50, 100)
    ),
    "quick": Size(
        rounds=1, load_s=20.0, spin=False, moves=8, window_s=6.0, joins=2, skew_s=24.0, held_moves=(100, 500, 1_000)
    ),
    "full": Size(
        rounds=3,
        load_s=60.0,
        spin=True,
        moves=30,
        window_s=30.0,
        joins=10,
        skew_s=90.0,
        held_moves=(10, 100, 250, 500, 750, 1_000),
    ),
}
GROUPS = (Group(members=2, partitions=1), Group(members=3, partitions=2), Group(members=4, partitions=4))
"""Of the moves."""


def arms(part: str, size: Size) -> list[str]:
    """The arms of a part, as the book calls them."""
    if part == "amplification":
        handlers = ("wait", "spin") if size.spin else ("wait",)
        return [f"{handler}, {members}" for handler in handlers for members in MEMBERS]
    if part == "moves":
        return [group.arm for group in GROUPS]
    return ["partition", "keys"] if part == "skew" else [part]


def rounds_of(part: str, size: Size) -> int:
    """How often each arm of a part runs: what a part repeats by itself runs once."""
    return 1 if part in ("join", "held") else size.rounds
