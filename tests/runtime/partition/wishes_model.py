"""Drives Wishes at random, on the dispatch of dispatch_model.py, against sets of points and the real ledger.

Releases, splits and merges are asked for and grants taken up at any time, also foolish ones, and some are withdrawn. A
commit cycle takes a generation, looks at the wishes, and is committed then or later. The model knows who owns which
points by the changes that were told, which wishes are open, and what is being given up; it holds against every answer
the reason why it may be given. The ledger is told all events: it knows of tiles that do not fit together.
"""

import contextlib
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from keylanes.brokers.protocol import ConsumerRecord
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import WHOLE, KeyRange, even_bounds, join_neighbours
from keylanes.offsets.control_events import ControlEvent
from keylanes.offsets.decide import CommitKey, Turn, WorkerAdvance, decide_commits, decide_grant
from keylanes.offsets.event_values import Band
from keylanes.offsets.events import WorkersCut
from keylanes.offsets.ledger import EpochPart, Ledger, evolve_all
from keylanes.runtime.partition import generation
from keylanes.runtime.partition.cut import Cut, Merged, Released, SplitMade
from keylanes.runtime.partition.generation import Generation
from keylanes.runtime.partition.wishes import MergeWish, ReleaseWish, Reshaped, SplitWish, Wish, Wishes
from keylanes.runtime.partition.worker import Worker

from ...stage.log_events import in_turn, partition_started, ranges_granted
from .dispatch_model import PASSES_MAX, SOURCE, Drive, Parts

BEFORE, WE, ANOTHER = 1, 2, 7
"""Incarnations: the process before ours, ours, and one that works on what we release."""

HOLD_MS = 100

Points: TypeAlias = frozenset[int]


@dataclass
class Owners:
    """Who owns which points, by what was told."""

    samples: list[int]
    points: dict[int, Points] = field(default_factory=dict)
    """Of each worker number."""
    used: set[int] = field(default_factory=set)
    merged: list[Points] = field(default_factory=list)
    """What became one since this was emptied."""

    def within(self, first: int, end: int) -> Points:
        """The points of a range."""
        return frozenset(p for p in self.samples if first <= p < end)

    def of(self, point: int) -> int | None:
        """The owner of a point."""
        owners = [number for number, points in self.points.items() if point in points]
        assert len(owners) <= 1, f"{point:08x} has two owners"
        return owners[0] if owners else None

    def is_border(self, at: int) -> bool:
        """Whether no worker owns what lies on both sides."""
        if at in (0, SPACE_END):
            return True
        return self.of(at) is None or self.of(at) != self.of(self.samples[self.samples.index(at) - 1])

    def tell(self, change: Cut | SplitMade | Merged | Released) -> None:
        """Who owns what from here on."""
        match change:
            case Cut():
                for i, (first, end) in enumerate(pairwise(change.bounds)):
                    assert all(self.of(p) is None for p in self.within(first, end)), "cut over another worker"
                    self._begin(change.worker + i, self.within(first, end))
            case SplitMade():
                parent = self.points.pop(change.worker)
                left = frozenset(p for p in parent if p < change.at)
                self._begin(change.left, left)
                self._begin(change.left + 1, parent - left)
            case Merged():
                left, right = self.points.pop(change.left), self.points.pop(change.right)
                assert not [p for p in self.samples if max(left) < p < min(right)], "merged, and no neighbours"
                if left in self.merged:
                    self.merged.remove(left)
                self.merged.append(left | right)
                self._begin(change.worker, left | right)
            case Released():
                gone = frozenset[int]().union(*(self.within(band.first, band.end) for band in change.bands))
                assert all(self.of(p) is not None for p in gone), "released, and not held"
                self.points = {n: points for n, points in self.points.items() if not points <= gone}
                assert all(self.of(p) is None for p in gone), "a worker is released in part"

    def _begin(self, number: int, points: Points) -> None:
        assert points, "a worker without points"
        assert number not in self.used, "a number comes back"
        self.used.add(number)
        self.points[number] = points


@dataclass
class WishParts(Parts):
    """What is driven; a planted defect takes the place of one of them."""

    wishes: type[Wishes] = Wishes


