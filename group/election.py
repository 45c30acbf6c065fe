"""PURE. When a process stands for coordinator.

It stands when the coordinator has been silent for long enough; who was expelled does not. How long depends on what is
known of the coordinator:

    nobody was ever elected                                                    at once: there is nobody to wait for
    it resigned, or its own member was expelled                                at once
    whoever started its process says that it has died                          by rank
    the broker proves that there is no other process (embedded)                at once
    no member is left that could commit (all are fenced)                       two intervals
    it bore the name that this process bears: the same place, started again    two intervals
    else                                                                       the session, and a little more by rank

Two intervals, where nobody else can be hurt: of several that start at once one is elected, and the others hear it
before they would stand in their turn. The rank, 20 ms each, keeps members from standing all at once: it is their order
by incarnation, and whoever has not joined comes last.

Silence is measured in the time of partition 0 of the signals (silence.py), in which whoever has not heard the
coordinator for two intervals appends probes: so an outage of that partition elects nobody. Who was just elected is
waited for in full, from when that was read: else all others would stand before its first beat, and so on without end.

An election that nobody needed does no harm but delay: decisions of the older term count no more, and the new
coordinator goes on from the same logs.
"""

from dataclasses import dataclass
from typing import Final

from ..offsets.control import Control
from ..offsets.signals import DIED
from .heard import COORDINATORS, Heard
from .silence import Silence

RANK_MS: Final = 20
RANK_MS_MAX: Final = 1_000
SHORT_INTERVALS: Final = 2
"""So many intervals are waited where nobody else can be hurt."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process that may stand. ``instance``: its name, "" for none; ``incarnation``: of its member, 0 before it has
    joined; ``is_alone``: the broker proves that there is no other process.
    """

    instance: str
    birth: str
    incarnation: int = 0
    is_alone: bool = False


def wait_ms(control: Control, heard: Heard, candidate: Candidate) -> int:
    """So long the coordinator must be silent before this process stands."""
    short_ms = SHORT_INTERVALS * heard.interval_ms
    if control.coordinator is None or candidate.is_alone or has_resigned(control, heard):
        return 0
    if not control.unfenced() or (candidate.instance and candidate.instance == control.coordinator_instance):
        return short_ms
    rank_ms = min(rank_of(control, candidate.birth) * RANK_MS, RANK_MS_MAX)
    return rank_ms if has_died(control, heard) else heard.session_ms + rank_ms


def has_died(control: Control, heard: Heard) -> bool:
    """Whether somebody who knows says that the coordinator's process has died."""
    died = {asked.incarnation for asked in heard.expels.values() if asked.cause == DIED}
    return any(member.birth == control.coordinator and i in died for i, member in control.members.items())


def has_resigned(control: Control, heard: Heard) -> bool:
    """Whether the coordinator has said that it stops, or was expelled as a member: nothing more comes of it."""
    beat = heard.coordinator
    return control.is_vacant or (beat is not None and beat.term == control.term and beat.resigns)


def rank_of(control: Control, birth: str) -> int:
    """The place of a process among those that may stand, from 0; who has not joined comes last."""
    living = [member for _, member in sorted(control.members.items()) if not member.expelled]
    return next((rank for rank, member in enumerate(living) if member.birth == birth), len(living))


def is_coordinator(control: Control, birth: str, term: int) -> bool:
    """Whether this process decides. ``term``: for which it stood last; 0: for none. A term is not resumed by a process
    that does not know that it stood for it.
    """
    return control.coordinator == birth and control.term == term


def stands(control: Control, heard: Heard, candidate: Candidate, term: int) -> bool:
    """Whether the process is to stand for the next term now. ``term``: for which it stood last."""
    if is_coordinator(control, candidate.birth, term) or _is_out(control, candidate):
        return False
    return _awaited_silence(control, heard).silent_ms(control.term) >= wait_ms(control, heard, candidate)


def _is_out(control: Control, candidate: Candidate) -> bool:
    """Whether the process was expelled: it does not belong to the group, and may hear others no more."""
    return candidate.incarnation > 0 and control.is_expelled(candidate.incarnation)


def probes(control: Control, heard: Heard, candidate: Candidate, term: int, *, quiet_ms: int) -> bool:
    """Whether the process is to append to the coordinator's partition, so that its silence can be told.

    ``quiet_ms``: so long the process has read no record there, by its own clock: while nobody appends no time passes in
    a partition, and a coordinator that died would be waited for without end.
    """
    if is_coordinator(control, candidate.birth, term):
        return False
    silence = _awaited_silence(control, heard)
    if quiet_ms >= SHORT_INTERVALS * heard.interval_ms:
        return True
    return not silence.was_heard(control.term) or silence.silent_ms(control.term) >= heard.interval_ms


def _awaited_silence(control: Control, heard: Heard) -> Silence:
    """The coordinator's partition, in which that of the newest term is waited for from the first look at it on."""
    silence = heard.silences[COORDINATORS]
    silence.wait_for(control.term)
    return silence
