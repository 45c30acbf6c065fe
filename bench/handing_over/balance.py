"""PURE. How even a load is over members, when it became so, and how few points would have had to go for it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rig.notes import Points

EVEN = 1.15
"""The greatest load of a member, in mean loads."""


class Look(NamedTuple):
    """What members were busy with in a time that ended then: seconds by member, 0 for those that had nothing."""

    at_s: float
    busy_s: Mapping[str, float]

    @property
    def unevenness(self) -> float:
        """The greatest load in mean loads; 0 when there is none."""
        whole = sum(self.busy_s.values())
        return max(self.busy_s.values()) * len(self.busy_s) / whole if whole else 0.0


def allowed(loads: Mapping[Points, float], members: int) -> float:
    """The greatest load of a member, in mean loads, that counts as even: what can't be parted has to lie somewhere.

    ``loads``: of each unit.
    """
    whole = sum(loads.values())
    return max(EVEN, max(loads.values()) * members / whole if whole else 0.0)


def even_from_s(looks: Sequence[Look], most: float) -> float | None:
    """When a load became even for good; None: it did not."""
    found: float | None = None
    for look in looks:
        if look.unevenness > most:
            found = None
        elif found is None:
            found = look.at_s
    return found


def least_points(loads: Mapping[Points, float], owners: Mapping[Points, str], members: int, most: float) -> int:
    """The fewest points whose leaving would do: the heaviest units of each member that has more than ``most`` mean
    loads, until it has not.
    """
    limit = most * sum(loads.values()) / members
    points = 0
    for name in set(owners.values()):
        own = sorted((loads.get(unit, 0.0), unit) for unit, owner in owners.items() if owner == name)
        left = sum(load for load, _ in own)
        while own and left > limit * (1 + 1e-9):
            load, unit = own.pop()
            left -= load
            points += unit.end - unit.first
    return points
