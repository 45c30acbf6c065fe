"""PURE. The course of a demo with several processes: how they are called, which one is killed and when, when one joins.

About a third of the way the process that coordinates is killed, for that is the hard case, and its name stays away.
About half way another process joins. From shortly before the one until the other, until all have something to do, and
near the end, the unrest lets things be: what is seen then has one cause.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from ..errors import SettingsError

MEMBERS_MAX = 16
KILLED_FROM, JOINED_FROM = 1 / 3, 1 / 2
QUIET_BEFORE = 0.04
"""So long before the kill nothing is begun any more that would be under way then."""
KILLED_AT_LAST = 0.42
"""From here on something may be under way."""
NEAR_END = 0.8
NAME = "demo"
"""Of the one process; with several they are ``demo-1``, ``demo-2``, …"""


class Killed(msgspec.Struct, frozen=True):
    """``name`` was killed at ``share`` of the way; ``role``: "coordinator" or "member"."""

    name: str
    role: str
    share: float


class Joined(msgspec.Struct, frozen=True):
    """``name`` was started at ``share`` of the way."""

    name: str
    share: float


class Course(msgspec.Struct, frozen=True):
    """What has happened so far in a run that began with so many ``members``."""

    members: int = 1
    killed: Killed | None = None
    joined: Joined | None = None

    def names(self) -> list[str]:
        """Who is at work, after a restart of the demo too."""
        if self.members == 1:
            return [NAME]
        names = [name_of(number) for number in range(1, self.members + 1)]
        names += [self.joined.name] if self.joined is not None else []
        return [name for name in names if self.killed is None or name != self.killed.name]


class Told(msgspec.Struct, frozen=True):
    """What a process says of itself: records done since it started, workers that it has now, whether a range of its
    own is on its way to somebody else or back.
    """

    records_done: int = 0
    workers: int = 0
    is_moving: bool = False


Act: TypeAlias = Killed | Joined


class Looked(NamedTuple):
    """What is known when an act is decided: the ``share`` of the way, what those at work have ``told``, and the name
    of who coordinates, "" where it is not known.
    """

    share: float
    told: Mapping[str, Told]
    coordinator: str


def checked_members(members: int, broker: str) -> int:
    """As many processes as a demo can have on this broker; raises SettingsError."""
    if not 1 <= members <= MEMBERS_MAX:
        raise SettingsError(f"MEMBERS is a number from 1 to {MEMBERS_MAX}; seen {members}: give one of these")
    if members > 1 and broker != "kafka":
        raise SettingsError(
            f"MEMBERS={members} needs a broker that several processes can reach; seen BROKER={broker}, which is for "
            "one process: give BROKER=kafka, or MEMBERS=1"
        )
    return members


def name_of(number: int) -> str:
    """Of one of several processes."""
    return f"{NAME}-{number}"


def is_quiet(share: float, course: Course) -> bool:
    """Whether the unrest lets things be at ``share`` of the way."""
    if share > NEAR_END:
        return True
    if course.members == 1:
        return False
    return course.joined is None and share > KILLED_FROM - QUIET_BEFORE


def do_all_work(told: Mapping[str, Told], course: Course, *, places: int) -> bool:
    """Whether all that can have one of so many ``places`` have done something there."""
    working = [each for each in told.values() if each.workers and each.records_done]
    return len(working) >= min(len(course.names()), places)


def wants_to_kill(looked: Looked, course: Course, *, places: int) -> bool:
    """Whether somebody is to be killed now: all that can have one of so many ``places`` work, and nothing moves, unless
    it is late.
    """
    if course.members == 1 or course.killed is not None or looked.share < KILLED_FROM:
        return False
    is_still = looked.share > KILLED_AT_LAST or not any(told.is_moving for told in looked.told.values())
    return is_still and do_all_work(looked.told, course, places=places)


def next_act(looked: Looked, course: Course, *, places: int) -> Act | None:
    """What is to happen now, if anything."""
    if wants_to_kill(looked, course, places=places):
        return victim(looked)
    if course.members > 1 and course.joined is None and course.killed is not None and looked.share >= JOINED_FROM:
        return Joined(name_of(course.members + 1), looked.share)
    return None


def victim(looked: Looked) -> Killed:
    """Who coordinates, if it has something to lose; else who has most."""
    told = looked.told
    if looked.coordinator in told and told[looked.coordinator].workers:
        return Killed(looked.coordinator, "coordinator", looked.share)
    most: Sequence[str] = sorted(told, key=lambda name: (-told[name].workers, name))
    role = "coordinator" if most[0] == looked.coordinator else "member"
    return Killed(most[0], role, looked.share)
