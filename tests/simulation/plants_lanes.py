"""Defects on the way of a record through its lane: edges, queues, the two readers, splits and merges, attempts."""

from collections.abc import Sequence
from typing import Any

from keylanes.brokers.protocol import Batch
from keylanes.errors import DecodeFailed
from keylanes.keyrange import ranges
from keylanes.runtime.engine.attempts import Attempts
from keylanes.runtime.engine.calls import LoopCalls
from keylanes.runtime.engine.lanes import Lanes
from keylanes.runtime.engine.readers import MainReader
from keylanes.runtime.engine.record_gate import RecordGate
from keylanes.runtime.engine.slots import Slots
from keylanes.runtime.engine.turns import Turns
from keylanes.runtime.handlers import outputs
from keylanes.runtime.handlers.context import Context
from keylanes.runtime.membership.group import Group
from keylanes.runtime.partition import cut as structure
from keylanes.runtime.partition import generation, wishes
from keylanes.runtime.partition.dispatch import PartitionDispatch
from keylanes.runtime.partition.permits import Permits
from keylanes.runtime.partition.worker import Worker

from ..keyrange import test_ranges
from ..runtime import test_partitioners
from ..runtime.engine import test_rates, test_timers, test_turns, test_variables
from ..runtime.partition import test_cut, test_generation
from ..stage.planting import Planting, change, changed
from .plants import AGAIN, LED_TO, LOST, NO_DEAD_LETTER, Plant, awaited, each, on_ground


def last_plus_one(patch: Planting) -> None:
    """The front stands behind the last record instead of at the reader's position."""
    pass_by = PartitionDispatch.pass_by

    def narrow(self: PartitionDispatch, batch: Batch) -> None:
        end = batch.records[-1].offset + 1 if batch.records else self.front
        pass_by(self, batch._replace(offset_next=end))

    patch.setattr(PartitionDispatch, "pass_by", narrow)


def edge_without_dropped(patch: Planting) -> None:
    """What a reader passed counts as done."""
    dropped = "self.dropped_from is not None and self.dropped_from < edge"
    change(patch, Worker, "edge_now", (dropped, "False"))


def merged_when_not_level(patch: Planting) -> None:
    """Neighbours become one although they stand at different offsets."""

    def always(workers: Sequence[Worker]) -> bool:
        return all(w.running is None and not w.done for w in workers)

    patch.setattr(structure, "have_one_edge", always)
    patch.setattr(wishes, "have_one_edge", always)


def resumes_behind(patch: Planting) -> None:
    """A reader that waited for room hands out its batch from the beginning."""
    index = "self._hand_out(run, batch, blocked.index)"
    change(patch, MainReader, "_stand", (index, "self._hand_out(run, batch, 0)"))


def seen_offsets(patch: Planting) -> None:
    """A record whose offset was handed out before, in whichever partition, is passed as a duplicate."""
    seen = "self.numbers.__dict__.setdefault('seen', set())"  # what all partitions of a process have in common
    change(
        patch,
        PartitionDispatch,
        "try_queue",
        (
            "    worker.queue.append(record)\n",
            (
                f"    if record.offset in {seen}:\n        return 0\n    {seen}.add(record.offset)\n"
                "    worker.queue.append(record)\n"
            ),
        ),
    )


def attempts_share_a_context(patch: Planting) -> None:
    """What a failed attempt sent is sent together with what the next one sends."""
    kept: dict[tuple[str, int, int], list[Any]] = {}
    make, close = Context.__init__, Context.close

    def init(self: Context, topic: str, partition: int, record: Any, attempt: int) -> None:
        make(self, topic, partition, record, attempt)
        self._sent = kept.setdefault((topic, partition, record.offset), []) if attempt > 1 else self._sent

    def close_and_keep(self: Context) -> Any:
        sent = close(self)
        kept[self.topic, self.partition, self.offset] = list(sent)
        return sent

    patch.setattr(Context, "__init__", init)
    patch.setattr(Context, "close", close_and_keep)


def undecodable_is_skipped(patch: Planting) -> None:
    """A record that can't be decoded is passed in silence."""
    give_up = Attempts._fail_record

    async def skip(self: Attempts, run: Any, record: Any, error: Exception, attempts: int) -> Any:
        return None if isinstance(error, DecodeFailed) else await give_up(self, run, record, error, attempts)

    patch.setattr(Attempts, "_fail_record", skip)


