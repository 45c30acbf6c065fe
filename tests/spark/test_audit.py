"""The audit on an honest run and on runs with one planted fault each, which it must find by name."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from msgspec.structs import replace as changed

from keylanes.offsets.control_events import ControlEvent, PartitionStarted
from keylanes.offsets.event_values import Band, Tile
from keylanes.offsets.events import Committed, WorkersMerged, WorkerSplit
from keylanes.offsets.provenance import DIGEST_MASK, HEADER

from ..stage.log_events import (
    coordinator_elected,
    member_expelled,
    member_fenced,
    member_joined,
    partition_started,
    ranges_granted,
)
from .honest import APP, AUDITED, DEAD, LATE, SOURCE, Output, Planner, Run, outputs_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from keylanes.spark.report import Report

pytestmark = pytest.mark.spark

Audited = Callable[..., "Report"]


def test_an_honest_run_with_restarts_is_proven(audited: Audited) -> None:
    """Every statement holds, the hook's too, and the figures are those of the plan.

    After restarts with uneven edges neighbours become level and commit as one over bands of different offsets.
    """
    run = Planner(restarts=3, lag=0.6).run()
    report = audited(run, plane=True, expected=expected_outputs)
    assert report.violated_checks() == []
    assert report.proven
    assert report.exit_code == 0
    commits = [event for log in run.events for event in log if isinstance(event, Committed)]
    dead = sum(output.destination == DEAD for output in run.outputs)
    assert report.figures == {
        "records": 800,
        "records_done": 800,
        "records_waiting": 0,
        "outputs": len(run.outputs) - dead,
        "dead_letters": dead,
        "commits": len(commits),
        "tiles": sum(len(commit.tiles) for commit in commits),
    }
    assert {(s.topic, s.partition, s.start, s.frontier, s.source_end) for s in report.sources} == {
        (SOURCE, 0, 0, 400, 400),
        (SOURCE, 1, 0, 400, 400),
    }
    planned = {
        (
            c.topic,
            c.partition,
            c.incarnation,
            c.transaction,
            t.worker,
            t.count,
            t.first,
            t.end,
            t.offset_from,
            t.offset_to,
        )
        for c in commits
        for head in [(c.topic, c.partition, c.incarnation, c.transaction)]
        for t in c.tiles
    }
    assert set(report.plane.tiles) == planned
    assert report.plane.ranges


def test_a_run_that_is_not_through_is_proven_up_to_its_frontier(audited: Audited) -> None:
    """Records beyond the edges wait, which is no fault unless the run is said to be level. The report says what a
    partition was started from; without the names of dead-letter topics the sum of outputs and dead letters is judged.
    """
    run = Planner(restarts=0, records=200).run()
    run.records = [[*own, (b"late comer", b"1"), (None, b"2")] for own in run.records]
    started = next(i for i, event in enumerate(run.control) if isinstance(event, PartitionStarted))
    run.control[started] = partition_started(1, SOURCE, 0, 0, "group:flights", 1)
    report = audited(run, level=False, dead_letters=None)
    assert report.proven
    assert [(s.frontier, s.records, s.done, s.waiting) for s in report.sources] == [(200, 202, 200, 2)] * 2
    assert [(s.started_from, s.started_at) for s in report.sources] == [("group:flights", 0), ("earliest", 0)]
    assert "started from group:flights at 0" in report.to_text()
    assert report.figures["dead_letters"] == 0


# --- one fault in each partition -------------------------------------------------------------------------------------

Shown = dict[str, dict[str, Any]]
"""By statement: fields of an example that the report shows."""


class Fault(NamedTuple):
    """``plant``: into a partition of a run. ``found_by``: the statements whose examples lie there, and no others."""

    plant: Callable[[Run, int], Shown]
    found_by: set[str]


def in_commit(change: Callable[[Committed], Committed]) -> Callable[[Run, int], Shown]:
    """A commit event that says something else."""

    def plant(run: Run, p: int) -> Shown:
        run.edit_commit(change, log_partition=p)
        return {}

    return plant


def widest(commit: Committed) -> Tile:
    """The tile of the most workers, which holds records."""
    return max(commit.tiles, key=lambda tile: tile.count)


def with_tile(**fields: Callable[[Tile], int]) -> Callable[[Committed], Committed]:
    """The commit with other fields of its widest tile."""

    def change(commit: Committed) -> Committed:
        tile = widest(commit)
        wrong = changed(tile, **{name: value(tile) for name, value in fields.items()})
        return changed(commit, tiles=tuple(wrong if each is tile else each for each in commit.tiles))

    return change


def lost_tile(run: Run, p: int) -> Shown:
    """The gap is the rectangle that was taken away, and its records are in no tile."""
    tile = widest(run.edit_commit(without_widest, log_partition=p))
    gap = {"kind": "gap", "offset_from": tile.offset_from, "offset_to": tile.offset_to}
    return {"tile-cover": {**gap, "first": tile.first, "end": tile.end}}


def without_widest(commit: Committed) -> Committed:
    """The commit without a tile."""
    return changed(commit, tiles=tuple(tile for tile in commit.tiles if tile is not widest(commit)))


def early_tile(run: Run, p: int) -> Shown:
    """A tile that starts ten offsets early overlaps its left neighbour by those ten."""
    tile = widest(run.edit_commit(with_tile(offset_from=lambda tile: tile.offset_from - 10), log_partition=p))
    overlap = {"kind": "overlap", "offset_from": tile.offset_from - 10, "offset_to": tile.offset_from}
    return {"tile-cover": {**overlap, "first": tile.first, "end": tile.end}}


def of(run: Run, p: int, fits: Callable[[Output], bool]) -> int:
    """Where the first output of a partition that fits stands."""
    return next(i for i, output in enumerate(run.outputs) if output.partition == p and fits(output))


def doubled_output(run: Run, p: int) -> Shown:
    """The same output twice is found as such, and its commit is short of one."""
    output = run.outputs[of(run, p, lambda o: o.n == 1)]
    run.outputs.append(output)
    return {"output-once": {"kl_offset": output.offset, "seen": 2, "distinct": 1}}


def missing_output(run: Run, p: int) -> Shown:
    """The only output of a record is gone: only the commit's own count and digest can tell."""
    del run.outputs[of(run, p, lambda o: o.n == 1)]
    return {}


