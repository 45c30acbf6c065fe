"""PURE. What a coordinator decides next, by what it has read and heard.

``decide`` goes down the rows below and returns what the first one that has something says: one batch. The host writes
it, and asks again when it has read it back. So each row sees the effect of those before it, and a decision is made on
the folds alone, by whoever coordinates: a successor goes on where this one ended, whatever it had begun.

1. *Fenced.* Who was fenced here is said to be fenced.
2. *Expelled.* Who is silent, has left, is stuck, was superseded, or shall go by request.
3. *Answers.* Who asks to join does, or is refused.
4. *Sources.* Topics get their identity, partitions their start; then stores their numbers.
5. *Ends* of a run to the level are pinned.
6. *Granted.* What is free goes where the newest plan has it.
7. *Withdrawn.* A release whose time is over, or whose target is gone.
8. *Ended.* Copies of state that are of no use any more.
9. *Copies.* Who is to have a copy of state before it owns it, or to keep one.
10. *Asked.* What a member is to give up, by the plan: what has state, when its target has a copy that is near.
11. *Planned.* A cause without an answer, a request, a skew, or bands that should be one lead to a plan: all of what
   shall be, as moves.

What has to be done outside of the logs for one of these is in ``needs``: to fence, to read, to look at topics, to work
out a large plan.

Safety hangs on few of these lines: nothing is granted that is not free (cells.py); FENCED is written only for a fence
that began after the expulsion was read back, in this term; what a fenced member had is read up to an own append that
began behind FENCED, never to an end that some broker tells; numbers (offsets/control.py) keep a late append from
counting. Everything else could be decided wrongly and would only be slow.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from ..offsets.control import Member
from ..offsets.control_events import Decision, EndsPinned, PartitionStarted, SourceIdentified
from ..offsets.decide import StoreSpec, Turn, decide_stores, spec_of
from ..offsets.ledger import Place
from . import copies, learning, members, moves, plans
from .cells import CellState
from .view import DecisionBatch, View


class Needs(NamedTuple):
    """What is to be done outside of the control log: members to fence, (place, epoch) to read to the true end, source
    topics to look at, partitions of the offset log to open, whether the ends of the sources are wanted. ``solve``: a
    plan that is to be worked out (plans.py); its answer goes into ``Seat.answer``.
    """

    fence: list[Member]
    read: list[tuple[Place, int]]
    look: list[str]
    open: list[int]
    ends: bool
    solve: plans.Question | None = None


Row: TypeAlias = Callable[[View, Turn], DecisionBatch]


def decide(view: View, turn: Turn) -> DecisionBatch:
    """What is to be written next, numbered by ``turn``; nothing: an empty batch. What is known of names stays known to
    the seat: the state that waits for them is granted in several steps.
    """
    view.seat.renamed |= copies.renamed_members(view)
    for row in ROWS:
        batch = row(view, turn)
        if batch.decisions or batch.answered:
            return batch
    return DecisionBatch()


def needs(view: View) -> Needs:
    """What is to be done outside of the logs before more can be decided."""
    control, seat = view.control, view.seat
    fence = [member for member in control.unfenced() if member.expelled and member.incarnation not in seat.fenced]
    unread = sorted(
        {
            (place, cell.epoch)
            for place in view.standings.unread
            for cell in view.cells(place)
            if cell.standing is CellState.UNREAD
        }
    )
    has_joined = control.member_of(seat.birth) is not None
    wants_ends = view.lacks_ends and seat.ends is None and not view.unseen
    opens = view.unopened if has_joined else []
    return Needs(fence, unread, view.unseen, opens, wants_ends, plans.open_question(view))


def _sources(view: View, turn: Turn) -> DecisionBatch:
    control, found = view.control, sorted(view.seat.found.items())
    decisions: list[Decision] = [
        SourceIdentified(*turn.next(), topic, one.identity)
        for topic, one in found
        if one.identity and topic not in control.identities
    ]
    for topic, one in found:
        for partition, begun in one.begun:
            if (topic, partition) not in control.started:
                offset, start, partitions = begun
                decisions.append(PartitionStarted(*turn.next(), topic, partition, offset, start, partitions))
    return DecisionBatch(decisions)


def _stores(view: View, turn: Turn) -> DecisionBatch:
    """When all partitions of their topics are started: so whoever finds a store and a partition that was not started
    knows that the partition is new.
    """
    wanted: list[StoreSpec] = []
    for birth, asked in view.heard.asked.items():
        for store in asked.stores if view.control.member_of(birth) is not None else ():
            topic = view.seat.found.get(store.topic)
            known = sum(place[0] == store.topic for place in view.control.started)
            if topic is not None and topic.partitions <= known and store.name not in view.control.stores:
                spec = spec_of(store)
                wanted += [spec] if spec not in wanted else []
    return DecisionBatch(decide_stores(view.control, turn, wanted) if wanted else ())


def _ends(view: View, turn: Turn) -> DecisionBatch:
    if view.seat.ends is None or not view.lacks_ends:
        return DecisionBatch()
    return DecisionBatch([EndsPinned(*turn.next(), view.seat.ends)])


ROWS: Final[tuple[Row, ...]] = (
    members.tell_fenced,
    members.expel_members,
    members.answers,
    _sources,
    _stores,
    _ends,
    moves.grant_ranges,
    moves.withdrawn,
    learning.end_copies,
    learning.ask_copies,
    moves.ask_releases,
    plans.make_plan,
)
"""In order of precedence."""
