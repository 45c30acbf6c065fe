"""A group and its history in words for people, and as JSON for programs."""

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from typing import Any, Final, TypeVar

from ..group.history import History
from ..group.history_entries import Change, Entry, MoveEntry, MoveState, Party
from ..group.overview import GroupShown, MemberShown, OwnedRange, as_few
from ..group.view import JOIN
from ..keyrange.hashing import SPACE_END
from ..offsets.event_values import NO_MOVE
from ..offsets.ledger import SourcePartition
from .group_logs import GroupMoment
from .moments import seconds, written

RANGES_SHOWN: Final = 8
"""The most ranges of a member on a line."""

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

# --- the group at a moment --------------------------------------------------------------------------------------------


def group_json(app: str, stands: GroupMoment) -> str:
    """The group as one JSON document."""
    group = stands.group
    at = None if stands.at_ms is None else written(stands.at_ms)
    shown: dict[str, Any] = {
        **group._asdict(),
        "state": group.state.value,
        "members": [_member_json(member, stands) for member in group.members],
        "waits": [str(wait) for wait in group.waits],
        "moves": [move._asdict() for move in group.moves],
        "copies": [{**copy._asdict(), "held": [held._asdict() for held in copy.held]} for copy in group.copies],
    }
    return json.dumps({"app": app, "at": at, **shown})


def _member_json(member: MemberShown, stands: GroupMoment) -> dict[str, Any]:
    """A member with its last beat and its load."""
    last_ms = None if stands.heard is None else stands.heard.last_ms.get(member.incarnation)
    cost = stands.costs.get(member.incarnation)
    return {
        **member._asdict(),
        "held": [held._asdict() for held in member.held],
        "share": round(member.share, 6),
        "last_beat": None if last_ms is None else written(last_ms),
        "load": None if cost is None else cost._asdict(),
        "last_beat_age_s": None if last_ms is None else max(0, stands.moment_ms - last_ms) / 1000,
    }


def group_text(app: str, stands: GroupMoment, *, is_all: bool = False) -> str:
    """The group in lines: a line for each member, and the work under way, see ``under_way``."""
    group = stands.group
    at = "" if stands.at_ms is None else f" at {written(stands.at_ms)}"
    epochs = f"group epoch {group.group_epoch}, assignment epoch {group.assignment_epoch}"
    lines = [f"{app}{at}: {group.state.value}, term {group.term}, {epochs}, level {group.level}"]
    for member in group.members:
        name = f" {member.instance}" if member.instance else ""
        host = (member.host or "?") + (f" at {member.endpoint}" if member.endpoint else "")
        role = ", coordinates" if member.is_coordinator else ""
        beat = "" if stands.heard is None else f", {beat_text(member, stands)}"
        load = "" if (busy := busy_text(member, stands)) is None else f", busy {busy}"
        lines.append(
            f"  incarnation {member.incarnation}{name} on {host} ({member.standing}{role}{beat}): "
            f"{ranges_text(member.held)} ({member.share:.0%}{load})"
        )
    if not group.members:
        lines.append("  no member")
    lines += [f"  {line}" for line in under_way(group, is_all=is_all)]
    return "\n".join(lines)


def under_way(group: GroupShown, *, is_all: bool) -> list[str]:
    """The waits, moves and copies in lines: with ``is_all`` a line for each of them, else a line for each partition.

    The line of a partition counts waits with one reason together, and moves of one way, and copies of one member.
    """
    if is_all:
        lines = [
            f"move {one.move}: {one.moving_range.label} {one.way} waits for {one.waits_for}" for one in group.moves
        ]
        lines += [f"incarnation {copy.incarnation} has a copy of {copy.label}" for copy in group.copies]
        return [*map(str, group.waits), *lines]
    told: dict[SourcePartition, list[str]] = {}
    for (place, why), waits in _group_by(group.waits, lambda one: (one.held.topic_partition, one.why)):
        lone = f"{_points(waits[0].held)}{why}"
        told.setdefault(place, []).append(lone if len(waits) == 1 else f"each of {len(waits)} ranges {why}")
    for (place, way), moves in _group_by(group.moves, lambda one: (one.moving_range.topic_partition, one.way)):
        lone = f"move {moves[0].move}: {_points(moves[0].moving_range)}{way} waits for {moves[0].waits_for}"
        told.setdefault(place, []).append(lone if len(moves) == 1 else f"{len(moves)} moves {way}")
    for (place, who), copies in _group_by(group.copies, lambda one: (one.held[0].topic_partition, one.incarnation)):
        lone, ready = f"a copy ({copies[0].role}, {copies[0].progress})", sum(copy.is_ready for copy in copies)
        several = f"{len(copies)} copies, {ready} ready"
        told.setdefault(place, []).append(f"incarnation {who} has {lone if len(copies) == 1 else several}")
    lines = [f"{topic}[{partition}]: {'; '.join(parts)}" for (topic, partition), parts in sorted(told.items())]
    is_counted_together = sum(map(len, told.values())) < len(group.waits) + len(group.moves) + len(group.copies)
    if is_counted_together:
        lines.append("--all tells of each range, move and copy")
    return lines