def torn_output(run: Run, p: int) -> Shown:
    """Of two outputs of a record one is there."""
    lost = run.outputs.pop(of(run, p, lambda o: (o.i, o.n) == (1, 2)))
    return {"output-complete": {"kl_offset": lost.offset, "seen": 1, "n_max": 2}}


def output_of_no_record(run: Run, p: int) -> Shown:
    """Its header names an offset that the source does not have."""
    run.outputs.append(replace(run.outputs[0], partition=p, offset=1_000_000, i=0, n=1))
    return {}


def commits_in_the_wrong_order(run: Run, p: int) -> Shown:
    """Two commits of a band change places: each tile is right, but one did not start at the band's edge."""
    a, b = run.commits(p)[2:4]
    run.events[p][a], run.events[p][b] = run.events[p][b], run.events[p][a]
    return {}


def missing_part(run: Run, p: int) -> Shown:
    """The log has lost its end, one of the commit events of a transaction: outputs are there that nothing counts."""
    del run.events[p][-1]
    return {}


def waiting_record(run: Run, p: int) -> Shown:
    """When level is demanded a waiting record is a violation."""
    run.records[p].append((b"late comer", b"1"))
    return {"level": {"waiting": 1}}


def damaged_header(run: Run, p: int) -> Shown:
    """An output whose header can't be decoded is of no record, so nobody knows of which partition."""
    honest = run.outputs[0].record(2)

    class Damaged:
        partition, destination, n = p, LATE, 0

        def record(self, partitions: int) -> object:
            return honest._replace(topic=LATE, headers=((HEADER, b"\xc1"),))

    run.outputs.append(Damaged())  # type: ignore[arg-type]  # only what `store` uses
    return {"output-source": {"topic": LATE, "kl_partition": None}}


UNCOUNTED = {"tile-cover", "record-tile", "level", "output-source", "commit-outputs", "commit-digest"}
"""What contradicts a tile that does not count: its records and their outputs are of nobody."""

