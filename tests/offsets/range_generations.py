"""What a generation of the model of key ranges may be: tiles of any workers, then at most one change of structure."""

from collections.abc import Iterator
from itertools import chain, combinations, pairwise

from .range_model import POINTS, Budget, Design, Event, Merged, Process, Released, Split, Tile, Worker, named, points_of


def generations(design: Design, process: Process) -> Iterator[tuple[str, Process]]:
    """Every generation that may be taken: tiles of any of the workers, then at most one change of structure."""
    for moved in _subsets([w for w in process.workers if w.edge < design.edge_max]):
        tiles = tuple(Tile(point, w.epoch, w.edge) for w in moved for point in range(w.first, w.end))
        label = " ".join(f"{named(w.first, w.end)} [{w.edge}, {w.edge + 1})" for w in moved)
        workers = tuple(w._replace(edge=w.edge + 1) if w in moved else w for w in process.workers)
        for change, events, changed, budget in (("", (), workers, process.budget), *_changes(design, process, workers)):
            if tiles or events:
                yield f"{label}{change}", process._replace(pending=(*tiles, *events), workers=changed, budget=budget)


def _changes(
    design: Design, process: Process, workers: tuple[Worker, ...]
) -> Iterator[tuple[str, tuple[Event, ...], tuple[Worker, ...], Budget]]:
    budget = process.budget
    for worker in workers if budget.splits else ():
        for at in range(worker.first + 1, worker.end):
            event = Split(at, worker.epoch)
            yield f" split at {POINTS[at]}", (event,), _split(workers, at), budget._replace(splits=budget.splits - 1)
    for left, right in pairwise(workers) if budget.merges else ():
        if _may_merge(design, left, right):
            one = tuple(sorted({*workers} - {left, right} | {left._replace(end=right.end)}))
            budget_left = budget._replace(merges=budget.merges - 1)
            yield f" merge {named(left.first, right.end)}", (Merged(right.first, left.epoch),), one, budget_left
    leaving = points_of(design.leaves)
    held = {point: w.epoch for w in workers for point in range(w.first, w.end)}
    if budget.releases and all(point in held for point in leaving):
        events: list[Event] = []
        for at in (leaving[0], leaving[-1] + 1):  # whole workers make up what leaves
            if any(w.first < at < w.end for w in workers):
                events.append(Split(at, held[at]))
                workers = _split(workers, at)
        events += [Released(point, held[point]) for point in leaving]
        workers = tuple(w for w in workers if w.first not in leaving)
        yield f" release {design.leaves}", tuple(events), workers, budget._replace(releases=budget.releases - 1)


def _may_merge(design: Design, left: Worker, right: Worker) -> bool:
    is_level = left.edge == right.edge or not design.merges_level
    is_one_grant = left.epoch == right.epoch or not design.merges_one_grant
    is_one_log = design.log_of[left.first] == design.log_of[right.first]
    return left.end == right.first and is_level and is_one_grant and is_one_log


def _split(workers: tuple[Worker, ...], at: int) -> tuple[Worker, ...]:
    parent = next(w for w in workers if w.first < at < w.end)
    children = {parent._replace(end=at), parent._replace(first=at)}
    return tuple(sorted({*workers} - {parent} | children))


def _subsets(workers: list[Worker]) -> Iterator[tuple[Worker, ...]]:
    return chain.from_iterable(combinations(workers, count) for count in range(len(workers) + 1))