def _points(held: OwnedRange) -> str:
    return "" if held.is_whole else f"{held.points} "


def _group_by(found: Iterable[T], key: Callable[[T], K]) -> Iterable[tuple[K, list[T]]]:
    parts: dict[K, list[T]] = {}
    for one in found:
        parts.setdefault(key(one), []).append(one)
    return parts.items()


def ranges_text(held: Sequence[OwnedRange]) -> str:
    """The ranges of a member. Touching ranges are joined, whatever their epochs; each partition is named once."""
    few = as_few(held)
    told: list[str] = []
    for (topic, partition), group in groupby(few[:RANGES_SHOWN], lambda one: one.topic_partition):
        own = list(group)
        points = "" if own[0].is_whole else " " + " ".join(one.points for one in own)
        told.append(f"{topic}[{partition}]{points}")
    more = len(few) - RANGES_SHOWN
    return (", ".join(told) or "nothing") + (f" and {more} more" if more > 0 else "")


def busy_text(member: MemberShown, stands: GroupMoment) -> str | None:
    """The seconds that a member's handlers worked or waited in each second, summed up; None: not known."""
    cost = stands.costs.get(member.incarnation)
    return None if cost is None else f"{cost.busy_us_per_s / 1_000_000:.2f} s/s"


def beat_text(member: MemberShown, stands: GroupMoment) -> str:
    """The age of the member's last beat, in words."""
    if stands.heard is None:
        return "?"
    if (last_ms := stands.heard.last_ms.get(member.incarnation)) is not None:
        return f"last beat {max(0, stands.moment_ms - last_ms) / 1000:.1f} s ago"
    return "the signals hold nothing of it" if member.incarnation in stands.heard.expired else "never heard of"


# --- the history ------------------------------------------------------------------------------------------------------


def history_json(app: str, history: History, entries: Sequence[Entry], now_ms: int) -> str:
    """The history as one JSON document; docs/operating.md has its shape."""
    told = {
        "app": app,
        "first": _written(history.first_ms),
        "read": written(now_ms),
        "offset_log_begins": {str(p): written(ms) for p, ms in sorted(history.begins_ms.items())},
        "entries": [_move_json(entry) if isinstance(entry, MoveEntry) else _change_json(entry) for entry in entries],
    }
    return json.dumps(told)


def _written(ms: int | None) -> str | None:
    return None if ms is None else written(ms)


def _party_json(party: Party | None) -> dict[str, Any] | None:
    return None if party is None else party._asdict()


def _change_json(change: Change) -> dict[str, Any]:
    return {
        "kind": change.what,
        "at": written(change.at_ms),
        "member": _party_json(change.party),
        "birth": change.birth,
        "cause": change.cause or None,
        "term": change.term,
    }


def _move_json(move: MoveEntry) -> dict[str, Any]:
    asked, released, still_ms = move.asked, move.released, move.stood_still_ms
    return {
        "kind": "move",
        "state": move.state.name.lower(),
        "topic": move.topic,
        "partition": move.partition,
        "first": move.first,
        "end": move.end,
        "is_whole": move.end - move.first == SPACE_END,
        "from": _party_json(move.origin),
        "to": _party_json(move.target),
        "cause": move.cause,
        "plan": move.plan or None,
        "move": move.move or None,
        "term": move.term,
        "epoch": move.epoch or None,
        "asked": None if asked is None else {"at": written(asked.ms), "by": asked.what},
        "released": None if released is None else {"at": written(released.ms), "by": released.what},
        "granted": _written(move.granted_ms),
        "taken_up": _written(move.taken_up_ms),
        "copy_asked": _written(move.copy_asked_ms),
        "planned": _written(move.planned_ms),
        "withdrawn": _written(move.withdrawn_ms),
        "reason": move.reason or None,
        "stood_still_s": None if still_ms is None else still_ms / 1000,
    }


def history_text(app: str, history: History, entries: Sequence[Entry], now_ms: int) -> str:
    """The history in lines, in the order of the control log. A move has a second line with its times."""
    if history.first_ms is None:
        return f"{app}: the control log is empty"
    lines = [f"{app}: from {_time(history.first_ms)} to {_time(now_ms)}, all times in UTC"]
    lines += [
        f"  partition {log_partition} of the offset log begins at {_time(ms)}: when ranges were released and taken up "
        "before is not known"
        for log_partition, ms in sorted(history.begins_ms.items())
    ]
    entries = _as_few(entries)
    moves = [entry for entry in entries if isinstance(entry, MoveEntry)]
    width = max((len(move.label) for move in moves), default=0)
    columns = _columns([_times(move) for move in moves])
    for entry in entries:
        if isinstance(entry, Change):
            lines.append(_change_line(entry))
            continue
        lines.append(_move_line(entry, width))
        lines.append(f"    {next(columns)}{_tail(entry, now_ms)}".rstrip())
    if not entries:
        lines.append("  nothing of what was asked for")
    return "\n".join(lines)