FAULTS = {
    "a lost tile": Fault(lost_tile, UNCOUNTED),
    "a tile that starts too early": Fault(early_tile, {"tile-cover", "record-tile", "commit-outputs", "commit-digest"}),
    "an inverted tile": Fault(
        in_commit(with_tile(offset_from=lambda tile: tile.offset_to, offset_to=lambda tile: tile.offset_from)),
        {"tile-shape", *UNCOUNTED},
    ),
    "a tile of another worker": Fault(
        in_commit(with_tile(worker=lambda tile: tile.worker + 1)), {"tile-worker", "record-worker"}
    ),
    "a digest that does not fit": Fault(
        in_commit(lambda commit: changed(commit, digest=(commit.digest + 1) & DIGEST_MASK)), {"commit-digest"}
    ),
    "commits in the wrong order": Fault(commits_in_the_wrong_order, {"tile-order"}),
    "a part of a transaction is missing": Fault(missing_part, {"output-source", "level"}),
    "a doubled output": Fault(doubled_output, {"output-once", "commit-outputs", "commit-digest"}),
    "a missing output": Fault(missing_output, {"commit-outputs", "commit-digest"}),
    "a torn output": Fault(torn_output, {"output-complete", "commit-outputs", "commit-digest"}),
    "an output of no record": Fault(output_of_no_record, {"output-source"}),
    "a damaged header": Fault(damaged_header, set()),
    "a record that waits": Fault(waiting_record, {"level"}),
    "no fault": Fault(lambda run, p: {}, set()),
}


def place_of(example: Mapping[str, Any]) -> int | None:
    """The source partition that an example lies in, or None where it does not tell."""
    of_source = example.get("topic") == SOURCE
    place: int | None = example.get("kl_partition", example["partition"] if of_source else None)
    return place


def test_each_fault_is_found_where_it_is(audited: Audited) -> None:
    """In a run with a fault in each partition each statement names the partitions that contradict it, and no others."""
    run = Planner(partitions=len(FAULTS), log_partitions=len(FAULTS), restarts=0, records=200, step=40).run()
    shown = [fault.plant(run, p) for p, fault in enumerate(FAULTS.values())]
    report = audited(run, examples_max=1_000)
    found: dict[int | None, set[str]] = defaultdict(set)
    for check in report.checks:
        for example in check.examples:
            found[place_of(example)].add(check.name)
    assert {name: found[p] for p, name in enumerate(FAULTS)} == {name: fault.found_by for name, fault in FAULTS.items()}
    assert found[None] == {"transaction-parts", "output-source", "key-order"}, (
        "the doubled output is behind a later one"
    )
    assert report.check("transaction-parts").violations == 1
    for p, fields in enumerate(shown):
        for name, wanted in fields.items():
            (example,) = (e for e in report.check(name).examples if place_of(e) == wanted.get("kl_partition", p))
            assert {**example, **wanted} == example


def test_a_stale_commit_is_found(audited: Audited) -> None:
    """After a grant to another, a commit of the old epoch in front of it does not count, and it is seen."""
    run = Planner(restarts=0, partitions=1, log_partitions=1).run()
    run.control += [
        coordinator_elected(2, "other"),
        member_joined(2, 2, "other", "flights-2"),
        member_expelled(2, 1),
        member_fenced(2, 1),
        ranges_granted(2, 2, 2, SOURCE, 0, (Band(0, 1 << 32, 400),)),
    ]
    run.records[0] += [(b"key 1", b"1")] * 10
    tile = Tile(0, 16, 0, 1 << 32, 400, 410)
    run.events[0].append(Committed(1, 999, 0, 1, 1, SOURCE, 0, (tile,), 0, 0, 0))
    report = audited(run, level=False)
    assert report.violated_checks() == ["grant-edge", "stale-commit"], "it may have come before the grant, or after it"
    (example,) = report.check("stale-commit").examples
    assert (example["epoch"], example["transaction"], example["offset_from"]) == (1, 999, 400)
    assert report.sources[0].frontier == 400


