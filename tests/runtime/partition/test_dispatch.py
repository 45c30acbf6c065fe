"""Dispatch, generations and structure against the model of dispatch_model.py; and single cases to be checked by eye."""

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keylanes.runtime.partition import cut as structure
from keylanes.runtime.partition import generation
from keylanes.runtime.partition.dispatch import PartitionDispatch

from ...tiers.marks import tier
from .dispatch_model import Parts, drive

pytestmark = tier("check")

STEPS = 150
PLANT_SEEDS = 400


@settings(max_examples=150)
@example(170)  # a worker that has outputs in a stretch is split, and the transaction is refused
@given(st.integers(0, 1 << 32))
def test_every_record_reaches_its_worker_once_and_in_order(seed: int) -> None:
    """Whatever readers, workers, generations and changes of structure do, in any order, no rule is broken."""
    drive(seed, STEPS)


# --- planted defects ------------------------------------------------------------------------------------------------


def mutated(function: Callable[..., Any], old: str, new: str) -> Any:
    """The function with a piece of its source replaced."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{function.__qualname__} no longer holds {old!r} once: plant this defect anew"
    scope = dict(inspect.unwrap(function).__globals__)
    exec(source.replace(old, new), scope)  # noqa: S102  # a defect is a change of the very source
    return scope[function.__name__]


def look_for(name: str, runs: int, run: Callable[[int], object]) -> None:
    """Fail unless one of so many runs fails, each with a seed of its own."""
    for seed in range(runs):
        try:
            run(seed)
        except Exception:  # noqa: BLE001  # whatever it is that finds it
            return
    pytest.fail(f"{runs} runs did not find: {name}")


def planted(name: str, old: str, new: str) -> Parts:
    """A dispatch with a defect in one method."""
    method = mutated(getattr(PartitionDispatch, name), old, new)
    return Parts(dispatch=type("Planted", (PartitionDispatch,), {name: method}))


def tallying(old: str, new: str) -> Any:
    """``take`` with a defect in how it counts what stretches send."""
    take = mutated(
        generation.take_generation, "_tally(dispatch, shares, stretches)", "_tally(dispatch, shares, stretches)"
    )
    take.__globals__["_tally"] = mutated(generation._tally, old, new)
    return take


CLEARED = "if batch.offset_next >= front:"
DROPPED = "worker.dropped_from = record.offset"

PLANTS: dict[str, Callable[[], Parts]] = {
    "dropped_from cleared only beyond the front": lambda: planted("catch_up", CLEARED, "if batch.offset_next > front:"),
    "dropped_from cleared before the front": lambda: planted("catch_up", CLEARED, "if batch.offset_next >= front - 1:"),
    "the pass hands out what lies at or beyond the front": lambda: planted(
        "catch_up", "if offset >= front:", "if False:"
    ),
    "the front at the last record + 1": lambda: planted(
        "pass_by",
        "self.front = max(self.front, batch.offset_next)",
        "self.front = max([self.front, *(r.offset + 1 for r in batch.records)])",
    ),
    "the front moved before the hand-out": lambda: planted(
        "hand_out", "self.pause(route.record)", "self.pass_by(batch)"
    ),
    "the front past the record at which the reader stands": lambda: planted(
        "pause", "record.offset)", "record.offset + 1)"
    ),
    "the front at a record that runs straight": lambda: planted("begin", "record.offset + 1)", "record.offset + 9)"),
    "a record that runs straight is not its worker's": lambda: planted(
        "begin", "worker.running = record", "worker.running = None"
    ),
    "a line inside a stretch": lambda: planted(
        "take_stretches", "first is self._stretch or first.offset_to > line", "first.offset_from >= line"
    ),
    "a stretch left behind its line": lambda: planted(
        "take_stretches", "return taken, min(line, first.offset_from)", "return taken, line"
    ),
    "a stretch goes on behind a line": lambda: planted("draw_line", "self._stretch = None", "pass"),
    "laid down behind what is kept": lambda: planted("open_stretch", "if worker.done_count:", "if False:"),
    "the outputs of stretches at the wrong worker": lambda: Parts(
        take=mutated(
            generation.take_generation, "_tally(dispatch, shares, stretches)", "_tally(dispatch, shares[:1], stretches)"
        )
    ),
    "the outputs of a stretch whose worker was split or merged": lambda: Parts(
        take=tallying("in _kept_records(dispatch, stretch):", "in ():")
    ),
    "the outputs of a split worker at the child that keeps its place": lambda: Parts(
        split=mutated(structure.split, "or worker in stretch.tallies", "or False")
    ),
    "a later record for a worker that was dropped again": lambda: planted(
        "catch_up", "not position <= worker.dropped_from <= offset", "worker.dropped_from > offset"
    ),
    "a record goes to the worker of another point": lambda: planted(
        "step", "point = cell.point", "point = cell.point >> 1"
    ),
    "the main reader feeds a dropped worker": lambda: planted("step", "worker.dropped_from is not None or ", ""),
    "the main reader feeds below a worker's edge": lambda: planted("step", " or offset < worker.edge", ""),
    "a worker dropped behind its record": lambda: planted("drop", DROPPED, DROPPED + " + 1"),
    "drop_again moves the worker it stands at": lambda: planted("drop_again", "if worker is not owner and", "if"),
    "drop_again takes the worker it once stood at": lambda: planted(
        "drop_again", "owner = self.worker_of(record)", "owner = blocked.worker"
    ),
    "room for a large record is not looked at": lambda: planted(
        "has_room_again", "and held + size <= quota", "or held + size <= quota"
    ),
    "a generation beyond what is done": lambda: Parts(
        take=mutated(generation.take_generation, "min(worker.edge_now(front), line)", "line")
    ),
    "outputs beyond the line": lambda: Parts(
        take=mutated(generation.take_generation, "done[0].record.offset < to:", "done[0].record.offset <= to:")
    ),
    "a split child without dropped_from": lambda: Parts(
        split=mutated(
            structure.split,
            "other.dropped_from, other.done_to = worker.dropped_from,",
            "other.dropped_from, other.done_to = None,",
        )
    ),
    "a split that leaves the queue with one child": lambda: Parts(
        split=mutated(
            structure.split,
            "kept, kept_done = [r for r in worker.queue if stays(r)]",
            "kept, kept_done = [*worker.queue]",
        )
    ),
    "a split that leaves what is done with one child": lambda: Parts(
        split=mutated(structure.split, "if not stays(d.record)", "if False")
    ),
    "a merge of queues out of order": lambda: Parts(
        merge=mutated(
            structure.merge,
            "heapq.merge(*(w.queue for w in workers), key=_offset)",
            "[r for w in workers for r in w.queue]",
        )
    ),
    "a merge of workers that lack records": lambda: Parts(
        hold=mutated(structure.begin_hold, "if any(w.dropped_from is not None for w in workers):", "if False:"),
        have_one_edge=mutated(structure.have_one_edge, " and w.dropped_from is None", ""),
        merge=mutated(structure.merge, "not have_one_edge(workers) or ", ""),
    ),
    "a release that forgets what produced nothing": lambda: Parts(
        wind_up=mutated(
            structure.hold_at_ends,
            "worker.edge_now(dispatch.front) if worker.running is None else worker.running.offset + 1",
            "0 if worker.running is None else worker.running.offset + 1",
        )
    ),
}


@tier("test")
@pytest.mark.interpreted
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_defect_is_found(name: str) -> None:
    """One of the model's runs fails."""
    parts = PLANTS[name]()
    look_for(name, PLANT_SEEDS, lambda seed: drive(seed, STEPS, parts))
