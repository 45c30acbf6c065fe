"""The worlds that the group model begins with: small ones, of which every interleaving is seen, and one for walks."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from .model_world import Budget

NO_FAULTS = Budget()


@dataclass(frozen=True)
class Design:
    """A world to begin with. ``members``: a letter each: m; b for one that bears the name "blue", t for another one of
    that name, which is not started; n for one that has joined and has no producer yet. ``records``: of each point.

    ``parts``: so many points make up a source partition; ``is_dealt``: each member has some of each from the beginning.
    ``comes_back``: who is expelled asks to join again. ``lags``: member 0 has not read what was granted last.
    ``has_snapshots``: members write them, coordinators begin with the newest.
    """

    members: str = "mm"
    coordinators: int = 1
    points: int = 1
    parts: int = 1
    records: int = 1
    comes_back: bool = False
    lags: bool = False
    has_snapshots: bool = False
    is_dealt: bool = False
    budget: Budget = NO_FAULTS


class Small(NamedTuple):
    """A world that is searched whole, and how many others it leads to: a change of the rules shows there."""

    design: Design
    worlds: int


SMALL = {
    "one is expelled": Small(Design(budget=Budget(expel=1)), 1_019),
    "one is expelled that has no producer yet": Small(Design("nm", budget=Budget(expel=1)), 1_444),
    "one is expelled, answers are lost": Small(Design(records=2, budget=Budget(expel=1, fail=1)), 19_918),
    "one is expelled, old ends are told": Small(Design(records=2, budget=Budget(expel=1, stale=1)), 4_198),
    "one is expelled, a stranger fences": Small(Design(records=2, budget=Budget(expel=1, stranger=1)), 8_034),
    "one is expelled that has no producer yet, old ends are told, a stranger fences": Small(
        Design("nm", budget=Budget(expel=1, stale=1, stranger=1)), 7_805
    ),
    "a stranger fences, answers are lost": Small(Design("m", records=2, budget=Budget(fail=1, stranger=2)), 492),
    "one is expelled and comes back, old ends are told": Small(
        Design(comes_back=True, budget=Budget(expel=1, stale=1)), 44_805
    ),
    "one is expelled, appends come late": Small(Design(budget=Budget(expel=1, late=1)), 16_397),
    "one crashes and comes back": Small(Design("m", comes_back=True, budget=Budget(crash=1)), 2_869),
    "its request comes once more": Small(Design("m", comes_back=True, budget=Budget(expel=1, echo=1)), 6_327),
    "two owners in one log": Small(Design(points=2, budget=Budget(expel=1)), 8_455),
    "two owners in one partition": Small(Design(points=2, parts=2, is_dealt=True, budget=Budget(expel=1)), 8_455),
    "parts of one move": Small(Design(points=2, parts=2, budget=Budget(move=1)), 16_027),
    "parts of one move back": Small(Design("m", points=2, parts=2, budget=Budget(move=1)), 5_271),
    "parts of one move, time is up": Small(
        Design(points=2, parts=2, is_dealt=True, budget=Budget(move=1, tired=1)), 81_303
    ),
    "two owners, snapshots, old ends are told": Small(
        Design(points=2, budget=Budget(expel=1, stale=1), lags=True, has_snapshots=True), 75_419
    ),
    "a point moves": Small(Design(records=2, budget=Budget(move=1, fail=1)), 6_348),
    "a point moves back": Small(Design("m", records=2, budget=Budget(move=1)), 254),
    "a point moves, appends come late": Small(Design(budget=Budget(move=1, late=1)), 4_429),
    "a point moves, time is up": Small(Design(budget=Budget(move=1, tired=1)), 971),
    "a point moves, or its owner is expelled": Small(Design(budget=Budget(move=1, expel=1)), 32_242),
    "one leaves": Small(Design(budget=Budget(leave=1, tired=1)), 4_663),
    "a twin": Small(Design("bt", comes_back=True, budget=Budget(twin=1, expel=1)), 9_448),
    "a twin, and a crash": Small(Design("bt", comes_back=True, budget=Budget(twin=1, crash=1)), 19_348),
    "an outage of the signals": Small(Design(coordinators=2, budget=Budget(elect=1, outage=1)), 101),
    "two coordinators, a point moves, old ends are told": Small(
        Design(coordinators=2, budget=Budget(move=1, elect=1, stale=1)), 69_292
    ),
    "two coordinators, one is expelled": Small(Design(coordinators=2, budget=Budget(expel=1, elect=1)), 188_854),
}
LARGE = Design(
    "mmbt",
    coordinators=2,
    points=2,
    parts=2,
    records=4,
    comes_back=True,
    has_snapshots=True,
    budget=Budget(
        expel=2,
        crash=1,
        late=2,
        elect=2,
        move=3,
        fail=4,
        tired=2,
        leave=1,
        deaf=1,
        twin=1,
        echo=1,
        outage=1,
        stale=4,
        stranger=2,
    ),
)
"""Through which walks go: all is one member's in the beginning."""
DEALT = replace(LARGE, is_dealt=True)
"""The same where it is not."""
LONG = Design(
    "mmmbt",
    coordinators=3,
    points=4,
    parts=2,
    records=8,
    comes_back=True,
    has_snapshots=True,
    is_dealt=True,
    budget=Budget(
        expel=6,
        crash=4,
        late=6,
        elect=5,
        move=8,
        fail=10,
        tired=4,
        leave=1,
        deaf=2,
        twin=1,
        echo=2,
        outage=3,
        stale=10,
        stranger=5,
    ),
)
"""The same for longer ones."""