def test_a_commit_of_a_grant_that_does_not_count_is_stale(audited: Audited) -> None:
    """Under a term that a later election ended; with a number that was used or is before its turn; by a coordinator
    that was elected for another application. See test_history.py.
    """
    run = Planner(partitions=5, log_partitions=5, restarts=0, records=100).run()

    def granted(term: int, partition: int, **fields: int) -> ControlEvent:
        grant = ranges_granted(term, 2, 2, SOURCE, partition, (Band(0, 1 << 32, 100),))
        return changed(grant, **fields)

    run.control += [
        coordinator_elected(2, "other"),
        member_joined(2, 2, "other", "flights-2"),
        granted(1, 0),
        granted(2, 1, number=1),
        granted(2, 2, number=50),
        coordinator_elected(3, "third", "of another"),
        granted(3, 3),
    ]
    for p in range(4):
        run.records[p] += [(b"key 1", b"1")] * 10
        run.events[p].append(Committed(2, 1, p, 4, 2, SOURCE, p, (Tile(0, 16, 0, 1 << 32, 100, 110),), 0, 0, 0))
    report = audited(run, level=False)
    assert {example["partition"] for example in report.check("stale-commit").examples} == {0, 1, 2, 3}


def test_a_truncated_control_log_is_found(audited: Audited) -> None:
    """A log that begins above 0 would prove itself; it is refused."""
    run = Planner(restarts=0, records=100).run()
    run.trims[f"{APP}.control", 0] = 3
    assert "log-whole" in audited(run).violated_checks()


def test_logs_that_are_not_whole_are_found(audited: Audited) -> None:
    """One begins above 0 without a snapshot; one has lost its opening; one was written to before its opening, as when
    it was emptied meanwhile; and of one all events are gone, by time retention say, although ranges were granted.
    """
    run = Planner(partitions=5, log_partitions=5, restarts=0, records=200).run()
    run.trims[f"{APP}.offsets", 0] = 3
    del run.events[1][0]
    run.events[2].insert(0, run.events[2].pop(run.commits(2)[0]))
    run.trims[f"{APP}.offsets", 3] = len(run.events[3])
    report = audited(run, examples_max=1_000)
    assert {example["log_partition"] for example in report.check("log-whole").examples} == {0, 1, 2, 3}
    assert 3 in {example["kl_partition"] for example in report.check("output-source").examples}


def test_a_log_trimmed_below_its_snapshot_is_proven_from_there(audited: Audited) -> None:
    """The snapshot's edges are the audit's left edge; the report says that older history can't be proven."""
    planner = Planner(restarts=1, partitions=4, log_partitions=2)
    run = planner.run()
    position = run.commits(0)[6]
    at = position + 2
    run.events[0][at:at] = planner.snapshot(run, 0, position)
    run.trims[f"{APP}.offsets", 0] = position
    report = audited(run)
    assert report.violated_checks() == []
    assert any("can't be proven" in note for note in report.notes)
    assert {s.partition: s.start > 0 for s in report.sources} == {0: True, 1: False, 2: True, 3: False}


def test_a_wrong_snapshot_is_found(audited: Audited) -> None:
    """A snapshot that claims less than was done overlaps nothing it proves, but leaves a gap; one log, one truth."""
    planner = Planner(restarts=0, partitions=1, log_partitions=1)
    run = planner.run()
    position = run.commits(0)[4]
    run.events[0][position:position] = planner.snapshot(run, 0, run.commits(0)[2])
    (taken,) = planner.snapshot(run, 0, position)
    run.events[0][position] = changed(taken, position=position + 2)
    run.trims[f"{APP}.offsets", 0] = position
    assert "tile-cover" in audited(run).violated_checks()


