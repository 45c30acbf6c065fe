"""The group model: every interleaving of small worlds, long walks by chance through a large one, the end of all faults.

    python -m tests.group.model [--search] [--minutes 3] [--seed 0]     all small worlds; then walks, for so long

See model_world.py for what there is, model_member.py and model_coordinator.py for what they do.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import NamedTuple

import msgspec

from keylanes.offsets.control_events import (
    AppCreated,
    CoordinatorElected,
    Decision,
    LevelRaised,
    PartitionStarted,
    PlanMade,
    RangesGranted,
)
from keylanes.offsets.event_values import LEVEL, NO_MOVE, Band

from ..offsets.search import Found, search
from . import model_coordinator, model_member
from .model_coordinator import Belief, Office, birth_of_coordinator, voices
from .model_heard import Said, Voice
from .model_judge import appended
from .model_member import Step, Work, blank
from .model_world import (
    ANYTHING,
    APP,
    NO_END,
    OPEN,
    PREPARED,
    STUCK,
    TOPIC,
    CoordinatorProcess,
    Folds,
    World,
    fenced,
    has_entry,
    marked,
    place_of,
    put_coordinator,
    put_member,
    range_of,
    spent,
)
from .model_worlds import LARGE, LONG, NO_FAULTS, SMALL, Design

NOISY_STEPS, QUIET_STEPS = 120, 600
WALKS_OF_A_MODEL = 40
"""What was worked out for them takes room, and is forgotten then."""


class Model:
    """One design, with all that is worked out of it."""

    def __init__(self, design: Design, wanted: tuple[str, ...] = ANYTHING) -> None:
        self.design, self.folds = design, Folds(wanted, design.parts)
        self.work = Work(self.folds, design.records, comes_back=design.comes_back, has_snapshots=design.has_snapshots)
        self.office = Office(self.folds)

    # --- the start ----------------------------------------------------------------------------------------------------

    def start(self) -> World:
        """All points are granted and taken up, nothing is under way."""
        design, points = self.design, self.design.points
        line = self.folds.root.then(AppCreated(APP, "hash", 1), CoordinatorElected(1, "", birth_of_coordinator(0), APP))
        count = points // design.parts
        starts = [PartitionStarted(1, 2 + p, TOPIC, p, 0, "earliest", count) for p in range(count)]
        line = line.then(LevelRaised(1, 1, LEVEL), *starts)
        root = self.folds.root
        members = tuple(
            blank(root, "blue" if kind in "bt" else "", 0, points)._replace(is_alive=False)
            if kind == "t"
            else blank(root, "blue" if kind == "b" else "", 1, points)
            for kind in design.members
        )
        coordinators = tuple(CoordinatorProcess(line, root) for _ in range(design.coordinators))
        edges, nothing = (0,) * points, frozenset[tuple[int, int]]()
        world = World(line, (), root, (), members, coordinators, edges, nothing, NO_FAULTS, parts=design.parts)
        world = put_coordinator(world, 0, term=1)
        joins = tuple(Voice(0, p.instance, f"m{i}.1") for i, p in enumerate(members) if p.is_alive)
        while True:
            known = voices(self.folds, world.control)
            asks = tuple(v for v in joins if v.birth not in {one.birth for one in known})
            events = tuple(self.office.batch(0, world.coordinators[0], Belief(Said(known, asks=asks))).decisions)
            if any(isinstance(event, PlanMade) for event in events) and design.is_dealt:
                events = (*self._dealt(events[0]),)
            if not events:
                break
            world = appended(self.folds, world, world.control, events)
            world = model_coordinator.has_read(self.folds, world, 0, world.control)
        for k in range(design.coordinators):
            world = model_coordinator.has_read(self.folds, world, k, world.control)
        for i, kind in enumerate(design.members):
            if kind == "t":
                continue
            world = model_member.has_read(self.work, world, i, world.control)
            if kind != "n":
                world = put_member(world, i, producer="ready", is_newest=True)
            if design.lags and i == 0:
                assert world.control.before is not None
                world = put_member(world, i, control=world.control.before)
        return self.settled(world._replace(budget=design.budget))

    def _dealt(self, plan: Decision) -> Iterator[Decision]:
        """In place of the first plan: each member has some of each partition."""
        assert isinstance(plan, PlanMade)
        yield msgspec.structs.replace(plan, moves=())
        for point in range(self.design.points):
            (topic, partition), part = place_of(point, self.design.parts), point % self.design.parts
            within, who = range_of(point, self.design.parts), 1 + part % len(self.design.members)
            band = Band(within.first, within.end, 0)
            number = plan.number + 1 + point
            yield RangesGranted(plan.term, number, NO_MOVE, who, part + 1, topic, partition, (band,), (), ())

    # --- what may happen ----------------------------------------------------------------------------------------------

    def steps(self, world: World, *, is_quiet: bool = False) -> Iterator[Step]:
        """All that may happen next; ``is_quiet``: no faults any more."""
        for place, entry in enumerate(world.tail):
            if entry.status == PREPARED:
                yield f"i{entry.owner}'s transaction {entry.number} is marked", partial(marked, world, place)
            elif entry.status == OPEN:
                yield from self._time_outs(world, entry.owner, is_quiet=is_quiet)
        for n, (basis, events) in enumerate(world.late):
            rest = world._replace(late=world.late[:n] + world.late[n + 1 :])
            yield (
                f"{', '.join(map(model_coordinator.told, events))} lands late",
                partial(appended, self.folds, rest, basis, events),
            )
        if world.budget.stranger and not is_quiet:
            yield from self._strangers(world)
        for i in range(len(world.members)):
            yield from model_member.steps_of(self.work, world, i, is_quiet=is_quiet)
        for k in range(len(world.coordinators)):
            yield from model_coordinator.steps_of(self.office, world, k, is_quiet=is_quiet)

    def _time_outs(self, world: World, owner: int, *, is_quiet: bool) -> Iterator[Step]:
        is_there = any(process.is_alive and process.incarnation == owner for process in world.members)
        if not is_there:
            yield f"i{owner}'s transaction times out", lambda: fenced(world, owner)
        elif world.budget.fail and not is_quiet:
            yield f"i{owner}'s transaction times out", lambda: spent(fenced(world, owner), "fail")

    def _strangers(self, world: World) -> Iterator[Step]:
        """Somebody who is not the group fences a member that has a producer."""
        for owner in sorted(process.incarnation for process in world.members if process.is_newest):
            if not has_entry(world, owner, PREPARED):
                yield f"somebody fences i{owner}", partial(fenced, spent(world, "stranger"), owner)

    def settled(self, world: World) -> World:
        """What processes do by themselves is done."""
        has_changed = True
        while has_changed:
            has_changed = False
            for i in range(len(world.members)):
                while (after := model_member.local(self.work, world, i)) is not None:
                    world, has_changed = after, True
            for k in range(len(world.coordinators)):
                while (after := model_coordinator.local(world, k)) is not None:
                    world, has_changed = after, True
        return world

    def after(self, step: Callable[[], World]) -> World:
        """The world behind a step."""
        return self.settled(step())

    def successors(self, world: World) -> Iterator[tuple[str, World]]:
        """Each step with the world behind it; none behind a wrong one."""
        if not world.wrong:
            for label, step in self.steps(world):
                yield label, self.after(step)

    # --- the end ------------------------------------------------------------------------------------------------------

    def unrest(self, world: World) -> str:
        """What is not as it must become; nothing: all is."""
        if world.late or world.tail:
            return "something is undecided"
        there = [p for p in world.members if p.is_alive and not p.has_ended]
        if any(not p.incarnation for p in there):
            return "somebody asks to join"
        if any(p.leaves for p in there):
            return "somebody leaves"
        for point, edge in enumerate(world.edges) if there else ():
            epoch, owner = self.folds.owner(world.control, point)
            held = next((p.held[point] for p in there if p.incarnation == owner), None)
            if held is None or held.epoch != epoch or held.edge != edge or edge < self.design.records:
                return f"point {point} is nobody's, or stands at {edge}"
        return ""


class Walk(NamedTuple):
    """A way by chance: what was wrong at its end, and the steps."""

    wrong: str
    path: tuple[str, ...]
    reached: Counter[str]


Watch = Callable[[Model, World, str, World], Iterator[str]]


def unwatched(model: Model, before: World, label: str, after: World) -> Iterator[str]:
    """Nothing is looked for."""
    return iter(())


def walk(
    model: Model, seed: int, *, noisy: int = NOISY_STEPS, quiet: int = QUIET_STEPS, watch: Watch = unwatched
) -> Walk:
    """So many steps with faults, drawn with likings of their own; then none, until nothing happens any more."""
    chance, world = Random(seed), model.start()
    path, likings, reached = list[str](), dict[str, float](), Counter[str]()
    by_process = chance.random() < 0.5

    def weight(label: str) -> float:
        words = label.split()
        key = " ".join(words[: 1 if by_process else 3]) + label[-4:]
        return likings.setdefault(key, chance.choice((0.02, 0.2, 1.0, 1.0, 5.0)))

    for number in range(noisy + quiet):
        may = list(model.steps(world, is_quiet=number >= noisy))
        if not may and number < noisy:
            may = list(model.steps(world, is_quiet=True))
        if not may:
            why = model.unrest(world)
            return Walk(f"{STUCK}: {why}" if why else "", tuple(path), reached)
        weights = None if number >= noisy else [weight(label) for label, _ in may]
        label, step = chance.choices(may, weights)[0]
        before, world = world, model.after(step)
        path.append(label)
        reached.update(watch(model, before, label, world))
        if world.wrong:
            return Walk(world.wrong, tuple(path), reached)
    return Walk(f"{NO_END}: {model.unrest(world)}", tuple(path), reached)


def searched(model: Model, worlds_max: int = 2_000_000) -> Found[World]:
    """Every interleaving: what is wrong, or an end at which not all is as it should be."""
    found = search(
        model.start(),
        model.successors,
        lambda world: [world.wrong] if world.wrong else [],
        model.folds.wanted,
        worlds_max=worlds_max,
    )
    for end in found.ends:
        if (why := model.unrest(end)) and not found.wrong:
            return replace(found, wrong=f"{STUCK}: {why}", path=found.path_to(end))
    return found


def main() -> int:
    """Small worlds when asked for; then walks for so long. Says what was wrong."""
    options = argparse.ArgumentParser(prog="python -m tests.group.model", description=main.__doc__)
    options.add_argument("--minutes", type=float, default=3.0, help="how long walks go on (3)")
    options.add_argument("--seed", type=int, default=0, help="of the first walk (0)")
    options.add_argument("--search", action="store_true", help="search all small worlds first")
    given = options.parse_args()
    wrong = 0
    for name, small in SMALL.items() if given.search else ():
        found = searched(Model(small.design))
        wrong += bool(found.wrong)
        sys.stdout.write(f"{name}: {found if found.wrong else f'{found.worlds} worlds, nothing wrong'}\n")
    began, seed, model = time.monotonic(), given.seed, Model(LARGE)
    while time.monotonic() < began + 60 * given.minutes:
        if (seed - given.seed) % WALKS_OF_A_MODEL == 0:
            design = LONG if seed // WALKS_OF_A_MODEL % 2 else LARGE
            model = Model(design)
        way = walk(model, seed, noisy=NOISY_STEPS * (1 if model.design is LARGE else 4))
        if way.wrong:
            wrong += 1
            sys.stdout.write(f"seed {seed}: {way.wrong}\n    " + "\n    ".join(way.path[:400]) + "\n")
        seed += 1
    sys.stdout.write(f"{seed - given.seed} walks, {wrong} wrong, {time.monotonic() - began:.0f} s\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
