"""PURE. The conditions to take part: names, levels, stores, and agreement of the handlers of one topic.

A request to join is answered only when the answer is sure. A member that is in the way and beats after the request is a
reason to refuse. A member heard only before the request may be gone: the process waits until the member beats again or
is expelled. Only a process with the name of a silent member need not wait for a session. The process counts as the same
process, started again, and ousts its predecessor after two intervals of silence.

| in the way of a request | answer |
|---|---|
| the members write a newer level than the process reads | refused |
| the logs know another start of a topic, or another store of the name | refused |
| a member has the same name, or declares a topic differently | refused |
| such a member has not beaten since, or is not fenced yet | wait |
| a member of the same name was silent for two intervals | the member is ousted |
| two processes run until they have caught up, and one may be gone | wait |
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
from .signals_fold import Heard

NAME_IN_USE: Final = "name in use"
LEVEL_TOO_LOW: Final = "level too low"
CONTRADICTS: Final = "contradicts"
"""The words that begin a refusal. The details follow behind a colon."""


class Joins(NamedTuple):
    """The process may join now."""


class JoinRefused(NamedTuple):
    """The process may not join; ``reason`` begins with one of the words above."""

    reason: str


class JoinWaits(NamedTuple):
    """The answer is not sure yet: the member with this incarnation may be gone."""

    incarnation: int


class Ousts(NamedTuple):
    """The member with the process's name has fallen silent and is to be expelled."""

    incarnation: int


Verdict: TypeAlias = Joins | JoinRefused | JoinWaits | Ousts


def kind_of(reason: str) -> str:
    """The word that begins a refusal."""
    return reason.partition(":")[0]


def judge(control: Control, heard: Heard, asked: JoinAsked) -> Verdict:
    """The answer to a process that asks to join."""
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
            return JoinWaits(member.incarnation)  # a gone member must not decide to which ends the process runs
    return Joins()


def _contradiction(control: Control, asked: JoinAsked) -> str | None:
    """The contradiction between a request and the logs, in words; None: none. No expulsion removes a contradiction."""
    try:
        check_starts(control, {source.topic: source.start for source in asked.topics})
        decide_stores(control, Turn(0), [spec_of(store) for store in asked.stores])
    except ValueError as error:
        return str(error)
    return None


def _is_namesake(member: Member, asked: JoinAsked) -> bool:
    return bool(asked.instance) and member.joined.instance == asked.instance


def _in_the_way(control: Control, asked: JoinAsked) -> Iterator[tuple[Member, str]]:
    """Unfenced members because of which the process can't join now, each with the reason to refuse the process if the
    member is at work: namesakes first, then living members that declare a topic differently. A joined process is not in
    its own way.
    """
    unfenced = [member for member in control.unfenced_members() if member.birth != asked.birth]
    for member in unfenced:
        if _is_namesake(member, asked):
            yield member, f"{NAME_IN_USE}: {_in_use(member)}"
    for member in unfenced:
        known = {source.topic: source for source in member.joined.topics}
        for source in asked.topics if not member.expelled else ():
            if (other := known.get(source.topic)) is not None and not _agrees(source, other):
                yield member, f"{CONTRADICTS}: {_differs(source, other, member)}"


def _agrees(source: Sourced, other: Sourced) -> bool:
    """Whether two declarations may exist side by side. Of two rates the lower rate counts (rates.py)."""
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