def test_splits_and_merges_are_followed(audited: Audited) -> None:
    """Children of a split and the worker of a merge own the ranges from then on, and the parents no more."""
    planner = Planner(restarts=0, partitions=1, log_partitions=1, workers=4, lag=0.0)
    run = planner.run()
    quarter = 1 << 30
    half = quarter // 2
    place = run.commits(0)[3]
    transaction = run.events[0][place].transaction  # type: ignore[union-attr]  # a commit
    run.events[0][place + 1 : place + 1] = [
        WorkerSplit(1, transaction, 1, SOURCE, 0, 0, half, 4),
        WorkersMerged(1, transaction, 1, SOURCE, 0, 2, 3, 6),
    ]
    for nth in range(4, len(run.commits(0))):

        def recut(commit: Committed) -> Committed:
            at, to = commit.tiles[0].offset_from, commit.tiles[0].offset_to
            spans = [(4, 2, 0, quarter), (1, 1, quarter, 2 * quarter), (6, 1, 2 * quarter, 4 * quarter)]
            return changed(commit, tiles=tuple(Tile(w, n, first, end, at, to) for w, n, first, end in spans))

        run.edit_commit(recut, nth=nth)
    assert audited(run).violated_checks() == []


def test_what_is_given_twice_is_found(audited: Audited) -> None:
    """A worker's number, by the same cut twice in one incarnation; and an epoch over the same points."""
    run = Planner(restarts=0, records=100).run()
    run.events[0].append(run.events[0][1])
    run.control.append(ranges_granted(1, 1, 1, SOURCE, 1, (Band(0, 5, 0),)))
    report = audited(run)
    assert "control" in report.violated_checks()
    first, second, *_ = (example["problem"] for example in report.check("control").examples)
    assert (first, second) == (f"{SOURCE}[1]: epoch 1 granted twice", "worker 0 came back")


def expected_outputs(spark: "SparkSession", source: "DataFrame") -> "DataFrame":
    """What the plan's application makes of its records, said again in Spark's terms."""
    from pyspark.sql import functions as F

    number = F.col("value").cast("string").cast("int")
    numbered = source.withColumn("number", number)
    place = [
        F.col("topic").alias("source_topic"),
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
    ]
    dead = numbered.where("number % 17 = 0").select(F.lit(DEAD).alias("destination"), *place, "key", "value")
    alive = numbered.where("number % 17 <> 0 and number % 3 = 0")
    late = F.concat(F.lit(b"late "), F.col("value"))
    own = F.col("offset").cast("string").cast("binary")
    return dead.unionAll(alive.select(F.lit(LATE), *place, "key", late)).unionAll(
        alive.select(F.lit(AUDITED), *place, "key", own)
    )


def test_the_expected_outputs_are_compared_exactly(audited: Audited) -> None:
    """An output with another value than the source gives is found, with the one that should be there. Two outputs of a
    key that stand the other way round are no other outputs, and their order is found.
    """
    run = Planner().run()
    run.outputs[3].value += b"!"
    a, b, *_ = [i for i, o in enumerate(run.outputs) if (o.destination, o.key, o.partition) == (LATE, b"key 7", 0)]
    run.outputs[a], run.outputs[b] = run.outputs[b], run.outputs[a]
    report = audited(run, expected=expected_outputs)
    assert report.violated_checks() == ["key-order", "expected"]
    assert report.check("key-order").examples[0]["source_key"] == b"key 7"
    assert sorted(example["surplus"] for example in report.check("expected").examples) == [-1, 1]


def test_records_before_the_start_are_not_the_applications(audited: Audited) -> None:
    """An output of a record in front of the partition's start is of none that the application may touch."""
    run = Planner(restarts=0, records=100).run()
    run.outputs += outputs_of(0, 0, b"key 1", b"1")
    run.control = [changed(event, offset=10) if isinstance(event, PartitionStarted) else event for event in run.control]
    assert {"tile-cover", "output-source"} <= set(audited(run).violated_checks())


def test_a_source_that_lost_old_records_is_judged_from_what_is_left(audited: Audited) -> None:
    """Its retention passed some records: nothing is said about these, the report says so, and they hide no fault of
    what is left.
    """
    run = Planner(restarts=0).run()
    run.trims[SOURCE, 0] = 120
    run.outputs.remove(next(o for o in run.outputs if o.partition == 0 and o.offset > 250 and o.n == 1))
    report = audited(run)
    assert report.violated_checks() == ["commit-outputs", "commit-digest"]
    assert report.check("commit-outputs").violations == report.check("commit-digest").violations == 1
    assert any("are gone" in note for note in report.notes)
    assert report.figures["records"] == 400 + 280
