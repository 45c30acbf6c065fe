"""PURE. What happens to the processes of a demo, and when; README.md has the steps in a table."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from keylanes.errors import SettingsError

BROKERS: Final = ("embedded", "kafka")
MEMBERS_MAX = 16
SCALED: Final = 4
"""With so many members the demo scales up to them, and down again."""
MANY = 5
"""From so many processes on there is no rest."""
LATE = 0.05
"""A step that is so much of the way behind its share is late: the work slows down until it is taken."""
FLIGHTS_PER_S_OF_MANY: Final = 1_200
"""So many flights each process handles in a second at most then, and where it is scaled: else all would be done before
all has happened.
"""
SESSION_S = 10.0
PAUSED_BELOW_S, PAUSED_BEYOND_S = 3.0, 14.0
"""Well below a session; and until it was expelled, and some seconds more."""
KILLED_FROM, JOINED_FROM = 1 / 3, 1 / 2
QUIET_BEFORE = 0.04
"""So long before the kill nothing is begun any more that would be under way then."""
KILLED_AT_LAST = 0.42
"""From here on something may be under way."""
NEAR_END = 0.8
NAME = "demo"
"""Of the one process, or of the service that keeps several; these are ``demo-1``, ``demo-2``, …"""

Role = Literal["coordinator", "member"]
Deed = Literal["kill", "pause", "join", "scale"]


class Act(msgspec.Struct, frozen=True):
    """What happened to the processes ``names`` at ``share`` of the way, at ``at_ms`` since the epoch: one was killed,
    suspended (SIGSTOP) for so many ``seconds`` or started to join; or some were started (``is_up``) or told to stop, to
    scale. ``role``: what one that was killed or suspended was.
    """

    deed: Deed
    names: tuple[str, ...]
    share: float
    at_ms: int = 0
    role: Role = "member"
    seconds: float = 0.0
    is_up: bool = False

    @property
    def name(self) -> str:
        """Of the one."""
        return self.names[0]


class Step(NamedTuple):
    """What is to happen from a share of the way on, to whom. ``by``: how many processes more or fewer."""

    deed: Deed
    from_share: float
    role: Role = "member"
    seconds: float = 0.0
    by: int = 0

    @property
    def label(self) -> str:
        """In words."""
        return {
            "kill": f"kill -9 of the {self.role}" if self.role == "coordinator" else "kill -9 of a member",
            "pause": f"pause of a member for {self.seconds:.0f} s",
            "join": "a process that joins",
            "scale": f"{_processes(self.by)} {'more' if self.by > 0 else 'fewer'}",
        }[self.deed]


OF_FEW: Final = (Step("kill", KILLED_FROM, "coordinator"), Step("join", JOINED_FROM))
OF_SCALED: Final = (
    Step("scale", 0.08, by=1),
    Step("scale", 0.24, by=2),
    Step("scale", 0.55, by=-2),
    Step("scale", 0.78, by=-1),
)
OF_KEPT: Final = (Step("kill", KILLED_FROM, "coordinator"),)
OF_MANY: Final = (
    Step("pause", 0.06, seconds=PAUSED_BELOW_S),
    Step("kill", 0.14, "coordinator"),
    Step("join", 0.28),
    Step("pause", 0.38, seconds=PAUSED_BEYOND_S),
    Step("kill", 0.56),
    Step("join", 0.64),
)


class Course(msgspec.Struct, frozen=True):
    """What has happened so far in a run that began with so many ``members``: the ``acts``, in order.

    ``is_kept``: one service starts them, and starts again who was killed.
    """

    members: int = 1
    acts: tuple[Act, ...] = ()
    is_kept: bool = False

    @property
    def is_scaled(self) -> bool:
        """Whether it begins with one process, goes up to ``members``, and down again."""
        return self.members == SCALED and not self.is_kept

    @property
    def is_restless(self) -> bool:
        """Whether something happens all the time."""
        return self.members >= MANY and not self.is_kept

    @property
    def steps(self) -> Sequence[Step]:
        """All that is to happen."""
        if self.members == 1:
            return ()
        if self.is_kept:
            return OF_KEPT
        if self.is_scaled:
            return OF_SCALED
        return OF_MANY if self.is_restless else OF_FEW

    @property
    def missed(self) -> Sequence[Step]:
        """What has not happened."""
        return self.steps[len(self.acts) :]

    def acts_of(self, deed: Deed) -> list[Act]:
        """Those of one kind, in order."""
        return [act for act in self.acts if act.deed == deed]

    def names(self) -> list[str]:
        """Who is at work, after a restart of the demo too."""
        if self.members == 1:
            return [NAME]
        if self.is_scaled:
            return self.names_after(len(self.acts))
        names = [f"{NAME}-{number}" for number in range(1, self.members + 1)]
        if self.is_kept:
            return names
        gone = {act.name for act in self.acts_of("kill")}
        return [name for name in [*names, *(act.name for act in self.acts_of("join"))] if name not in gone]

    def names_after(self, scalings: int) -> list[str]:
        """Who is at work behind so many scalings."""
        names = [f"{NAME}-1"]
        for act in self.acts_of("scale")[:scalings]:
            names = [*names, *act.names] if act.is_up else [name for name in names if name not in act.names]
        return names

    def started(self) -> list[str]:
        """What the demo starts itself: each process, or the service that keeps them."""
        return [NAME] if self.is_kept else self.names()

    def max_in_flight(self, handler_ms: float, flights_per_s: int = FLIGHTS_PER_S_OF_MANY) -> int | None:
        """How many flights each process has at work at once, to handle at most so many in a second; None: as many as it
        has workers.
        """
        is_slowed = self.is_restless or self.is_scaled
        return max(1, round(flights_per_s * handler_ms / 1_000)) if is_slowed else None


class Told(msgspec.Struct, frozen=True):
    """What a process says of itself: records done since it started, workers that it has now, whether a range of its
    own is on its way to somebody else or back.
    """

    records_done: int = 0
    workers: int = 0
    is_moving: bool = False


class Looked(NamedTuple):
    """What is known when an act is decided: the ``share`` of the way, what those at work have ``told``, the name of
    who coordinates, "" where it is not known, whether somebody is paused, and the names of a group ``at_rest``: of
    nobody while something is on its way.
    """

    share: float
    told: Mapping[str, Told]
    coordinator: str
    is_paused: bool = False
    at_rest: frozenset[str] = frozenset()


def course_of(members: int, processes: int, broker: str) -> Course:
    """The course that begins with so many processes on this broker: ``members`` that the demo starts itself, or
    ``processes`` that a service keeps. Raises SettingsError.
    """
    if broker not in BROKERS:
        raise SettingsError(f"BROKER is {' or '.join(BROKERS)}; seen {broker!r}: give one of these")
    for name, count in (("MEMBERS", members), ("PROCESSES", processes)):
        if not 1 <= count <= MEMBERS_MAX:
            raise SettingsError(f"{name} is a number from 1 to {MEMBERS_MAX}; seen {count}: give one of these")
        if count > 1 and broker != "kafka":
            said = f"{name}={count} needs a broker that several processes can reach; seen BROKER={broker}, which is for"
            raise SettingsError(f"{said} one process: give BROKER=kafka, or {name}=1")
    if members > 1 and processes > 1:
        said = (
            f"only one of MEMBERS and PROCESSES can be more than 1; seen MEMBERS={members} and PROCESSES={processes}:"
        )
        raise SettingsError(f"{said} give MEMBERS for processes of their own, PROCESSES for one app.run(processes=…)")
    return Course(max(members, processes), is_kept=processes > 1)


def _processes(by: int) -> str:
    return "a process" if abs(by) == 1 else f"{abs(by)} processes"


def is_quiet(share: float, course: Course) -> bool:
    """Whether the unrest lets things be at ``share`` of the way."""
    if share > NEAR_END or course.is_scaled:
        return True
    if course.members == 1 or course.is_restless:
        return False
    is_over = course.acts_of("kill" if course.is_kept else "join")
    return not is_over and share > KILLED_FROM - QUIET_BEFORE


def late(share: float, course: Course) -> Step | None:
    """The step that is late at ``share`` of the way, if one is."""
    return next((step for step in course.missed[:1] if share > step.from_share + LATE), None)


def do_all_work(told: Mapping[str, Told], course: Course, *, places: int) -> bool:
    """Whether all that can have one of so many ``places`` have done something there."""
    working = [each for each in told.values() if each.workers and each.records_done]
    return len(working) >= min(len(course.names()), places)


def due(looked: Looked, course: Course, *, places: int) -> Step | None:
    """What is to happen now, if anything: all that can have one of so many ``places`` work, nobody is paused, and of
    few processes nothing moves, unless it is late. Whether it ``may_be`` is to be asked, too.
    """
    step = next(iter(course.missed), None)
    if step is None or looked.share < step.from_share or looked.is_paused:
        return None
    if step.deed == "join":
        return step
    moves = any(told.is_moving for told in looked.told.values())
    is_still = course.is_restless or course.is_scaled or looked.share > KILLED_AT_LAST or not moves
    return step if is_still and do_all_work(looked.told, course, places=places) else None


def may_be(step: Step, looked: Looked, course: Course) -> bool:
    """Whether nothing is on its way of a group that is to be scaled: those that are to be at work, and nobody else."""
    return step.deed != "scale" or looked.at_rest == frozenset(course.names())


def act_of(step: Step, looked: Looked, course: Course, at_ms: int) -> Act:
    """Whom it meets. Who came last leaves first."""
    share = looked.share
    if step.deed == "join":
        return Act("join", (f"{NAME}-{course.members + len(course.acts_of('join')) + 1}",), share, at_ms)
    if step.deed == "scale":
        names = course.names()
        new = [f"{NAME}-{len(names) + number}" for number in range(1, step.by + 1)]
        return Act("scale", tuple(new or names[step.by :]), share, at_ms, is_up=step.by > 0)
    name = victim(step, looked)
    role: Role = "coordinator" if name == looked.coordinator else "member"
    return Act(step.deed, (name,), share, at_ms, role, step.seconds)


def victim(step: Step, looked: Looked) -> str:
    """Who coordinates, if that is meant and it has something to lose; else who of the others has most."""
    told = looked.told
    if step.role == "coordinator" and looked.coordinator in told and told[looked.coordinator].workers:
        return looked.coordinator
    is_spared = looked.coordinator if step.role == "member" and len(told) > 1 else ""
    return min(told, key=lambda name: (name == is_spared, -told[name].workers, name))
