"""What a coordinator, and who may stand, has heard: chosen by the environment, and said in records of the signals.

So what is believed is what the production makes of records. Whom it takes for silent may beat all along: a process that
is paused, a broker that is slow. What is here is only which records there were.
"""

from typing import NamedTuple

from keylanes.group.election import Candidate, stands
from keylanes.group.signals_fold import COORDINATORS, PARTITIONS, Heard, partition_of
from keylanes.offsets.control import Control
from keylanes.offsets.event_values import LEVEL, Sourced
from keylanes.offsets.signals import Beat, CoordinatorBeat, JoinAsked, LeaveAsked, MoveAsked

from .model_world import TOPIC

SESSION_MS, INTERVAL_MS = 10_000, 1_000
NOW_MS = 14_000
"""Records go on to here, one interval after the other."""
OUTAGE_MS = 60_000
READ_ALL = 1 << 40
"""A position of the control log that nobody is behind of."""

FRESH, BESIDE, ALONE = "fresh", "beside", "alone"
"""A process asks to join: just now; and its namesake was heard since; and its namesake is silent for two intervals."""


class Voice(NamedTuple):
    """Who may be heard. ``incarnation``: 0 for one that has not joined."""

    incarnation: int
    instance: str
    birth: str


class Said(NamedTuple):
    """What there is to hear. ``silent``: incarnations; ``asks``: who wants to join, and how its namesakes stand."""

    beating: tuple[Voice, ...]
    silent: frozenset[int] = frozenset()
    asks: tuple[Voice, ...] = ()
    how: str = FRESH
    leaving: tuple[Voice, ...] = ()
    leaves_long: bool = False
    moves: tuple[MoveAsked, ...] = ()
    has_outage: bool = False


def join_asked(voice: Voice) -> JoinAsked:
    """It can handle the one topic that there is."""
    topics = (Sourced(TOPIC, 8, "earliest", 0, 0.0),)
    return JoinAsked(voice.instance, voice.birth, 1, "", "", 1.0, LEVEL, topics, (), False, (), 0)


def heard_of(said: Said) -> Heard:
    """All records, interval by interval."""
    heard = Heard(SESSION_MS, INTERVAL_MS)
    asked_ms = {FRESH: NOW_MS, BESIDE: NOW_MS - INTERVAL_MS, ALONE: NOW_MS - 3 * INTERVAL_MS}[said.how]
    names = {voice.instance for voice in said.asks if voice.instance}
    for at_ms in range(0, NOW_MS + 1, INTERVAL_MS):
        append_ms = at_ms + (OUTAGE_MS if said.has_outage and at_ms > NOW_MS - 2 * INTERVAL_MS else 0)
        for partition in range(PARTITIONS):
            heard.hear(partition, append_ms, _beat(1))
        for voice in said.beating:
            is_away = said.has_outage and append_ms != at_ms  # they will beat again in a moment
            is_paused = said.how == ALONE and voice.instance in names and at_ms > asked_ms
            if at_ms == 0 or not (voice.incarnation in said.silent or is_away or is_paused):
                heard.hear(_of(voice), append_ms, Beat(voice.incarnation, voice.birth, READ_ALL, 0, 0, 0, ()))
        for voice in said.asks if at_ms >= asked_ms else ():
            heard.hear(_of(voice), append_ms, join_asked(voice))
        for voice in said.leaving if at_ms >= (0 if said.leaves_long else NOW_MS - INTERVAL_MS) else ():
            heard.hear(_of(voice), append_ms, LeaveAsked(voice.incarnation, voice.birth, 0, is_done=False))
    for asked in said.moves:
        heard.hear(1, NOW_MS + (OUTAGE_MS if said.has_outage else 0), asked)
    return heard


def _of(voice: Voice) -> int:
    return partition_of(voice.instance, voice.birth)


def _beat(term: int) -> CoordinatorBeat:
    return CoordinatorBeat(term, 1, False, INTERVAL_MS, False, (), (), ())


BEATS, QUIET, AWAY = "beats", "quiet", "away"
"""The coordinator's partition: it beats, only probes are there, or both until an outage and then probes."""


def is_to_stand(control: Control, candidate: Candidate, term: int, how: str) -> bool:
    """Whether a process stands that has looked from the start on."""
    heard = Heard(SESSION_MS, INTERVAL_MS)
    probe = Beat(0, candidate.birth, READ_ALL, 0, 0, 0, ())
    if stands(control, heard, candidate, term):
        return True
    for at_ms in range(0, NOW_MS + 1, INTERVAL_MS):
        is_behind = how == AWAY and at_ms > NOW_MS - 2 * INTERVAL_MS
        has_beat = how == BEATS or (how == AWAY and not is_behind)
        append_ms = at_ms + (OUTAGE_MS if is_behind else 0)
        heard.hear(COORDINATORS, append_ms, _beat(control.term) if has_beat else probe)
    return stands(control, heard, candidate, term)
