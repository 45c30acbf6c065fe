"""PURE. The coordinator's rows about members: fenced, expelled and joining members, and members free to go.

A leaving member with state works on until other members have copies. A *dismissed* member has nothing to wait for: the
member releases all ranges unasked.
"""

from itertools import takewhile
from typing import Final

from ..offsets.control import Member, apply_event
from ..offsets.control_events import Decision, LevelRaised, MemberExpelled, MemberFenced, MemberJoined, MemberRefused
from ..offsets.decide import Turn
from ..offsets.event_values import LEVEL
from ..offsets.signals import DIED, JoinAsked
from .cells import CellState
from .features import JoinRefused, Joins, Ousts, judge
from .view import DecisionBatch, View

ASKS_INTERVALS: Final = 3
"""A process asks to join in each interval. After this many intervals without a request the process counts as gone."""
SILENT: Final = "silent"
LEFT: Final = "left"
STUCK: Final = "stuck"
SUPERSEDED: Final = "superseded"
OPERATOR: Final = "operator"
"""The causes of an expulsion."""


def comes_back(cause: str) -> bool:
    """Whether an expelled process may ask to join again, by a new birth. A process that left may not, nor may a
    superseded process. If the cause is forgotten (""), the process asks, and the answer to its request decides.
    """
    return cause not in (LEFT, SUPERSEDED)


def tell_fenced(view: View, turn: Turn) -> DecisionBatch:
    """Tell which members this coordinator has fenced."""
    done = [m for m in view.control.unfenced_members() if m.expelled and m.incarnation in view.memory.fenced]
    return DecisionBatch([MemberFenced(*turn.next(), member.incarnation) for member in done])


def expel_members(view: View, turn: Turn) -> DecisionBatch:
    """Expel members with a cause."""
    causes: dict[int, str] = {}
    answered = tuple(view.heard.expels)
    for asked in view.heard.expels.values():
        causes.setdefault(asked.incarnation, DIED if asked.cause == DIED else OPERATOR)
    for asked_to_join in view.heard.join_requests.values():
        if isinstance(verdict := judge(view.control, view.heard, asked_to_join), Ousts):
            causes.setdefault(verdict.incarnation, SUPERSEDED)
    for member in view.living_members:
        if (cause := _cause_of_expulsion(view, member)) is not None:
            causes.setdefault(member.incarnation, cause)
    decisions = [
        MemberExpelled(*turn.next(), incarnation=member.incarnation, cause=cause, hold_ms=_hold_ms(view, member, cause))
        for member in view.living_members
        if (cause := causes.get(member.incarnation)) is not None
    ]
    return DecisionBatch(decisions, answered)


def _cause_of_expulsion(view: View, member: Member) -> str | None:
    """Why a living member is expelled without a request; None: the member stays."""
    heard, own = view.heard, view.memory.birth
    if view.memory.is_alone and member.birth != own:
        return SUPERSEDED
    silence = heard.silence_of(member.joined.instance, member.birth)
    since_ms = heard.leaving.get(member.incarnation)
    if since_ms is not None and (member.incarnation in heard.done or _has_released_all(view, member.incarnation)):
        return LEFT
    if since_ms is not None and silence.now_ms - since_ms >= view.rules.stop_ms:
        return STUCK
    if member.birth != own and silence.silent_ms(member.birth) >= view.rules.session_ms:
        return SILENT
    return None


def _has_released_all(view: View, incarnation: int) -> bool:
    """Whether a member has released all granted points, by the offset log as read so far."""
    if incarnation not in view.control.points_owned:
        return True
    return not view.unopened_logs and not any(
        cell.owner == incarnation and cell.state is CellState.HELD
        for place in view.control.started
        for cell in view.cells(place)
    )


def _hold_ms(view: View, member: Member, cause: str) -> int:
    """How long the ranges with state of an expelled member wait for its name, in ms. 0: the name will not be back."""
    leaves_for_good = member.incarnation in view.heard.leaving and member.incarnation not in view.heard.returns
    if not member.joined.instance or cause == OPERATOR or leaves_for_good or view.memory.is_alone:
        return 0
    return view.rules.return_ms


