"""PURE. The course of a demo: what happens to the processes, and when. README.md has the steps in a table.

A *step* is planned for a share of the way. An *act* is a step that was taken: it names the processes that the step met.
The *way* is the work of the whole run: all records of both sources.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from keylanes.errors import SettingsError

BROKERS: Final = ("embedded", "kafka")
MEMBERS_MAX = 16
SCALED: Final = 4
"""With this number of members the demo begins with one process, scales up to all members, and down again."""
MANY = 5
"""From this number of members on the demo asks for moves all the time."""
LATE = 0.05
"""A step is late when the work is this share of the way beyond the step's share. The work slows down until then."""
FLIGHTS_PER_S_OF_MANY: Final = 1_200
"""The most flights that each process handles in a second, with many members and while the demo scales. At full speed
all flights would be done before the last step.
"""
SESSION_S = 10.0
PAUSED_BELOW_S, PAUSED_BEYOND_S = 3.0, 14.0
"""The short pause lies well below a session. The long pause lasts until the member is expelled, and some seconds more.
"""
KILLED_FROM, JOINED_FROM = 1 / 3, 1 / 2
QUIET_BEFORE = 0.04
"""The unrest begins nothing in this share of the way before the kill: at the kill no range shall be under way."""
KILLED_AT_LAST = 0.42
"""From this share of the way on the kill comes even while a range is under way."""
NEAR_END = 0.8
NAME = "demo"
"""The name of the only process, or of the service that keeps several. Several are ``demo-1``, ``demo-2``, …"""

Role = Literal["coordinator", "member"]
Deed = Literal["kill", "pause", "join", "scale"]


class Act(msgspec.Struct, frozen=True):
    """A step that was taken: the deed and the ``names`` of the processes. ``share``: of the way; ``at_ms``: since the
    epoch.

    - kill: one process was killed. ``role``: its role before.
    - pause: one process was suspended (SIGSTOP) for ``seconds``. ``role``: its role before.
    - join: one process was started.
    - scale: some processes were started (``is_up``), or were told to stop.
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
        """The name of the process, of an act on one process."""
        return self.names[0]


class Step(NamedTuple):
    """A planned deed. ``from_share``: the share of the way from which on the step is due. ``role``: the process to be
    killed or paused. ``seconds``: the duration of a pause. ``by``: of a scaling, how many processes more (or, below 0,
    fewer).
    """

    deed: Deed
    from_share: float
    role: Role = "member"
    seconds: float = 0.0
    by: int = 0

    @property
    def label(self) -> str:
        """The step in words."""
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
    """The acts of a run so far, in order. ``members``: the number of processes that the run was asked for.

    ``is_kept``: one service starts the processes, and starts a killed process again.
    """

    members: int = 1
    acts: tuple[Act, ...] = ()
    is_kept: bool = False

    @property
    def is_scaled(self) -> bool:
        """Whether the run begins with one process, scales up to ``members``, and down again."""
        return self.members == SCALED and not self.is_kept

    @property
    def is_restless(self) -> bool:
        """Whether the demo asks for moves all the time."""
        return self.members >= MANY and not self.is_kept

    @property
    def steps(self) -> Sequence[Step]:
        """All steps of the run, in order."""
        if self.members == 1:
            return ()
        if self.is_kept:
            return OF_KEPT
        if self.is_scaled:
            return OF_SCALED
        return OF_MANY if self.is_restless else OF_FEW

    @property
    def missed(self) -> Sequence[Step]:
        """The steps that were not taken. Each act belongs to one step, in order."""
        return self.steps[len(self.acts) :]

    def acts_of(self, deed: Deed) -> list[Act]:
        """The acts with one deed, in order."""
        return [act for act in self.acts if act.deed == deed]

    def names(self) -> list[str]:
        """The names of the processes that shall be at work now, also after a restart of the demo."""
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
        """The names of the processes that shall be at work after the first ``scalings`` acts of scaling."""
        names = [f"{NAME}-1"]
        for act in self.acts_of("scale")[:scalings]:
            names = [*names, *act.names] if act.is_up else [name for name in names if name not in act.names]
        return names

    def started(self) -> list[str]:
        """The names of what the demo starts itself: each process, or the service that keeps the processes."""
        return [NAME] if self.is_kept else self.names()

    def max_in_flight(self, handler_ms: float, flights_per_s: int = FLIGHTS_PER_S_OF_MANY) -> int | None:
        """The most flights that a process has in its handlers at once, for a rate of ``flights_per_s``. None: no limit,
        each worker may have one.
        """
        is_slowed = self.is_restless or self.is_scaled
        return max(1, round(flights_per_s * handler_ms / 1_000)) if is_slowed else None


class Told(msgspec.Struct, frozen=True):
    """The report of a process on itself: the records done since its start, the number of its workers now, and whether
    one of its ranges is on its way to another process or back.
    """

    records_done: int = 0
    workers: int = 0
    is_moving: bool = False


class Looked(NamedTuple):
    """The facts on which a step is decided.

    ``share``: of the way. ``told``: the last report of each process at work, by name. ``coordinator``: the name of the
    coordinator, "" where not known. ``is_paused``: whether a process is paused. ``at_rest``: the names of the group's
    members, empty while a range is on its way.
    """

    share: float
    told: Mapping[str, Told]
    coordinator: str
    is_paused: bool = False
    at_rest: frozenset[str] = frozenset()


def course_of(members: int, processes: int, broker: str) -> Course:
    """The course of a new run on this broker. The demo starts ``members`` itself; a service keeps ``processes``. Raises
    SettingsError.
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
    """Whether the unrest of the processes begins nothing at ``share`` of the way."""
    if share > NEAR_END or course.is_scaled:
        return True
    if course.members == 1 or course.is_restless:
        return False
    is_over = course.acts_of("kill" if course.is_kept else "join")
    return not is_over and share > KILLED_FROM - QUIET_BEFORE


