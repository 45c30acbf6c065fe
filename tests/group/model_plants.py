"""What the group model must find: each rule left out, with the world in which that shows and the name under which.

Most are changes of the production. Where a rule is one for its hosts, such as which end is read to, the model's own
function for that step is in its place.
"""

from dataclasses import replace
from typing import NamedTuple

from keylanes.group import cells, coordinator, features, member, members, plans
from keylanes.group.election import is_coordinator
from keylanes.group.held_ranges import OwnGrants
from keylanes.group.signals_fold import Heard
from keylanes.group.silence import Silence
from keylanes.offsets import control, snapshots
from keylanes.offsets.ledger import SourcePartition

from ..stage.planting import Planting, Put, changed
from . import model_coordinator, model_member
from .finding import row
from .model_world import (
    BLIND,
    DOUBLE,
    EPOCH,
    GAP,
    KNOWN,
    NAMESAKES,
    NO_END,
    NOWHERE,
    OUTAGE,
    OUTSIDE,
    REVIVED,
    STUCK,
    Budget,
    CoordinatorProcess,
    Line,
    World,
    appended_plainly,
    fenced,
    log_end,
    put_coordinator,
    put_member,
    written,
)
from .model_worlds import LARGE, Design

TWICE = (DOUBLE, OUTSIDE)


class Plant(NamedTuple):
    """A rule that is left out. ``finds``: under which of these names; ``walks``: so many ways by chance at most, 0: the
    whole world is searched.
    """

    name: str
    put: Put
    finds: tuple[str, ...]
    design: Design
    walks: int = 0


def both(*puts: Put) -> Put:
    """Several at once."""

    def put(patch: Planting) -> None:
        for one in puts:
            one(patch)

    return put


def in_place(owner: object, name: str, new: object) -> Put:
    """Another function."""

    def put(patch: Planting) -> None:
        patch.setattr(owner, name, new)

    return put


def stable_end(world: World) -> int:
    """Whatever is undecided now is not waited for."""
    return world.offsets.length


def told_end(world: World) -> int:
    """The oldest end that a deposed leader can tell of the offset log."""
    return 0


def told_end_behind_init(world: World, i: int) -> int:
    """The oldest end of the control log, for a member that has begun a transaction before."""
    return 0 if world.members[i].transactions else world.control.length


def told_end_behind_first_init(world: World, i: int) -> int:
    """The oldest end of the control log, for a member that has not."""
    return world.control.length if world.members[i].transactions else 0


def readable_at_once(world: World) -> Line:
    """What was begun is taken for what was committed."""
    return world.offsets.then(*(event for entry in world.tail for event in written(entry, world.parts)))


def made_blindly(world: World, i: int) -> World:
    """INIT, and on."""
    return put_member(fenced(world, world.members[i].incarnation), i, is_newest=True, producer="ready", is_sent=False)


def made_blindly_at_first(world: World, i: int) -> World:
    """The same, where nothing was sent yet."""
    return (made_blindly if world.members[i].transactions == 0 else made)(world, i)


def fence_behind_append(world: World, k: int, incarnation: int) -> World:
    """First the own append, whose position is kept; then, as another step, the fence."""
    if world.coordinators[k].end == NOWHERE:
        world = appended_plainly(world, 0)
        return put_coordinator(world, k, end=log_end(world))
    return fence_member(world, k, incarnation)


def read_to_earlier_append(world: World, k: int, reading: tuple[tuple[SourcePartition, int], ...]) -> World:
    """READ to behind the append that was made before the fence."""
    return put_coordinator(world, k, reading=reading)


def read_as_successor(world: World, k: int, reading: tuple[tuple[SourcePartition, int], ...]) -> World:
    """READ to an own append, if this coordinator has fenced somebody in its term; else to a told end."""
    if world.coordinators[k].fenced:
        return begin_read(world, k, reading)
    return put_coordinator(world, k, reading=reading, end=told_end(world))


def decides_unread(office: model_coordinator.Office, k: int, seat: CoordinatorProcess) -> bool:
    """A process decides as soon as it has stood."""
    control = office.folds.control(seat.control)
    return is_coordinator(control, model_coordinator.birth_of_coordinator(k), seat.term) or seat.term > control.term


made = model_member.made
fence_member, begin_read = model_coordinator.fence_member, model_coordinator.begin_read
numberless = changed(control, "event_counts", ("event.number == control.number + 1", "event.number > 0"))
unread = changed(cells, "cells", ("(place, epoch) in read", "True"))
"""Nothing is READ for a grant."""
ONE_GOES = Design(budget=Budget(expel=1))
ONE_MOVES = Design(budget=Budget(move=1))
PARTS_MOVE = Design(points=2, parts=2, budget=Budget(move=1))
TWINS = Design("bt", budget=Budget(twin=1), comes_back=True)

