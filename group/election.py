"""PURE. The time when a process stands for coordinator.

A process stands when the coordinator has been silent for long enough. An expelled process never stands. The wait
depends on what is known of the coordinator:

    nobody was ever elected                                                    none
    the coordinator resigned, or was expelled as a member                      none
    the starter of the coordinator's process says that the process has died    by rank
    the broker proves that there is no other process (the embedded broker)     none
    no member is left that could commit (all are fenced)                       two intervals
    the coordinator has the name of this process: the same place, restarted    two intervals
    otherwise                                                                  the session, and a little more by rank

Two intervals suffice where no other process can be hurt. Of several processes that start together one is elected, and
the others hear the coordinator before their own turn. The *rank* of a process is its place in the order by incarnation;
processes that have not joined come last. Each rank adds 20 ms to the wait, so that members do not stand all at once.

Silence is measured in the time of partition 0 of the signals (silence.py). A process that does not hear the
coordinator appends probes there (``probes``). So time passes even if the coordinator is dead, and an outage of
partition 0 elects nobody. For a new coordinator the full wait begins when a process reads of the election. Otherwise
the other processes would stand before the first beat of each new coordinator, without end.

A needless election costs only time: decisions of the older term stop counting, and the new coordinator continues from
the same logs.
"""

from dataclasses import dataclass
from typing import Final

from ..offsets.control import Control
from ..offsets.signals import DIED
from .signals_fold import COORDINATORS, Heard
from .silence import Silence

RANK_MS: Final = 20
"""What each rank adds to the wait."""
RANK_MS_MAX: Final = 1_000
"""The most that the rank adds."""
SHORT_INTERVALS: Final = 2
"""The wait where no other process can be hurt, in intervals."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process that may stand. ``instance``: the name, "" for none; ``incarnation``: of the member, 0 before the join;
    ``is_alone``: the broker proves that no other process exists.
    """

    instance: str
    birth: str
    incarnation: int = 0
    is_alone: bool = False


def wait_ms(control: Control, heard: Heard, candidate: Candidate) -> int:
    """How long the coordinator must be silent before this process stands, in ms."""
    short_ms = SHORT_INTERVALS * heard.interval_ms
    if control.coordinator is None or candidate.is_alone or has_resigned(control, heard):
        return 0
    if not control.unfenced_members() or (candidate.instance and candidate.instance == control.coordinator_instance):
        return short_ms
    rank_ms = min(rank_of(control, candidate.birth) * RANK_MS, RANK_MS_MAX)
    return rank_ms if has_died(control, heard) else heard.session_ms + rank_ms


def has_died(control: Control, heard: Heard) -> bool:
    """Whether the starter of the coordinator's process says that the process has died."""
    died = {asked.incarnation for asked in heard.expels.values() if asked.cause == DIED}
    return any(member.birth == control.coordinator and i in died for i, member in control.members.items())


def has_resigned(control: Control, heard: Heard) -> bool:
    """Whether the coordinator has said that it stops, or was expelled as a member: no further decision comes."""
    beat = heard.coordinator
    return control.is_vacant or (beat is not None and beat.term == control.term and beat.resigns)


def rank_of(control: Control, birth: str) -> int:
    """The place of a process in the order by incarnation, from 0. A process that has not joined comes last."""
    living = [member for _, member in sorted(control.members.items()) if not member.expelled]
    return next((rank for rank, member in enumerate(living) if member.birth == birth), len(living))


def is_coordinator(control: Control, birth: str, term: int) -> bool:
    """Whether this process decides. ``term``: the last term that the process stood for; 0: none. A process decides in
    no other term, even if the log names the process as the coordinator.
    """
    return control.coordinator == birth and control.term == term


def stands(control: Control, heard: Heard, candidate: Candidate, term: int) -> bool:
    """Whether the process stands for the next term now. ``term``: the last term that the process stood for."""
    if is_coordinator(control, candidate.birth, term) or _is_out(control, candidate):
        return False
    return _awaited_silence(control, heard).silent_ms(control.term) >= wait_ms(control, heard, candidate)


def _is_out(control: Control, candidate: Candidate) -> bool:
    """Whether the process was expelled. An expelled process may hear nothing of the others any more."""
    return candidate.incarnation > 0 and control.is_expelled(candidate.incarnation)


def probes(control: Control, heard: Heard, candidate: Candidate, term: int, *, quiet_ms: int) -> bool:
    """Whether the process appends a probe to the coordinator's partition, to measure the silence there.

    ``quiet_ms``: how long the process has read no record there, by its own clock. No time passes in a partition without
    appends: without probes the processes would wait for a dead coordinator without end.
    """
    if is_coordinator(control, candidate.birth, term):
        return False
    silence = _awaited_silence(control, heard)
    if quiet_ms >= SHORT_INTERVALS * heard.interval_ms:
        return True
    return not silence.was_heard(control.term) or silence.silent_ms(control.term) >= heard.interval_ms


def _awaited_silence(control: Control, heard: Heard) -> Silence:
    """The fold of the coordinator's partition. The first call for a term begins to wait for the coordinator of the
    term.
    """
    silence = heard.silences[COORDINATORS]
    silence.wait_for(control.term)
    return silence
