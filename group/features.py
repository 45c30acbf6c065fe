"""PURE. Who may take part: names, levels, stores, and what the handlers of one topic have to agree on.

Who asks to join is answered when that is sure. A member that contradicts it and beats after it has asked is a reason to
refuse it; one that was only heard before may be a process that is gone, so it is waited for: it beats again, or it is
expelled. Only who bears the same name does not wait for a session: it *is* the same place, started again, and ousts a
silent predecessor after two intervals.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

import msgspec

from ..offsets.control import Control, Member
from ..offsets.decide import Turn, decide_stores, spec_of
from ..offsets.event_values import Sourced
from ..offsets.signals import JoinAsked
from ..offsets.starts import check_starts
from .election import SHORT_INTERVALS
from .heard import Heard

NAME_IN_USE: Final = "name in use"
LEVEL_TOO_LOW: Final = "level too low"
CONTRADICTS: Final = "contradicts"
"""What a refusal begins with; behind a colon it is said in full."""


class Joins(NamedTuple):
    """It may join now."""


class JoinRefused(NamedTuple):
    """It may not; ``reason`` begins with one of the words above."""

    reason: str


class JoinWaits(NamedTuple):
    """It is not sure yet: this member may be gone."""

    incarnation: int


class Ousts(NamedTuple):
    """The member bears its name and has fallen silent: it is to be expelled."""

    incarnation: int


Verdict: TypeAlias = Joins | JoinRefused | JoinWaits | Ousts


def kind_of(reason: str) -> str:
    """The word that a refusal begins with."""
    return reason.partition(":")[0]


def judge(control: Control, heard: Heard, asked: JoinAsked) -> Verdict:
    """What becomes of a process that asks to join."""
    if asked.level < control.level:
        return JoinRefused(
            f"{LEVEL_TOO_LOW}: the members write events of level {control.level}, and this process reads up to level "
            f"{asked.level}. Run the newer version that they run"
        )
    if (changed := _contradiction(control, asked)) is not None:
        return JoinRefused(f"{CONTRADICTS}: {changed}")
    for member, why in _in_the_way(control, asked):
        if member.expelled:
            return JoinWaits(member.incarnation)
        of = (member.joined.instance, member.birth)
        if heard.beats_since(*of, asked.birth):
            return JoinRefused(why)
        is_silent = heard.silent_ms(*of) >= SHORT_INTERVALS * heard.interval_ms
        return Ousts(member.incarnation) if is_silent and _is_namesake(member, asked) else JoinWaits(member.incarnation)
    for member in control.members.values() if asked.until_level and control.pinned is not None else ():
        runs_to_level = member.joined.until_level and not member.expelled and member.birth != asked.birth
        if runs_to_level and not heard.beats_since(member.joined.instance, member.birth, asked.birth):
            return JoinWaits(member.incarnation)  # who is gone shall not leave behind to which ends this one runs
    return Joins()


def _contradiction(control: Control, asked: JoinAsked) -> str | None:
    """What the logs know otherwise, for good."""
    try:
        check_starts(control, {source.topic: source.start for source in asked.topics})
        decide_stores(control, Turn(0), [spec_of(store) for store in asked.stores])
    except ValueError as error:
        return str(error)
    return None


def _is_namesake(member: Member, asked: JoinAsked) -> bool:
    return bool(asked.instance) and member.joined.instance == asked.instance


def _in_the_way(control: Control, asked: JoinAsked) -> Iterator[tuple[Member, str]]:
    """Members that it can't be beside, and why. It is not in its own way once it has joined."""
    unfenced = [member for member in control.unfenced() if member.birth != asked.birth]
    for member in unfenced:
        if _is_namesake(member, asked):
            yield member, f"{NAME_IN_USE}: {_in_use(member)}"
    for member in unfenced:
        known = {source.topic: source for source in member.joined.topics}
        for source in asked.topics if not member.expelled else ():
            if (other := known.get(source.topic)) is not None and not _agrees(source, other):
                yield member, f"{CONTRADICTS}: {_differs(source, other, member)}"


def _agrees(source: Sourced, other: Sourced) -> bool:
    """Whether two may be beside each other; of two rates the lower one counts (rates.py)."""
    return msgspec.structs.replace(source, rate_per_s=other.rate_per_s) == other


def _in_use(member: Member) -> str:
    return (
        f"group_instance_id={member.joined.instance!r} is the name of incarnation {member.incarnation}{_at(member)}, "
        "which is at work. Give each process a name of its own, or none"
    )


def _differs(source: Sourced, other: Sourced, member: Member) -> str:
    whose = f"incarnation {member.incarnation}{_at(member)}"
    until = "Processes of one application agree on it: deploy the same everywhere, or stop the others first"
    if source.factor != other.factor:
        said = f"parallelising_factor={source.factor} for topic {source.topic!r}, and {other.factor} at {whose}"
    elif source.start != other.start:
        said = f"start={source.start!r} for topic {source.topic!r}, and {other.start!r} at {whose}"
    else:
        said = f"the handler of topic {source.topic!r} keeps other stores than that of {whose}"
    return f"{said}. {until}"


def _at(member: Member) -> str:
    return f" on {member.joined.host}" if member.joined.host else ""