def _as_few(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, with equal moves of touching ranges joined. A join of several numbered moves has no number."""
    found: list[Entry] = []
    for entry in entries:
        if found and (joined := _merge_moves(found[-1], entry)) is not None:
            found[-1] = joined
        else:
            found.append(entry)
    return found


def _merge_moves(last: Entry, entry: Entry) -> MoveEntry | None:
    """The join of two moves of touching ranges; None unless the moves are equal but for position, number and epoch."""
    if not (isinstance(last, MoveEntry) and isinstance(entry, MoveEntry) and last.end == entry.first):
        return None
    joined = last._replace(end=entry.end, move=last.move if last.move == entry.move else NO_MOVE)
    same = entry._replace(position=last.position, first=last.first, move=joined.move, epoch=last.epoch)
    return joined if same == joined else None


def _time(ms: int) -> str:
    return written(ms).replace("T", " ").rstrip("Z")


def _clock(ms: int) -> str:
    """The time of the day."""
    return _time(ms)[-12:]


def _name(party: Party | None) -> str:
    """The incarnation and the name of a party; without an incarnation the name alone."""
    if party is None:
        return "nobody"
    return f"{party.incarnation} {party.instance}".rstrip() if party.incarnation else party.instance


def _change_line(change: Change) -> str:
    who = f"incarnation {_name(change.party)}" if change.party and change.party.incarnation else change.birth
    host = f" on {change.party.host}" if change.party and change.party.host and change.what == "joined" else ""
    cause = f": {change.cause}" if change.cause else ""
    verb = {"elected": "coordinates", "left": "has left", "joined": "joined"}.get(change.what, f"is {change.what}")
    return f"{_time(change.at_ms)}  {who}{host} {verb}{cause} (term {change.term})"


def _move_line(move: MoveEntry, width: int) -> str:
    shown_ms = move.times_ms()
    listed_ms = move.granted_ms or move.withdrawn_ms or (shown_ms[-1] if shown_ms else 0)
    target = "?" if move.target is None else _name(move.target)
    numbers = [f"plan {move.plan}"] if move.plan else []
    numbers += [f"move {move.move}"] if move.move else []
    way = f"{target} joins its own ranges" if move.cause == JOIN else f"{_name(move.origin)} -> {target}, {move.cause}"
    return f"{_time(listed_ms)}  {move.label:{width}}  {way} ({', '.join([*numbers, f'term {move.term}'])})"


def _times(move: MoveEntry) -> list[str]:
    """The times of a move in columns: the plan, the request for a copy, the four times of the transfer, the withdrawal.

    "" stands for an unknown time. Each time has the duration since the last known time before.
    """
    told: list[str] = []
    before: int | None = None
    asked, released = move.asked, move.released
    for name, ms in (
        ("planned", move.planned_ms),
        ("copy asked", move.copy_asked_ms),
        ("asked" if asked is None else asked.what, None if asked is None else asked.ms),
        ("released" if released is None else released.what, None if released is None else released.ms),
        ("granted", move.granted_ms),
        ("taken up", move.taken_up_ms),
        ("withdrawn", move.withdrawn_ms),
    ):
        passed = "" if ms is None or before is None else f" ({seconds(ms - before)})"
        told.append("" if ms is None else f"{name} {_clock(ms)}{passed}")
        before = before if ms is None else ms
    return told


def _columns(rows: Sequence[Sequence[str]]) -> Any:
    """Lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "".join(f"{text:{width}}  " if width else "" for text, width in zip(row, widths, strict=True))


def _tail(move: MoveEntry, now_ms: int) -> str:
    """The end of a move's second line: how long the range stood still, or the state of an unfinished move."""
    if (still_ms := move.stood_still_ms) is not None:
        # No log has the death of a process: after a fence the time without work began earlier.
        is_lower_bound = move.released is not None and move.released.what == "fenced"
        return f"stood still {'at least ' if is_lower_bound else ''}{seconds(still_ms)}"
    if move.state is MoveState.WITHDRAWN:
        return f"withdrawn: {move.reason}"
    if move.is_open:
        times = move.times_ms()
        why = f", waits for {move.reason}" if move.reason else ""
        return f"{move.state.value}{why}" + (f", for {seconds(max(0, now_ms - times[-1]))}" if times else "")
    return "" if move.state is MoveState.MOVED else move.state.value