def attempt_behind_the_queue(patch: Planting) -> None:
    """A record that failed goes to the end of its worker's queue to be tried again."""
    process = Attempts.process

    async def put_back(self: Attempts, run: Any, worker: Worker, record: Any, first: Any = None) -> Any:
        tried = self.__dict__.setdefault("tried", set())
        place = run.label, record.offset
        if worker.queue and place not in tried:
            tried.add(place)
            try:
                if first is not None:
                    raise first
                done = await self._attempt(run, worker, record, 1)
            except Exception:  # noqa: BLE001  # a handler may raise anything
                worker.queue.append(record)
                worker.queue_bytes += 200 + len(record.key or b"") + len(record.value or b"")
                return None
            return done
        return await process(self, run, worker, record, first)

    patch.setattr(Attempts, "process", put_back)


PLANTS = [
    Plant("last+1 instead of the position", last_plus_one, finding="not level after"),
    Plant(
        "edge forgets the running record",
        changed(Worker, "first_not_done", ("if self.running is not None:", "if False:")),
        finding=LOST,
    ),
    Plant(
        "edge forgets the queue",
        changed(Worker, "first_not_done", ("self.queue[0].offset if self.queue else None", "None")),
        finding=LOST,
    ),
    Plant("edge forgets what was dropped", edge_without_dropped, finding=LOST),
    Plant(
        "dropped_from overwritten by a later drop",
        changed(
            PartitionDispatch,
            "step",
            (
                "        if worker is None or worker.dropped_from is not None or offset < worker.edge:\n",
                (
                    "        if worker is not None and worker.dropped_from is not None:\n"
                    "            worker.dropped_from = offset\n"
                    "        if worker is None or worker.dropped_from is not None or offset < worker.edge:\n"
                ),
            ),
        ),
        finding=LOST,
    ),
    Plant(
        "catch-up starts too late",
        changed(
            PartitionDispatch,
            "catch_up",
            ("not position <= worker.dropped_from <= offset", "not position <= worker.dropped_from < offset"),
        ),
        finding=LOST,
    ),
    Plant(
        "catch-up reader stops one early",
        changed(
            PartitionDispatch,
            "catch_up",
            ("if offset >= front:", "if offset >= front - 1:"),
            ("if batch.offset_next >= front:", "if batch.offset_next >= front - 1:"),
        ),
        finding=LOST,
    ),
    Plant("paused reader resumes behind", resumes_behind, finding=AGAIN),
    Plant(
        "paused reader resumes ahead",
        changed(
            MainReader,
            "_stand",
            (
                "    while blocked is not None and not self.is_stopped:\n",
                (
                    "    if blocked is not None and len(batch.records) - blocked.index < 2:\n"
                    "        dispatch.front = max(dispatch.front, batch.offset_next)\n"
                    "        return\n"
                    "    while blocked is not None and not self.is_stopped:\n"
                ),
            ),
        ),
        finding=LOST,
    ),
    Plant(
        "merge of workers that are not level",
        merged_when_not_level,
        (each(test_cut.test_only_level_neighbours_of_one_grant_merge),),
        finding="DID NOT RAISE .*ValueError",
    ),
    Plant(
        "child range off by one",
        changed(
            structure, "split", ("(first, at) if is_left else (at, end)", "(first, at) if is_left else (at + 1, end)")
        ),
        finding="are no neighbours|is not the range of its workers",
    ),
    Plant(
        "child range off by one: the record at the cut",
        changed(
            structure,
            "split",
            (
                "return (_point(dispatch, record) < at) is stays_left",
                "return (_point(dispatch, record) <= at) is stays_left",
            ),
        ),
        finding=f"run at once|{LOST}",
    ),
    Plant(
        "both halves keep the queue",
        changed(
            structure,
            "split",
            ("kept, kept_done = [r for r in worker.queue if stays(r)]", "kept, kept_done = [*worker.queue]"),
        ),
        finding=AGAIN,
    ),
    Plant(
        "overlap at the hash maximum",
        changed(
            ranges.KeyRange,
            "overlaps",
            (
                "self.first < other.end and other.first < self.end",
                "self.first < min(other.end, SPACE_END - 1) and other.first < min(self.end, SPACE_END - 1)",
            ),
        ),
        (test_ranges.test_covers_and_overlaps_are_subset_and_common_points,),
        finding=r"one\.overlaps\(other\)",
    ),
    Plant(
        "last point left out of a cut",
        changed(
            ranges,
            "even_bounds",
            (
                "return tuple(within.first + within.size * i // parts for i in range(parts + 1))",
                "return tuple(within.first + min(within.size * i // parts, SPACE_END - 2) for i in range(parts + 1))",
            ),
        ),
        (test_ranges.test_even_bounds_cut_into_parts_that_differ_by_one_point_at_most,),
        finding=r"cut\[-1\]",
    ),
    Plant(
        "timer of one worker used for another",
        changed(
            Slots,
            "_is_overdue",
            (
                "worker.started_s + limit > now",
                (
                    "worker.started_s == math.inf or "
                    "min(g.worker.started_s for g in self.tasks.working.values() if g.worker is not None) + limit > now"
                ),
            ),
        ),
        (test_timers.test_each_handler_has_its_own_time,),
        finding="assert dead ==",
    ),
    Plant(
        "retry counter shared",
        changed(
            Attempts,
            "process",
            ("    attempt = 0\n", "    attempt = self.__dict__.setdefault('counted', {}).get(worker.number, 0)\n"),
            ("        attempt += 1\n", "        attempt += 1\n        self.counted[worker.number] = attempt\n"),
        ),
        finding="""'{"number.*"fails":.* led to .*right is .*topic='dead'""",
    ),
    Plant("duplicates by offset alone", seen_offsets, finding=LOST),
    Plant("failed attempt goes behind the queue", attempt_behind_the_queue, finding="is run after|stands behind"),
    Plant("attempts share what they send", attempts_share_a_context, finding=f"{LED_TO}'sent "),
    Plant("undecodable record skipped", undecodable_is_skipped, finding=NO_DEAD_LETTER),
    Plant(
        "dead letter by its key",
        changed(
            outputs, "build_dead_letter", ("if destination.keeps_numbers and ", "if not destination.keeps_numbers and ")
        ),
        (awaited(test_partitioners.test_a_replayed_dead_letter_lands_where_the_record_came_from),),
        finding="letter.partition == partition_by_crc32",
    ),
    Plant(
        "bytes counted twice as they come",
        changed(RecordGate, "count", ("self.done_bytes += done.size", "self.done_bytes += 2 * done.size")),
        finding=r"not level after|idle, and \d+ bytes wait",
    ),
    Plant(
        "bytes counted twice as they go",
        changed(RecordGate, "free", ("self.done_bytes -= size", "self.done_bytes -= 2 * size")),
        finding=r"idle, and -\d+ bytes wait|bytes wait for a commit, \d+ may",
    ),
    Plant(
        "outputs beyond the edge",
        changed(generation, "take_generation", ("done[0].record.offset < to:", "done[0].record.offset <= to:")),
        (test_generation.test_most_edges_fall_on_the_line,),
        finding=r"assert shares\(generation\)|shares\(generation\) ==",
    ),
    Plant(
        "context shared by the handlers on the loop",
        changed(LoopCalls, "begin", ("self.within.copy()", "self.within")),
        (on_ground(test_variables.test_bob_does_not_see_ann_on_the_loop),),
        finding="bob saw ann",
    ),
    Plant(
        "context shared by the handlers in threads",
        changed(Lanes, "_hand_over", ("self._attempts.variables.copy()", "self._attempts.variables")),
        (on_ground(test_variables.test_bob_does_not_see_ann_in_a_thread),),
        finding="bob saw ann",
    ),
    Plant(
        "one permit too many",
        changed(Permits, "_give", ("self.out >= self.most", "self.out > self.most")),
        (test_turns.test_a_permit_comes_back_on_every_way_out,),
        finding="all permits are there",
    ),
    Plant(
        "a permit is kept while others wait",
        changed(Turns, "may_begin", ("(permits.is_awaited or permits.pace is not None)", "False")),
        (test_turns.test_partitions_take_turns,),
        finding="every other turn was theirs",
    ),
    Plant(
        "each process takes the whole rate",
        changed(Group, "_obey", ("self._set_rate(topic, share_per_s)", "self._set_rate(topic, share_per_s * 3)")),
        (test_rates.test_processes_share_the_rate_and_use_all_of_it,),
        finding="began from",
    ),
    Plant(
        "a permit before its time",
        changed(Permits, "_give", ("not (self.pace is None or self.pace.take(now_s))", "False")),
        (each(test_rates.test_each_attempt_counts),),
        finding="began from",
    ),
    Plant(
        "a further attempt is not counted",
        changed(Turns, "resume", ("not run.is_limited or", "True or")),
        (each(test_rates.test_each_attempt_counts),),
        finding="began from",
    ),
]