def late(share: float, course: Course) -> Step | None:
    """The next step, if it is late at ``share`` of the way; else None."""
    return next((step for step in course.missed[:1] if share > step.from_share + LATE), None)


def do_all_work(told: Mapping[str, Told], course: Course, *, places: int) -> bool:
    """Whether all processes have done records and have workers. ``places``: the number of source partitions; with more
    processes than partitions, as many processes as partitions are enough.
    """
    working = [report for report in told.values() if report.workers and report.records_done]
    return len(working) >= min(len(course.names()), places)


def due(looked: Looked, course: Course, *, places: int) -> Step | None:
    """The step to take now, or None. ``may_be`` has a further condition, on facts from the logs.

    A step waits while a process is paused. A joining has no other condition. Every other step waits until all processes
    work (``do_all_work``), and with few processes also until no range is on its way; from KILLED_AT_LAST on a range may
    be on its way.
    """
    step = next(iter(course.missed), None)
    if step is None or looked.share < step.from_share or looked.is_paused:
        return None
    if step.deed == "join":
        return step
    is_moving = any(told.is_moving for told in looked.told.values())
    # With many members ranges move all the time; a scaling waits for rest by the logs, see may_be.
    may_move = course.is_restless or course.is_scaled or looked.share > KILLED_AT_LAST
    is_fit = (may_move or not is_moving) and do_all_work(looked.told, course, places=places)
    return step if is_fit else None


def may_be(step: Step, looked: Looked, course: Course) -> bool:
    """Whether a step that is due may be taken. A scaling needs a group at rest, with exactly the members that shall be
    at work.
    """
    return step.deed != "scale" or looked.at_rest == frozenset(course.names())


def act_of(step: Step, looked: Looked, course: Course, at_ms: int) -> Act:
    """The act of a step: chooses the processes. At a scaling down the processes that came last leave first."""
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
    """The name of the process to kill or pause: the coordinator, if the step means the coordinator and it has workers.
    Else the process with most workers; a step that means a member spares the coordinator.
    """
    told = looked.told
    if step.role == "coordinator" and looked.coordinator in told and told[looked.coordinator].workers:
        return looked.coordinator
    spared = looked.coordinator if step.role == "member" and len(told) > 1 else ""
    return min(told, key=lambda name: (name == spared, -told[name].workers, name))
