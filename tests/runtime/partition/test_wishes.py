"""Wishes against the model of wishes_model.py."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylanes.keyrange.ranges import WHOLE, even_bounds
from keylanes.runtime.partition import wishes
from keylanes.runtime.partition.wishes import ReleaseWish, Wishes

from ...tiers.marks import tier
from .test_cut import LEFT, dispatch_of, take_all
from .test_dispatch import look_for, mutated
from .wishes_model import WishParts, drive_wishes

pytestmark = tier("check")

STEPS = 150
PLANT_SEEDS = 400


@settings(max_examples=50)
@given(st.integers(0, 1 << 32))
def test_every_wish_is_answered_once_and_by_what_it_led_to(seed: int) -> None:
    """Whatever is asked for, whenever: owners, edges and answers are those of a model of sets of points."""
    drive_wishes(seed, STEPS)


@pytest.mark.parametrize("declared", [1, 2])
def test_only_what_was_declared_with_one_worker_is_given_up_as_a_whole(declared: int) -> None:
    """It was split, and a record runs on one side: the other side waits for it, or goes at once."""
    dispatch = dispatch_of(2, [LEFT[0]])
    busy = next(worker for worker in dispatch.workers if worker.queue)
    dispatch.next_record(busy)
    wishes = Wishes(1_000)
    wishes.ask(ReleaseWish(dispatch, WHOLE, even_bounds(declared)))
    take_all(dispatch)
    assert len(wishes.change(0.0).changes) == declared - 1
    dispatch.finish(busy, None)
    take_all(dispatch)
    assert len(wishes.change(0.0).changes) == 1
    assert dispatch.workers == []


# --- planted defects ------------------------------------------------------------------------------------------------


def planted(name: str, old: str, new: str) -> WishParts:
    """Wishes with a defect in one method."""
    method = mutated(getattr(Wishes, name), old, new)
    return WishParts(wishes=type("Planted", (Wishes,), {name: method}))


def granted(old: str, new: str) -> WishParts:
    """Wishes with a defect in how workers are added for a grant."""
    take_up = mutated(Wishes.add_grant, "ranges = list(within)", "ranges = list(within)")
    take_up.__globals__["add_granted"] = mutated(wishes.add_granted, old, new)
    return WishParts(wishes=type("Planted", (Wishes,), {"add_grant": take_up}))


PLANTS: dict[str, Callable[[], WishParts]] = {
    "the children at the borders of a release keep their old edges": lambda: planted(
        "_begin_leaving", "self._heirs += [(worker, worker.taken_to) for worker in dispatch.workers]", "pass"
    ),
    "records of a range that is given up are begun": lambda: planted(
        "_begin_leaving", "hold_at_ends(dispatch, workers)", "pass"
    ),
    "a range is released while one of its records runs": lambda: planted(
        "_leave", "if are_releasable([worker])", "if True"
    ),
    "a release waits until all of it is through": lambda: planted(
        "_leave", "if through:", "if len(through) == len(leaving.workers):"
    ),
    "what is given up already is given up again": lambda: planted("_to_leave", " and worker not in leaving", ""),
    "a hold goes on while its range is given up": lambda: planted(
        "_begin_leaving", "for held in [h for h in self.holds if h.dispatch is dispatch]:", "for held in ():"
    ),
    "a release that is never told to be done": lambda: planted("_leave", "self._fulfilled.append(wish)", "pass"),
    "a merged worker goes on from its left part's committed edge": lambda: planted(
        "_end_hold", "(heir, heir.taken_to)", "(heir, held.workers[0].edge)"
    ),
    "a merge that is never told to be done": lambda: planted("_end_hold", "if held.wish is not None:", "if False:"),
    "a hold that never ends": lambda: planted("_end_hold", "elif now >= held.until_s:", "elif False:"),
    "a hold that ends before its time": lambda: planted("_end_hold", "elif now >= held.until_s:", "elif True:"),
    "the children of a split keep their old edges": lambda: planted(
        "_split", "reshaped.heirs += [(w, w.taken_to) for w in dispatch.workers if at in (w.first, w.end)]", "pass"
    ),
    "a split that is undone by merging to the wanted cut": lambda: planted(
        "_split", "if dispatch in self.wanted:", "if False:"
    ),
    "a worker is split while it is held": lambda: planted("_split", "elif worker.hold_at is not None:", "elif False:"),
    "a worker is held twice": lambda: planted(
        "_begin_merge", "elif any(w.hold_at is not None for w in group):", "elif False:"
    ),
    "a merge of less than what was asked for": lambda: planted(
        "_begin_merge", "or sum(w.end - w.first for w in group) != within.size", ""
    ),
    "a split is carried out twice": lambda: planted("change", "self.splitting.remove(splitting)", "pass"),
    "a split of what is given up": lambda: planted("ask", "w.first < wish.at < w.end", "False"),
    "a grant to another process is taken up": lambda: planted(
        "add_grant", " or part.incarnation != dispatch.incarnation", ""
    ),
    "a grant over what is held is taken up": lambda: planted(
        "add_grant", "(worker := _worker_inside(dispatch, ranges)) is not None", "False"
    ),
    "a wish is told to be done twice": lambda: planted(
        "settle", "settled, self._fulfilled = self._fulfilled, []", "settled = self._fulfilled"
    ),
    "what is withdrawn is done": lambda: planted(
        "withdraw", "other for other in self.splitting if other is not wish", "*self.splitting"
    ),
    "what was granted is held under the grant of before": lambda: granted("dispatch.epoch = part.epoch", "pass"),
    "what was granted begins at its first edge": lambda: granted(
        "edge_at(part.edges)", "lambda first: edge_at(part.edges)(span[0])"
    ),
}


@tier("test")
@pytest.mark.interpreted
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_defect_is_found(name: str) -> None:
    """One of the model's runs fails."""
    parts = PLANTS[name]()
    look_for(name, PLANT_SEEDS, lambda seed: drive_wishes(seed, STEPS, parts))