PLANTS = (
    Plant("decisions count in any turn", numberless, (BLIND,), Design(budget=Budget(expel=1, late=1))),
    Plant(
        "who waits for an answer decides otherwise",
        in_place(model_coordinator, "is_waiting", lambda seat: seat.is_out and seat.unknown is None),
        (BLIND,),
        LARGE,
        walks=2_000,
    ),
    Plant(
        "a batch is taken for read back when its first decision is",
        changed(model_coordinator, "_is_over", ("events[-1]", "events[0]")),
        (BLIND,),
        Design("mmm", records=0, budget=Budget(crash=3, late=1, stale=1)),
    ),
    Plant(
        "JOINED counts once more",
        both(
            numberless,
            changed(
                control,
                "_members",
                (
                    "if event.incarnation > control.incarnation_max and control.member_of(event.birth) is None:",
                    "if True:",
                ),
            ),
        ),
        (REVIVED,),
        Design("m", budget=Budget(expel=2, late=1), comes_back=True),
    ),
    Plant(
        "a grant does not wait for FENCED",
        changed(cells, "_state_of_points", ("if not control.is_fenced(owner):", "if not control.is_expelled(owner):")),
        TWICE,
        ONE_GOES,
    ),
    Plant("FENCED without a fence", row(members, "tell_fenced", ("in view.memory.fenced", "> 0")), TWICE, ONE_GOES),
    Plant(
        "a fence that began before EXPELLED was read back",
        changed(coordinator, "needs", ("if member.expelled and ", "if ")),
        TWICE,
        ONE_GOES,
    ),
    Plant(
        "a successor does not repeat FENCE",
        row(
            members,
            "tell_fenced",
            ("m.incarnation in view.memory.fenced", "(m.incarnation in view.memory.fenced or not turn.number)"),
        ),
        TWICE,
        Design(coordinators=2, budget=Budget(expel=1, elect=1)),
    ),
    Plant(
        "READ before FENCED",
        changed(
            coordinator,
            "needs",
            ("is CellState.UNREAD", "in (CellState.UNREAD, CellState.LEAVING)"),
            ("view.places.unread", "control.started"),
        ),
        TWICE,
        ONE_GOES,
    ),
    Plant(
        "the own append before the fence",
        both(
            in_place(model_coordinator, "fence_member", fence_behind_append),
            in_place(model_coordinator, "begin_read", read_to_earlier_append),
        ),
        TWICE,
        ONE_GOES,
    ),
    Plant("a grant before the own append is read", unread, TWICE, ONE_GOES),
    Plant("READ to a told end", in_place(model_coordinator, "log_end", told_end), TWICE, ONE_GOES),
    Plant(
        "READ to the last stable offset",
        in_place(model_coordinator, "log_end", stable_end),
        TWICE,
        Design(points=2, budget=Budget(expel=1)),
    ),
    Plant(
        "a successor that trusts a told end",
        in_place(model_coordinator, "begin_read", read_as_successor),
        TWICE,
        Design(coordinators=2, budget=Budget(expel=1, elect=1)),
    ),
    Plant(
        "READ for an epoch counts for later ones",
        changed(cells, "cells", ("(place, epoch) in read", "any(one == place for one, _ in read)")),
        TWICE,
        Design("mmm", records=2, budget=Budget(expel=2)),
        walks=4_000,
    ),
    Plant(
        "INIT without READ",
        in_place(model_member, "made", made_blindly),
        (*TWICE, EPOCH),
        Design(budget=Budget(fail=1)),
    ),
    Plant(
        "the first INIT without READ",
        in_place(model_member, "made", made_blindly_at_first),
        TWICE,
        Design("nm", budget=Budget(expel=1)),
    ),
    Plant(
        "READ behind an INIT to a told end",
        in_place(model_member, "end_of_own_append", told_end_behind_init),
        TWICE,
        ONE_GOES,
    ),
    Plant(
        "READ behind the first INIT to a told end",
        in_place(model_member, "end_of_own_append", told_end_behind_first_init),
        TWICE,
        Design("nm", budget=Budget(expel=1)),
    ),
    Plant(
        "what became of the own transaction is read to a told end",
        in_place(model_member, "log_end", told_end),
        (DOUBLE,),
        Design("m", budget=Budget(fail=1)),
    ),
    Plant(
        "what became of the own transaction is read to the last stable offset",
        in_place(model_member, "log_end", stable_end),
        (DOUBLE,),
        Design(points=2, budget=Budget(fail=1)),
    ),
    Plant(
        "an election is acted on that was not read back",
        both(
            in_place(model_coordinator.Office, "decides", decides_unread),
            in_place(model_coordinator, "is_read_back", lambda seat, line: True),
        ),
        (BLIND,),
        Design(coordinators=2, budget=Budget(move=1, elect=1, stale=1)),
    ),
    Plant(
        "what others were granted is taken up",
        changed(OwnGrants, "refresh", (" if o.incarnation == incarnation", "")),
        (EPOCH,),
        ONE_GOES,
    ),
    Plant(
        "who is expelled goes on",
        changed(member, "state_of", ("if member.expelled:", "if False:")),
        TWICE,
        ONE_GOES,
    ),
    Plant(
        "a release that was begun",
        in_place(model_coordinator, "readable", readable_at_once),
        (*TWICE, GAP),
        Design(budget=Budget(move=1, fail=1)),
    ),
    Plant(
        "a release that was asked for, taken for done",
        changed(
            cells,
            "cells",
            (
                "if is_released",
                "if is_released or any(one.epoch == epoch for one in control.moves.release_requests.values())",
            ),
        ),
        TWICE,
        ONE_MOVES,
    ),
    Plant(
        "one of a name joins beside the other",
        changed(features, "_in_the_way", ("if _is_namesake(member, asked):", "if False:")),
        (NAMESAKES,),
        TWINS,
    ),
    Plant(
        "who was superseded comes back and is not refused",
        both(
            in_place(model_member, "comes_back", lambda cause: True),
            changed(
                features,
                "judge",
                ("if heard.beats_since(*of, asked.birth):", "if False:"),
                ("is_silent = heard.silent_ms(*of) >= SHORT_INTERVALS * heard.interval_ms", "is_silent = True"),
            ),
        ),
        (NO_END,),
        TWINS,
        walks=20,
    ),
    Plant(
        "who bears a name in use is not refused",
        changed(features, "judge", ("if heard.beats_since(*of, asked.birth):", "if False:")),
        (STUCK,),
        TWINS,
        walks=20,
    ),
    Plant(
        "a snapshot without what waits",
        changed(snapshots, "take_snapshot", ("raise ValueError(", "str(")),
        TWICE,
        Design(points=2, budget=Budget(expel=1), lags=True, has_snapshots=True),
    ),
    Plant(
        "an idle coordinator's beats are not heard",
        changed(Heard, "_voices", ("return (signal.term,)", "return ()")),
        (NO_END,),
        Design(coordinators=2),
        walks=20,
    ),
    Plant(
        "an outage is silence",
        changed(Silence, "hear", ("if step > self.gap_ms:", "if step < 0:")),
        (OUTAGE,),
        Design(coordinators=2, budget=Budget(outage=1)),
    ),
    Plant(
        "what was released behind its withdrawal is nobody's",
        changed(plans, "_has_orphans", ("return any(", "return False and any(")),
        (STUCK,),
        Design(budget=Budget(move=1, tired=1)),
    ),
    Plant(
        "a move that is done is asked for again",
        changed(control, "_grant", ("control.moves.planned.pop(move, None)", "pass")),
        (NO_END,),
        Design("m", budget=Budget(move=1)),
        walks=20,
    ),
    Plant(
        "what is released in part counts for all that was asked for",
        changed(
            cells,
            "cells",
            (
                "in part.released.all_pieces(first, end):",
                "in [(first, end, any(released for _, _, released in part.released.all_pieces(first, end)))]:",
            ),
        ),
        (*TWICE, GAP),
        PARTS_MOVE,
    ),
    Plant(
        "who has released a part goes on with it",
        changed(model_member, "applied", ("held[one.point] = None", "pass")),
        (*TWICE, EPOCH),
        replace(PARTS_MOVE, records=2),
    ),
    Plant(
        "an epoch is taken up while the own release of its points is not through",
        changed(model_member, "local", ("if process.pending or not isinstance", "if not isinstance")),
        (STUCK,),
        Design("m", points=2, parts=2, budget=Budget(move=1, fail=1)),
    ),
    Plant(
        "a release that was withdrawn stays asked for",
        changed(control, "_moves", ("moves.release_requests.pop(event.move, None)\n            moves", "moves")),
        (KNOWN,),
        replace(PARTS_MOVE, is_dealt=True, budget=Budget(move=1, tired=1)),
    ),
    Plant(
        "taken up below the granted offset",
        in_place(model_member, "taken_up_at", lambda offset_from: max(0, (offset_from or 0) - 1)),
        TWICE,
        replace(ONE_MOVES, records=2),
    ),
    Plant(
        "taken up above the granted offset",
        in_place(model_member, "taken_up_at", lambda offset_from: (offset_from or 0) + 1),
        (GAP,),
        replace(ONE_MOVES, records=3),
    ),
)
