"""Drives a PartitionDispatch at random against a dumb model: every record by hand, every rule after each step.

The source is a list of offsets with holes; two readers (the main one and the pass) read it in batches of any size; the
workers run, finish, are split, held, merged, released and come back; generations are taken at any line. The model knows
only which records were begun and done, and up to where each record's range was committed.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from keylanes.brokers.protocol import Batch, ConsumerRecord, Outgoing, TopicPartition
from keylanes.brokers.simulated.broker import SimulatedRecord
from keylanes.keyrange.hashing import point_of, point_of_key
from keylanes.keyrange.ranges import even_bounds
from keylanes.offsets.provenance import DIGEST_MASK, place_seed
from keylanes.runtime.handlers.outputs import result_of
from keylanes.runtime.handlers.record_result import RecordResult
from keylanes.runtime.handlers.sizes import bytes_of
from keylanes.runtime.partition import cut as structure
from keylanes.runtime.partition import generation
from keylanes.runtime.partition.dispatch import Blocked, PartitionDispatch, Route
from keylanes.runtime.partition.generation import Generation
from keylanes.runtime.partition.worker import Worker, WorkerNumbers
from keylanes.state.keys import state_key
from keylanes.state.overlay import AttemptWrites, Layer, Overlay

SOURCE = TopicPartition("t", 0)
PASSES_MAX = 3_000


@dataclass
class Parts:
    """What is driven; a planted defect takes the place of one of them."""

    dispatch: type[PartitionDispatch] = PartitionDispatch
    split: Callable[..., Any] = structure.split
    merge: Callable[..., Any] = structure.merge
    hold: Callable[..., Any] = structure.begin_hold
    have_one_edge: Callable[..., Any] = structure.have_one_edge
    release: Callable[..., Any] = structure.release
    wind_up: Callable[..., Any] = structure.hold_at_ends
    take: Callable[..., Any] = generation.take_generation


@dataclass
class Standing:
    """A reader that stands at a full worker."""

    batch: Batch
    blocked: Blocked


@dataclass
class Away:
    """A range that was released, until it comes back."""

    first: int
    end: int


def said(done: RecordResult) -> dict[bytes, bytes | None]:
    """What a record changed of the state."""
    changes = done.changes
    return {} if changes is None else {c.key: value for c, value in zip(changes.entries, changes.values, strict=True)}


def digest_of(produced: list[RecordResult]) -> int:
    """What a commit says of it."""
    return sum(done.digest for done in produced) & DIGEST_MASK


@dataclass
class Drive:
    """One run: the source, the dispatch, both readers, and what the model knows."""

    rng: random.Random
    parts: Parts
    records: list[SimulatedRecord] = field(default_factory=list)
    end: int = 0
    begun: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    producing: dict[int, RecordResult] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    standing: Standing | None = None
    main_position: int = 0
    pass_standing: Standing | None = None
    pass_position: int = 0
    held: list[Worker] = field(default_factory=list)
    leaving: list[Worker] = field(default_factory=list)
    away: list[Away] = field(default_factory=list)
    active: list[Worker] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = self.rng
        self.is_stateful = rng.random() < 0.5
        self.overlay = Overlay(1_000)
        offset = 0
        keys = [None, b"", *(b"k%d" % i for i in range(rng.choice((1, 4, 20))))]
        for _ in range(rng.choice((10, 40, 100))):
            offset += rng.choice((0, 0, 0, 1, 5))  # a hole before it
            value = b"v" * rng.choice((0, 10, 10, 400))
            self.records.append(SimulatedRecord(offset, 0, rng.choice(keys), value, ()))
            offset += 1
        self.end = offset + rng.choice((0, 0, 1, 3))  # a hole at the end
        self.points = {r.offset: point_of(r.key, 0, r.offset) for r in self.records}
        self.samples = sorted({*self.points.values(), *even_bounds(8)[:-1]})
        self.seed = place_seed("t", 0)
        self.dispatch = self.parts.dispatch("t", 0, 0, rng.choice((1, 450, 900, 5_000)), WorkerNumbers())
        bounds = even_bounds(rng.choice((1, 2, 5, 9)))
        edges = {first: 0 if rng.random() < 0.5 else rng.randint(0, self.end) for first in bounds[:-1]}
        self.dispatch.front = self.main_position = max(edges.values())  # as a start from a log does
        self._begin_with(bounds, edges)
        for worker in self.dispatch.workers:
            self._skip(worker)

    def _begin_with(self, bounds: tuple[int, ...], edges: dict[int, int]) -> None:
        """The workers at the start; each goes on from the edge of its first point."""
        self.dispatch.add_workers(bounds, edges.__getitem__)

    def _skip(self, worker: Worker) -> None:
        """What lies below a new worker's edge was done before, or elsewhere."""
        for point in self.samples:
            if worker.first <= point < worker.end:
                self.committed[point] = worker.edge
        for record in self.of(worker):
            if record.offset < worker.edge:
                self.begun.add(record.offset)
                self.done.add(record.offset)

    def of(self, worker: Worker | Away) -> list[SimulatedRecord]:
        """The records of a range."""
        return [r for r in self.records if worker.first <= self.points[r.offset] < worker.end]

    # --- the readers -------------------------------------------------------------------------------------------------

    def _batch(self, position: int) -> Batch:
        to = min(self.end, position + self.rng.choice((1, 3, 10, 1_000)))
        inside = [r for r in self.records if position <= r.offset < to]
        return Batch(SOURCE, inside, max(to, position))

    def read_main(self) -> None:
        """A batch, or what to do at the full worker."""
        if self.standing is None:
            batch = self._batch(self.main_position)
            self.main_position = batch.offset_next
            self._hand_out(batch, 0)
            return
        batch, blocked = self.standing.batch, self.standing.blocked
        if not self._may_go_on(blocked):
            if self.rng.random() < 0.5:
                return
            self.dispatch.drop(blocked, batch)
        self._hand_out(batch, blocked.index)
        assert_moved(blocked, self.standing)

    def _may_go_on(self, blocked: Blocked) -> bool:
        return blocked.worker.retired or self.dispatch.has_room_again(blocked.worker, blocked.size)

    def _hand_out(self, batch: Batch, index: int) -> None:
        if index == 0 and self.rng.random() < 0.5:
            index = self._run_straight(batch)
        blocked = self.dispatch.hand_out(batch, index, self.active)
        self.standing = None if blocked is None else Standing(batch, blocked)

    def _run_straight(self, batch: Batch) -> int:
        """Records of a batch run as it comes to them, until one takes longer; the index of what was not handed over."""
        dispatch = self.dispatch
        # Of records with a key it is known where their state is, if somebody looked that up.
        keys = [record.key for record in batch.records]
        is_looked_up = self.is_stateful and self.rng.random() < 0.5
        cells = [None if k is None else self.overlay.entry_of(state_key(point_of_key(k), 0, k)) for k in keys]
        route = Route(batch, 0, cells if is_looked_up else ())
        while dispatch.step(route):
            i, worker, record = route.at - 1, route.worker, route.record
            if self.rng.random() < 0.05:
                dispatch.pause(record)
                self._look_in_between()
                return i
            if worker.active or worker.queue or worker.hold_at is not None:
                if dispatch.try_queue(worker, record, self.active):
                    dispatch.pause(record)
                    return i
                continue
            assert route.offset == record.offset
            assert worker.first <= self.points[record.offset] < worker.end
            self._check_turn(worker, record)
            if self.rng.random() < 0.1:
                dispatch.begin(worker, record)
                self._look_in_between()
                return i + 1
            done = self._produced(record)
            self.done.add(record.offset)
            worker.done_to = record.offset + 1
            if done is not None:
                self._lay_down(worker, done)
        dispatch.pass_by(batch)
        return len(batch.records)

    def _look_in_between(self) -> None:
        """Others have a turn before the reader goes on: the front is where all in front of it is somebody's."""
        self.check()
        if self.rng.random() < 0.5:
            self.take()

    def _lay_down(self, worker: Worker, done: RecordResult) -> None:
        is_both = bool(done.changes) and bool(done.outputs)
        stretch = self.dispatch.open_stretch(worker)
        if stretch is None or done.dead or is_both or (self.is_stateful and not done.changes):
            worker.keep(done)
            self.overlay.add(done.changes or Layer())
            return
        stretch.size += done.size
        writes = AttemptWrites()
        for key, value in said(done).items():
            writes.put(self.overlay.entry_of(key), value)
        self.overlay.move(writes, stretch.changes)
        if done.outputs:
            stretch.send(worker, done.record, done.outputs[0], done.digest)

    def read_pass(self) -> None:
        """Begin a pass, read a batch of it, or decide at the full worker."""
        dispatch = self.dispatch
        if dispatch.pass_position is None:
            self.pass_standing = None
            start = dispatch.catch_up_start()
            if start is not None:
                dispatch.begin_pass(start)
                self.pass_position = start
            return
        if self.pass_standing is None:
            batch = self._batch(self.pass_position)
            self.pass_position = batch.offset_next
            self._catch_up(batch, 0)
        else:
            self._decide_pass(self.pass_standing)
        if dispatch.pass_position is not None and self.pass_standing is None and not dispatch.followers():
            dispatch.end_pass()

    def _decide_pass(self, standing: Standing) -> None:
        dispatch, blocked = self.dispatch, standing.blocked
        if not self._may_go_on(blocked):
            if self.rng.random() < 0.5:
                return
            dispatch.drop_again(blocked, standing.batch)
            if not dispatch.followers():
                dispatch.end_pass()
                self.pass_standing = None
                return
        self._catch_up(standing.batch, blocked.index)
        assert_moved(blocked, self.pass_standing)

    def _catch_up(self, batch: Batch, index: int) -> None:
        blocked = self.dispatch.catch_up(batch, index, self.active)
        self.pass_standing = None if blocked is None else Standing(batch, blocked)

    # --- the workers -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """A worker begins a record, or finishes the one it runs."""
        running = [w for w in self.dispatch.workers if w.running is not None]
        if running and self.rng.random() < 0.5:
            self._finish(self.rng.choice(running))
        elif self.active:
            worker = self.active.pop(self.rng.randrange(len(self.active)))
            self._begin(worker)

    def _begin(self, worker: Worker) -> None:
        assert worker.running is None, "one record of a worker at a time"
        record = self.dispatch.next_record(worker)
        if record is None:
            assert not worker.active
            return
        self._check_turn(worker, record)

    def _check_turn(self, worker: Worker, record: ConsumerRecord) -> None:
        """The record may be begun now, and is."""
        offset = record.offset
        assert worker.first <= self.points[offset] < worker.end, f"{offset} is run by a worker of another range"
        assert offset not in self.begun, f"{offset} is run twice"
        later = [r.offset for r in self.of(worker) if r.offset > offset and r.offset in self.begun]
        earlier = [r.offset for r in self.of(worker) if r.offset < offset and r.offset not in self.done]
        assert not later, f"{offset} is run behind {later}"
        assert not earlier, f"{offset} is run before {earlier}"
        self.begun.add(offset)

    def _finish(self, worker: Worker) -> None:
        record = worker.running
        assert record is not None, "it runs"
        done = self._produced(record)
        self.dispatch.finish(worker, done)
        if done is not None:
            self.overlay.add(done.changes or Layer())
        self.done.add(record.offset)
        self.active.append(worker)  # its task goes on

    def _produced(self, record: ConsumerRecord) -> RecordResult | None:
        """What a record produces: an output, changes of the state where there is one, both or nothing."""
        offset, rng = record.offset, self.rng
        has_output, has_changes = rng.random() < (0.2 if self.is_stateful else 0.5), rng.random() < 0.6
        changes = Layer()
        if self.is_stateful and has_changes:
            cell = self.overlay.entry_of(state_key(self.points[offset], 0, record.key or b""))
            changes.append(cell, rng.choice((None, b"%d" % offset)))
        if not has_output and not changes:
            return None
        if has_output:
            done = result_of(record, Outgoing("out", 0, record.key, b"", origin=b"%d" % offset), self.seed)
            done.dead = rng.random() < 0.1
        else:
            done = RecordResult(record, (), False, 0, 100)
        if changes:
            done.changes = changes
        self.producing[offset] = done
        return done

    def take(self, line: int | None = None) -> None:
        """A generation at some line; or only the line is drawn."""
        if line is None and self.rng.random() < 0.3:
            self.lines.append(self.dispatch.draw_line())
        else:
            self._take(line)

    def _take(self, line: int | None) -> None:
        """A generation, committed at once. It says exactly what was done."""
        dispatch, front = self.dispatch, self.dispatch.front
        drawn = self.lines.pop() if self.lines and self.rng.random() < 0.5 else self.rng.randint(0, front)
        if line is None:
            line = dispatch.draw_line() if self.rng.random() < 0.5 else drawn
        limit = self.rng.choice((1, 3, 1_000)) if line < front else 1_000
        taken = self.parts.take([(dispatch, line)], records_max=limit, bytes_max=self.rng.choice((100, 1 << 20)))
        covered = [self._check_share(share, line) for share in taken.shares]
        wanted: dict[bytes, bytes | None] = {}
        for done in sorted((done for part in covered for done in part), key=lambda done: done.record.offset):
            wanted.update(said(done))
        assert {c.key: v for changed in taken.changes() for c, v in changed.last.items()} == wanted, "other changes"
        assert len(taken.outputs()) == sum(len(done.outputs) for part in covered for done in part)
        size = taken.size
        parts = self._apart(taken, covered)
        assert sum(part.size for part in parts) == size
        for part in parts:
            for changed in part.changes():
                self.overlay.settle(changed.layers, changed.last)
        self._commit(taken)

    def _commit(self, taken: Generation) -> None:
        """What was taken is committed."""
        generation.move_edges(taken)

    def _check_share(self, share: generation.WorkerPart, line: int) -> list[RecordResult]:
        """What its records produced."""
        assert share.offset_from < share.offset_to <= max(line, share.offset_from)
        inside = [p for p in self.samples if share.first <= p < share.end]
        for point in inside:
            assert self.committed[point] == share.offset_from, f"tile of {share.number} starts elsewhere"
            self.committed[point] = share.offset_to
        covered = [r.offset for r in self.of(share.worker) if share.offset_from <= r.offset < share.offset_to]
        assert set(covered) <= self.done, f"{share.number}: {set(covered) - self.done} is committed, not done"
        wanted = [self.producing[o] for o in covered if o in self.producing]
        move = share.move()
        assert move.outputs + move.dead_letters == sum(len(done.outputs) for done in wanted), (
            f"{share.number}: other outputs"
        )
        assert move.digest == digest_of(wanted), f"{share.number}: other outputs"
        return wanted

    def _apart(self, taken: Generation, covered: list[list[RecordResult]]) -> list[Generation]:
        """The generation in parts, as after a failure: each has just what its tiles say."""
        ends = {id(share.worker): share.offset_to for share in taken.shares}
        taken.spread()
        for share, wanted in zip(taken.shares, covered, strict=True):
            sent = [done for done in wanted if done.outputs]
            assert [done.record for done in share.done if done.outputs] == [done.record for done in sent]
            assert share.move().digest == digest_of(wanted)
        if not taken.shares:
            return [taken]
        if self.rng.random() < 0.5:
            parts = taken.halves()
        else:
            parts = taken.isolate(range(0, len(taken.outputs()), 3))
        for part in parts:
            told = {c.key: v for changed in part.changes() for c, v in changed.last.items()}
            wanted_now: dict[bytes, bytes | None] = {}
            for share in part.shares:
                for record in self.of(share.worker):
                    if share.offset_from <= record.offset < share.offset_to:
                        wanted_now.update(self._changes_of(record.offset))
            assert told == wanted_now, "a part has changes of another one"
        assert {id(s.worker): s.offset_to for part in parts for s in part.shares} == ends
        return parts

    def _changes_of(self, offset: int) -> dict[bytes, bytes | None]:
        done = self.producing.get(offset)
        return {} if done is None else said(done)

    # --- structure ---------------------------------------------------------------------------------------------------

    def split(self) -> None:
        """Some worker becomes two."""
        worker = self.rng.choice(self.dispatch.workers) if self.dispatch.workers else None
        if worker is None or worker in self.held or worker in self.leaving or worker.end - worker.first < 2:
            return
        inside = [p for p in self.samples if worker.first < p < worker.end]
        at = self.rng.choice(inside) if inside else (worker.first + worker.end) // 2
        self.parts.split(self.dispatch, worker, at)
        self.active += self.dispatch.runnable()

    def merge(self) -> None:
        """Hold neighbours; merge them when they are level, or let them go."""
        if not self.held:
            if len(self.dispatch.workers) >= 2:
                i = self.rng.randrange(len(self.dispatch.workers) - 1)
                group = self.dispatch.workers[i : i + 2]
                adjacent = group[0].end == group[1].first and not any(w in self.leaving for w in group)
                if adjacent and self.parts.hold(group):
                    self.held = group
            return
        if self.parts.have_one_edge(self.held) and all(w.taken_to == w.hold_at for w in self.held):
            heir, _ = self.parts.merge(self.dispatch, self.held)
            heir.edge = heir.taken_to
            self.held = []
        elif self.rng.random() < 0.3:
            structure.end_hold(self.held)
            self.held = []
        self.active += self.dispatch.runnable()

    def release(self) -> None:
        """Wind some neighbours up, release them when they are through; or take a range back."""
        if self.away and self.rng.random() < 0.5:
            self._come_back(self.away.pop())
        elif not self.leaving:
            if self.dispatch.workers and not self.held:
                i = self.rng.randrange(len(self.dispatch.workers))
                self.leaving = self.dispatch.workers[i : i + 2]
                self.parts.wind_up(self.dispatch, self.leaving)
        elif structure.are_releasable(self.leaving):
            self.parts.release(self.dispatch, self.leaving)
            for worker in self.leaving:
                self.active = [w for w in self.active if w is not worker]
                self.away.append(Away(worker.first, worker.end))
            self.leaving = []

    def _come_back(self, away: Away) -> None:
        """From where it was committed, or from further: somebody else worked on it."""
        edges = {self.committed[p] for p in self.samples if away.first <= p < away.end}
        edge = min(edges, default=self.dispatch.front)
        if self.rng.random() < 0.5:
            edge = self.rng.randint(edge, self.end)
        self.dispatch.epoch += 1
        for worker in self.dispatch.add_workers((away.first, away.end), lambda first: edge):
            self._skip(worker)

    # --- what must hold ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """The rules of the edge, looked at from outside."""
        dispatch, front = self.dispatch, self.dispatch.front
        assert dispatch.front <= self.main_position
        for worker in dispatch.workers:
            queued = [r.offset for r in worker.queue]
            assert queued == sorted(queued)
            assert worker.queue_bytes == sum(map(bytes_of, worker.queue))
            edge = worker.edge_now(front)
            running = [worker.running.offset] if worker.running is not None else []
            for record in self.of(worker):
                offset = record.offset
                if offset not in self.done:
                    assert edge <= offset, f"the edge {edge} of {worker.number} is beyond {offset}, which is not done"
                    held = offset in queued or offset in running
                    dropped = worker.dropped_from is not None and worker.dropped_from <= offset
                    assert held or dropped or offset >= front, f"{offset} of {worker.number} is handed to nobody"
                    assert not (held and dropped), f"{offset} of {worker.number} is queued and dropped"
            assert worker.taken_to <= max(edge, worker.edge)

    def step(self) -> None:
        """Something happens, and everything is looked at."""
        kinds = (self.read_main, self.read_main, self.read_pass, self.read_pass, self.run, self.run, self.run, self.run)
        self.rng.choice((*kinds, self.take, self.split, self.merge, self.merge, self.release))()
        self.check()

    def drain(self) -> None:
        """Nothing new happens any more; everything comes to its end."""
        structure.end_hold([*self.held, *self.leaving])
        self.held, self.leaving = [], []
        while self.away:
            self._come_back(self.away.pop())
        for _ in range(PASSES_MAX):
            self.active += self.dispatch.runnable()
            for turn in (self.read_main, self.read_pass, *(self.run for _ in range(8))):
                turn()
                self.check()
            self.take(self.dispatch.draw_line())
            if all(edge == self.end for edge in self.committed.values()):
                break
        assert set(self.points) <= self.done, f"never done: {sorted(set(self.points) - self.done)}"
        assert set(self.committed.values()) == {self.end}, "not everything is committed to the end"
        assert all(w.dropped_from is None for w in self.dispatch.workers)
        assert not len(self.overlay), "not all that was changed is settled"


def assert_moved(before: Blocked, after: Standing | None) -> None:
    """A reader that goes on is not at once where it was: it would go round for ever."""
    same = after is not None and (after.blocked.worker, after.blocked.index) == (before.worker, before.index)
    assert not same, f"the reader is told to go on and stopped at {before.index} again"


def drive(seed: int, steps: int, parts: Parts | None = None) -> Drive:
    """One run from its seed; raises AssertionError where a rule is broken."""
    rng = random.Random(seed)
    run = Drive(rng, parts or Parts())
    run.check()
    for _ in range(rng.randint(0, steps)):
        run.step()
    run.drain()
    return run