def members_dismissed(view: View) -> tuple[int, ...]:
    """Leaving members that need not wait for copies of their state. A member is dismissed for any of four reasons: it
    has no state, no other member can handle the state, its name will be back, or its time is over.
    """
    leavers = [member for member in view.living_members if member.incarnation in view.heard.leaving]
    if not leavers:
        return ()
    topics = view.present.stateful & view.present.able.keys()
    return tuple(
        member.incarnation
        for member in leavers
        if (member.joined.instance and member.incarnation in view.heard.returns)
        or left_ms(view, member) >= view.rules.leave_ms
        or not any(
            cell.owner == member.incarnation and cell.state is CellState.HELD
            for place in view.control.started
            if place[0] in topics
            for cell in view.cells(place)
        )
    )


def left_ms(view: View, member: Member) -> int:
    """The time in ms since a member asked to leave, by the clock of the member's partition of the signals."""
    now_ms = view.heard.silence_of(member.joined.instance, member.birth).now_ms
    return now_ms - view.heard.leaving[member.incarnation]


def answer_joins(view: View, turn: Turn) -> DecisionBatch:
    """Answers to processes that ask to join. Each process is judged as if the processes before had joined. A process
    that was silent for a session since its request is gone: as a member the process would only withhold points from
    others. A request is answered once the process was refused or has joined, and all of its stores have numbers.
    """
    control, decisions, answered = view.control.copy(), list[Decision](), list[str]()
    for birth, asked in view.heard.join_requests.items():
        if view.heard.silent_ms(asked.instance, birth) >= view.rules.session_ms:
            answered.append(birth)
            continue
        if birth in control.refusals or control.member_of(birth) is not None:
            answered += [birth] if all(store.name in control.stores for store in asked.stores) else []
            continue
        if view.heard.silent_ms(asked.instance, birth) >= ASKS_INTERVALS * view.rules.interval_ms:
            continue  # the process has stopped asking, and may be gone
        if _contradicts_before(view, birth):
            continue  # the process is judged once the stores of the process before have their numbers
        verdict = judge(control, view.heard, asked)
        new: list[Decision] = []
        if isinstance(verdict, JoinRefused):
            new = [MemberRefused(*turn.next(), birth, verdict.reason)]
        elif isinstance(verdict, Joins):
            if control.level < LEVEL:
                new = [LevelRaised(*turn.next(), min(asked.level, LEVEL))]
            new.append(_member_joined(view.memory.app, turn, control.incarnation_next, asked))
        for decision in new:
            apply_event(control, decision)  # the copy alone changes, for the processes behind
        decisions += new
    return DecisionBatch(decisions, tuple(answered))


def _contradicts_before(view: View, birth: str) -> bool:
    """Whether a process declares a store differently from a process that asked before and whose store has no number
    yet.
    """
    wanted = {store.name: store for store in view.heard.join_requests[birth].stores}
    before = takewhile(lambda other: other != birth, view.heard.join_requests)
    return any(
        wanted.get(store.name, store) != store and store.name not in view.control.stores
        for other in before
        for store in view.heard.join_requests[other].stores
    )


def _member_joined(app: str, turn: Turn, incarnation: int, asked: JoinAsked) -> MemberJoined:
    ids = tuple(transactional_id(app, incarnation, asked.birth, n) for n in range(asked.producers))
    return MemberJoined(
        *turn.next(),
        incarnation=incarnation,
        instance=asked.instance,
        birth=asked.birth,
        transactional_ids=ids,
        host=asked.host,
        endpoint=asked.endpoint,
        capacity=asked.capacity,
        level=asked.level,
        topics=asked.topics,
        writes=asked.writes,
        until_level=asked.until_level,
    )


def transactional_id(app: str, incarnation: int, birth: str, number: int) -> str:
    """A unique transactional id for one producer of a member."""
    return f"{app}.{incarnation}.{birth}" + (f".{number}" if number else "")