@dataclass
class WishDrive(Drive):
    """One run: as Drive, and what the model knows of wishes."""

    open: dict[Wish, float] = field(default_factory=dict)
    """Not answered, and when they were looked at first; infinite: not yet."""
    answers: dict[Wish, str | None] = field(default_factory=dict)
    fulfilled: list[Wish] = field(default_factory=list)
    """By a generation that is not committed yet."""
    left: dict[ReleaseWish, Points] = field(default_factory=dict)
    """Of each release that is not through, the points that are still here."""
    opening: list[Cut | SplitMade | Merged | Released] = field(default_factory=list)
    heirs: list[tuple[Worker, int]] = field(default_factory=list)
    """What the next generation begins with."""
    pending: Generation | None = None
    transaction: int = 0
    now: float = 0.0

    def _begin_with(self, bounds: tuple[int, ...], edges: dict[int, int]) -> None:
        rng = self.rng
        assert isinstance(self.parts, WishParts)
        more = [b for parts in (1, 2, 3, 4, 5, 8, 9) for b in even_bounds(parts)[:-1]]
        self.samples = sorted({*self.samples, *more})
        self.owners = Owners(self.samples)
        self.wishes = self.parts.wishes(HOLD_MS)
        self.dispatch.incarnation, self.dispatch.epoch = WE, 2
        bands = tuple(Band(a, b, edges[a]) for a, b in pairwise(bounds))
        cut = [WorkersCut(BEFORE, 1, 1, *SOURCE, 0, bounds)] if rng.random() < 0.5 else []
        started = partition_started(0, *SOURCE, 0, "earliest", 1)
        begun = in_turn([started, ranges_granted(0, BEFORE, 1, *SOURCE, bands)])
        before = evolve_all(Ledger(), [*begun, *cut])
        self.ledger = evolve_all(before, self._granted(before, WE))
        self.cut = even_bounds(rng.choice((1, 2, 3, 4)))
        self.wanted = set(self.cut)
        self._take_up(2, WHOLE)
        self._send(self._opened(Generation()))
        assert {w.first for w in self.dispatch.workers} >= set(self.cut) - {SPACE_END}

    # --- what is asked for -------------------------------------------------------------------------------------------

    def split(self) -> None:
        """A split is asked for, or something is withdrawn."""
        if self.rng.random() < 0.1 and self.open:
            wish = self.rng.choice(list(self.open))
            has_begun = wish in self.fulfilled or any(held.wish is wish for held in self.wishes.holds)
            self.wishes.withdraw(wish)
            if not has_begun:
                del self.open[wish]
                if isinstance(wish, ReleaseWish):
                    del self.left[wish]
                    self.active += self.dispatch.runnable()
            return
        at = self.rng.choice(self.samples)
        is_leaving = not self.owners.is_border(at) and at in self._all_left()
        self._ask(SplitWish(self.dispatch, at), is_refused=is_leaving)

    def merge(self) -> None:
        """A merge is asked for, of neighbours or of any range."""
        workers = self.dispatch.workers
        within = self._some_range()
        if len(workers) >= 2 and self.rng.random() < 0.8:
            i = self.rng.randrange(len(workers) - 1)
            j = min(len(workers), i + self.rng.choice((2, 2, 3, 9)))
            within = KeyRange(workers[i].first, workers[j - 1].end)
        inside = self.owners.within(within.first, within.end)
        self._ask(MergeWish(self.dispatch, within), is_refused=bool(inside & self._all_left()))

    def release(self) -> None:
        """A release is asked for, or a range that was released is granted anew, to us or to others before."""
        away = self._away()
        if not away or self.rng.random() < 0.5:
            within = self._some_range()
            inside = self.owners.within(within.first, within.end) - self._all_left()
            held = frozenset(p for p in inside if self.owners.of(p) is not None)
            wish = ReleaseWish(self.dispatch, within)
            self._ask(wish, is_refused=not held)
            if held:
                self.left[wish] = held
                parted = self._tell_opening()
                assert {split.at for split in parted if isinstance(split, SplitMade)} <= {within.first, within.end}
                assert all(isinstance(split, SplitMade) for split in parted), "a release begins with splits alone"
        else:
            self._grant(self.rng.choice(away))

    def _some_range(self) -> KeyRange:
        first, end = sorted(self.rng.sample([*self.samples, SPACE_END], 2))
        if self.rng.random() < 0.5 and self.dispatch.workers:
            worker = self.rng.choice(self.dispatch.workers)
            return KeyRange(worker.first, worker.end)
        return KeyRange(first, end)

    def _all_left(self) -> Points:
        """What is being given up."""
        return frozenset[int]().union(*self.left.values())

    def _away(self) -> list[KeyRange]:
        """Ranges that were released, and that this is committed of: the coordinator grants these alone."""
        bounds = [*self.samples, SPACE_END]
        unowned = [KeyRange(a, b) for a, b in pairwise(bounds) if self.owners.of(a) is None]
        free = [
            piece
            for piece in unowned
            if not any(within.overlaps(piece) for _, within in self.wishes.uncommitted_releases)
        ]
        return join_neighbours(free, KeyRange.join)

    def _granted(self, ledger: Ledger, owner: int, within: KeyRange = WHOLE) -> list[ControlEvent]:
        """A grant, by whoever is next in turn: nothing here is about terms."""
        return [*decide_grant(ledger, Turn(0, ledger.control.number), SOURCE, owner, within)]

    def _grant(self, within: KeyRange) -> None:
        if self.rng.random() < 0.5:
            self._let_another_work(within)
        epoch = self.ledger.partition(SOURCE).epoch_next
        for owner in self.rng.choice(((WE,), (WE,), (ANOTHER, WE), (ANOTHER,))):
            self.ledger = evolve_all(self.ledger, self._granted(self.ledger, owner, within))
            inside = [p for p in self.samples if within.first < p < within.end]
            if owner == WE and inside and self.rng.random() < 0.3:
                for part in within.split(self.rng.choice(inside)):
                    self._take_up(epoch, part)
            else:
                self._take_up(epoch, within)
            epoch += 1

    def _let_another_work(self, within: KeyRange) -> None:
        """Somebody else had the range, and did some of its records."""
        self.ledger = evolve_all(self.ledger, self._granted(self.ledger, ANOTHER, within))
        epoch = self.ledger.partition(SOURCE).epoch_newest
        for first, end, edge in self.ledger.partition(SOURCE).parts[epoch].edges.pieces():
            if edge < self.end:
                move = WorkerAdvance(0, first, end, edge, self.rng.randint(edge + 1, self.end))
                key = CommitKey(ANOTHER, 1, epoch, *SOURCE)
                self.ledger = evolve_all(self.ledger, decide_commits([(key, [move])]))

    def _ask(self, wish: Wish, *, is_refused: bool) -> None:
        try:
            self.wishes.ask(wish)
            self.open[wish] = math.inf
        except ValueError:
            pass
        assert (wish in self.open) is not is_refused, "at once are refused those, and only those, that can't come about"

    def _take_up(self, epoch: int, within: KeyRange) -> None:
        """Workers for points of a grant, if it is ours and they are not there already."""
        part = self.ledger.partition(SOURCE).parts.get(epoch)
        is_ours = part is not None and part.incarnation == WE
        why = ""
        try:
            self.wishes.add_grant(self.dispatch, epoch, part, [within], self.cut)
        except ValueError as error:
            why = str(error)
        assert ("is no grant" in why) is not is_ours, why
        assert bool(why) is not is_ours, "taken up is what was granted to us"
        if part is not None and is_ours:
            numbers: set[int] = set()
            for change in self._tell_opening():
                assert isinstance(change, Cut)
                numbers |= set(range(change.worker, change.worker + len(change.bounds) - 1))
            for worker in self.dispatch.workers:
                if worker.number in numbers:
                    self._skip(worker)
            self._forget_splits(part, within)
            with contextlib.suppress(ValueError):
                self.wishes.add_grant(self.dispatch, epoch, part, [within], self.cut)
                raise AssertionError("what is held is taken up again")

    def _tell_opening(self) -> list[Cut | SplitMade | Merged | Released]:
        """What changed at once, and is written with the next generation."""
        changes, heirs = self.wishes.take_opening()
        for change in changes:
            self.owners.tell(change)
        self._check_heirs(heirs)
        self.opening += changes
        self.heirs += heirs
        return changes

    def _check_heirs(self, heirs: Iterable[tuple[Worker, int]]) -> None:
        for heir, offset in heirs:
            below = {self.committed[p] for p in self.owners.within(heir.first, heir.end)}
            assert below == {offset}, f"heir {heir.number} goes on from {offset}, and {below} were taken"

    def _opened(self, taken: Generation) -> Generation:
        """It begins with what changed before it was taken."""
        taken.opening += self.opening
        taken.add([], self.heirs)
        self.opening, self.heirs = [], []
        return taken

    # --- the commit cycle --------------------------------------------------------------------------------------------

    def _take(self, line: int | None) -> None:
        """A generation, unless one is on its way: then that is committed."""
        if self.pending is not None:
            self._settle()
            return
        super()._take(line)

    def _forget_splits(self, part: EpochPart, within: KeyRange) -> None:
        """Of splits from before a grant it keeps those that came with it."""
        for first, end, _ in part.edges.pieces(within.first, within.end):
            self.wanted -= {at for at in self.wanted if first <= at < end and at not in self.cut}
        self.wanted |= set(part.granted_bounds)

    def _commit(self, taken: Generation) -> None:
        self.now += self.rng.choice((0.0, 0.01, 0.05))
        for wish in self.open:
            self.open[wish] = min(self.open[wish], self.now)
        leaving = self._all_left()
        self._opened(taken)
        reshaped = self.wishes.change(self.now)
        self.owners.merged.clear()
        for change in reshaped.changes:
            self.owners.tell(change)
        told = {p: n for n, points in self.owners.points.items() for p in points}
        assert told == {p: w.number for w in self.dispatch.workers for p in self.owners.within(w.first, w.end)}
        self._check_heirs(reshaped.heirs)
        taken.add(reshaped.changes, reshaped.heirs)
        for dispatch, workers in reshaped.ready:
            assert dispatch is self.dispatch
            self.active += workers
        self._refuse(reshaped, leaving)
        held = self.wishes.begin_holds(self.now)
        assert not held.changes
        self._refuse(held, leaving)
        self.fulfilled = list(self.wishes._fulfilled)
        assert set(self.fulfilled) <= set(self.open), "what was withdrawn is done"
        self._check_changes(reshaped)
        self._check_waiting()
        self._send(taken)

    def _check_changes(self, reshaped: Reshaped) -> None:
        """Each change is one that was asked for, and each wish that was fulfilled is so by the changes."""
        asked = [w.at for w in self.fulfilled if isinstance(w, SplitWish)]
        parted = [c.at for c in reshaped.changes if isinstance(c, SplitMade)]
        assert sorted(asked) == sorted(parted), "split where it is said, and nowhere else"
        merges = [self.owners.within(w.within.first, w.within.end) for w in self.fulfilled if isinstance(w, MergeWish)]
        assert all(points in self.owners.merged for points in merges), "a merge is said to be done"
        for points in self.owners.merged:
            undone = [b for b in self.wanted - {0, SPACE_END} if min(points) < b <= max(points)]
            assert points in merges or not undone, "merged where nobody asked for it"
        self.wanted |= set(asked)
        bands = [b for c in reshaped.changes if isinstance(c, Released) for b in c.bands]
        gone = frozenset[int]().union(*(self.owners.within(b.first, b.end) for b in bands))
        assert gone <= self._all_left(), "released what nobody gives up"
        self.left = {wish: points - gone for wish, points in self.left.items()}
        through = {wish for wish, points in self.left.items() if not points}
        assert through == {w for w in self.fulfilled if isinstance(w, ReleaseWish)}, "told what is not through, or not"
        for wish in through:
            del self.left[wish]
        for worker in self.dispatch.workers:
            if self._all_left() & self.owners.within(worker.first, worker.end):
                assert worker.hold_at is not None, "what is given up is held"
                assert worker.running is not None or worker.taken_to < worker.hold_at, "it could have gone"

    def _refuse(self, reshaped: Reshaped, leaving: Points) -> None:
        for wish, why in reshaped.refused:
            self._check_refusal(wish, why, leaving)
            self._answer(wish, why)

    def _check_refusal(self, wish: Wish, why: str, leaving: Points) -> None:
        """It has the reason that it gives."""
        owners = self.owners
        match wish:
            case ReleaseWish():
                raise AssertionError("a release is refused at once")
            case SplitWish():
                assert wish.at in leaving if "given up" in why else owners.is_border(wish.at), why
            case MergeWish():
                overlapped = bool(owners.within(wish.within.first, wish.within.end) & leaving)
                inside = [w for w in self.dispatch.workers if wish.within.covers(KeyRange(w.first, w.end))]
                is_whole = all(map(owners.is_border, (wish.within.first, wish.within.end))) and all(
                    owners.of(p) is not None for p in owners.within(wish.within.first, wish.within.end)
                )
                if "given up" in why:
                    assert overlapped or "is not merged while" in why, why
                elif "not made up" in why:
                    assert not is_whole or len(inside) < 2, why
                elif "several grants" in why:
                    assert len({w.epoch for w in inside}) > 1, why
                elif "catch up" in why:
                    assert any(w.dropped_from is not None for w in inside), why
                else:
                    assert "did not become level" in why
                    assert self.now >= self.open[wish] + HOLD_MS / 1000, why
                    assert all(w.hold_at is None for w in inside), "the hold goes on"

    def _check_waiting(self) -> None:
        """Who waits does so because of a hold or of a record that runs or is not taken."""
        for wish in self.open:
            if wish in self.fulfilled:
                continue
            workers = [w for w in self.dispatch.workers if self._concerns(wish, w)]
            assert any(w.hold_at is not None for w in workers), f"{wish} is forgotten"

    def _concerns(self, wish: Wish, worker: Worker) -> bool:
        match wish:
            case SplitWish():
                return worker.first < wish.at < worker.end
            case ReleaseWish() | MergeWish():
                return wish.within.overlaps(KeyRange(worker.first, worker.end))

    def _send(self, taken: Generation) -> None:
        self.pending = taken
        if self.rng.random() < 0.5:
            self._settle()

    def _settle(self) -> None:
        assert self.pending is not None
        taken, self.pending = self.pending, None
        if taken:
            self.transaction += 1
            self.ledger = evolve_all(self.ledger, taken.events(self.transaction))
        assert not self.ledger.violations()
        assert not self.ledger.early_epochs()
        generation.move_edges(taken)
        fulfilled, self.fulfilled = self.fulfilled, []
        for wish in self.wishes.settle():
            fulfilled.remove(wish)
            self._answer(wish, None)
        assert not fulfilled, "nobody was told"
        part = self.ledger.partition(SOURCE)
        for worker in self.dispatch.workers if not self.opening else ():  # the log is told of these with the next one
            edges = {edge for _, _, edge in part.edges(0).pieces(worker.first, worker.end)}
            assert edges == {worker.edge}, f"the edge of {worker.number} is {worker.edge}, and {edges} by the log"
            numbers = {number for _, _, number in part.workers().pieces(worker.first, worker.end)}
            assert numbers == {(WE, worker.number)}
            epochs = {epoch for _, _, epoch in part.owners().pieces(worker.first, worker.end)}
            assert epochs == {worker.epoch}

    def _answer(self, wish: Wish, why: str | None) -> None:
        assert wish not in self.answers, f"{wish} is answered twice"
        self.answers[wish] = why
        del self.open[wish]

    # --- what must hold ----------------------------------------------------------------------------------------------

    def _check_turn(self, worker: Worker, record: ConsumerRecord) -> None:
        super()._check_turn(worker, record)
        point = self.points[record.offset]
        assert point not in self._all_left(), f"{record.offset} is begun in what is given up"

    def drain(self) -> None:
        """Nothing new is asked for; all comes to its end, and everybody was answered."""
        for _ in range(PASSES_MAX):
            for within in self._away()[:1]:
                self._grant(within)
            self.active += self.dispatch.runnable()
            for turn in (self.read_main, self.read_pass, *(self.run for _ in range(8))):
                turn()
                self.check()
            self.take(None if self.pending is not None else self.dispatch.draw_line())
            is_level = all(edge == self.end for edge in self.committed.values())
            if is_level and not self.open and not self.pending and not self.wishes.wanted and not self._away():
                break
        assert set(self.points) <= self.done, f"never done: {sorted(set(self.points) - self.done)}"
        assert set(self.committed.values()) == {self.end}, "not everything is committed to the end"
        assert not self.open, f"never answered: {self.open}"
        assert all(w.hold_at is None for w in self.dispatch.workers)
        assert not self.wishes.wanted, "never merged to the wanted cut"
        assert not len(self.overlay), "not all that was changed is settled"


def drive_wishes(seed: int, steps: int, parts: WishParts | None = None) -> WishDrive:
    """One run from its seed; raises AssertionError where a rule is broken."""
    rng = random.Random(seed)
    run = WishDrive(rng, parts or WishParts())
    run.check()
    for _ in range(rng.randint(0, steps)):
        run.step()
    run.drain()
    return run
