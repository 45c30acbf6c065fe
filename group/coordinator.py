"""PURE. The next decision of a coordinator, from the logs and the signals.

``decide`` goes down the rows below and returns the batch of the first row with something to write. The host writes the
batch, reads the batch back, and calls ``decide`` again. So each row sees the effects of the rows above. A decision
depends on the folds alone: a new coordinator continues the work of its predecessor.

1. *Fenced.* Tell which members this coordinator has fenced.
2. *Expelled.* Expel members: silent, left, stuck, superseded, or by request.
3. *Answers.* Admit or refuse each process asking to join.
4. *Sources.* Give topics their identity and partitions their start, then stores their numbers.
5. *Ends.* Pin the ends for members that run until they have caught up.
6. *Granted.* Grant free points by the newest plan.
7. *Withdrawn.* Withdraw requests to release whose time is over, or whose target is gone.
8. *Ended.* End copies of state without a use.
9. *Copies.* Ask members for copies of state: before they own the state, or as standbys.
10. *Asked.* Ask owners to release points by the plan. For points with state the target must have a ready copy.
11. *Planned.* Answer a cause, a request, a skew or touching bands with a plan: the whole assignment, as moves.

``needs`` names the work outside of the control log: members to fence, logs to read, topics to look up, a large plan to
work out.

Four rules carry the safety. Any other line could decide wrongly, and the group would only be slow.

- Only free points are granted (cells.py).
- FENCED follows only a fence that began after the expulsion was read back, in this term.
- The log of a fenced member is read up to an own append that began after FENCED, never to an end told by a broker.
- An append that arrives late does not count, because each decision has a number (offsets/control.py).
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from ..offsets.control import Member
from ..offsets.control_events import Decision, EndsPinned, PartitionStarted, SourceIdentified
from ..offsets.decide import StoreSpec, Turn, decide_stores, spec_of
from ..offsets.ledger import SourcePartition
from . import copy_requests, members, moves, plan_moves, plans
from .cells import CellState
from .view import DecisionBatch, View


class Needs(NamedTuple):
    """The work outside of the control log.

    ``fence``: members to fence; ``read``: (place, epoch) to read to the true end of the offset log; ``look``: source
    topics to look up; ``open``: partitions of the offset log to open; ``ends``: whether the ends of the sources are
    wanted. ``solve``: the question for a large plan (plans.py). The host puts the answer into
    ``CoordinatorMemory.answer``.
    """

    fence: list[Member]
    read: list[tuple[SourcePartition, int]]
    look: list[str]
    open: list[int]
    ends: bool
    solve: plan_moves.PlanQuestion | None


Row: TypeAlias = Callable[[View, Turn], DecisionBatch]


def decide(view: View, turn: Turn) -> DecisionBatch:
    """The next batch to write, numbered by ``turn``. An empty batch: nothing to write.

    ``DecisionBatch.noted`` is for ``CoordinatorMemory.note``: the rows change nothing in what they are given.
    """
    for row in ROWS:
        batch = row(view, turn)
        if batch.decisions or batch.answered:
            break
    return batch._replace(noted=batch.noted._replace(renamed=view.renamed))


def needs(view: View) -> Needs:
    """The work outside of the control log that must be done before further decisions."""
    control, seat = view.control, view.memory
    fence = [
        member for member in control.unfenced_members() if member.expelled and member.incarnation not in seat.fenced
    ]
    unread = sorted(
        {
            (place, cell.epoch)
            for place in view.places.unread
            for cell in view.cells(place)
            if cell.state is CellState.UNREAD
        }
    )
    has_joined = control.member_of(seat.birth) is not None
    wants_ends = view.lacks_ends and seat.ends is None and not view.unseen
    opens = view.unopened_logs if has_joined else []
    return Needs(
        fence=fence, read=unread, look=view.unseen, open=opens, ends=wants_ends, solve=plans.open_question(view)
    )


def _sources(view: View, turn: Turn) -> DecisionBatch:
    control, found = view.control, sorted(view.memory.sources.items())
    decisions: list[Decision] = [
        SourceIdentified(*turn.next(), topic, one.identity)
        for topic, one in found
        if one.identity and topic not in control.identities
    ]
    for topic, one in found:
        for partition, begun in one.begun:
            if (topic, partition) not in control.started:
                offset, start, partitions = begun
                decisions.append(
                    PartitionStarted(
                        *turn.next(),
                        topic=topic,
                        partition=partition,
                        offset=offset,
                        start=start,
                        partitions=partitions,
                    )
                )
    return DecisionBatch(decisions)


def _stores(view: View, turn: Turn) -> DecisionBatch:
    """Declare stores once all partitions of their topics are started. So if a topic has a declared store, and one of
    its partitions is not started, the partition was added to the topic later.
    """
    wanted: list[StoreSpec] = []
    for birth, asked in view.heard.join_requests.items():
        for store in asked.stores if view.control.member_of(birth) is not None else ():
            topic = view.memory.sources.get(store.topic)
            known = sum(place[0] == store.topic for place in view.control.started)
            if topic is not None and topic.partitions <= known and store.name not in view.control.stores:
                spec = spec_of(store)
                wanted += [spec] if spec not in wanted else []
    return DecisionBatch(decide_stores(view.control, turn, wanted) if wanted else ())


def _ends(view: View, turn: Turn) -> DecisionBatch:
    if view.memory.ends is None or not view.lacks_ends:
        return DecisionBatch()
    return DecisionBatch([EndsPinned(*turn.next(), view.memory.ends)])


ROWS: Final[tuple[Row, ...]] = (
    members.tell_fenced,
    members.expel_members,
    members.answer_joins,
    _sources,
    _stores,
    _ends,
    moves.grant_ranges,
    moves.withdraw_requests,
    copy_requests.end_copies,
    copy_requests.ask_copies,
    moves.ask_releases,
    plans.make_plan,
)
"""The rows, in order of precedence."""
