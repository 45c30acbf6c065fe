"""The audit on an honest run and on runs with one planted fault each, which it must find by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

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
    range_released,
    ranges_granted,
)
from .honest import APP, AUDITED, DEAD, LATE, SOURCE, Planner, outputs_of

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
    report = audited(run, tiles=True, expected=expected_outputs)
    assert report.violated() == []
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
        (c.topic, c.partition, c.incarnation, t.worker, t.count, t.first, t.end, t.offset_from, t.offset_to)
        for c in commits
        for t in c.tiles
    }
    assert set(report.tiles) == planned


def test_a_run_that_is_not_through_is_proven_up_to_its_frontier(audited: Audited) -> None:
    """Records beyond the edges wait, which is no fault unless the run is said to be level."""
    run = Planner(restarts=0).run()
    run.records = [[*own, (b"late comer", b"1"), (None, b"2")] for own in run.records]
    report = audited(run, level=False)
    assert report.proven
    assert [(s.frontier, s.records, s.done, s.waiting) for s in report.sources] == [(400, 402, 400, 2)] * 2


def test_a_run_that_did_not_start_at_the_first_record_is_proven_from_there(audited: Audited) -> None:
    """What lies below the start was never the application's; the report says what it was started from."""
    run = Planner(restarts=0, partitions=1).run()
    run.control = [
        partition_started(event.term, SOURCE, 0, 0, "group:flights", 1)
        if isinstance(event, PartitionStarted)
        else event
        for event in run.control
    ]
    report = audited(run)
    assert report.proven
    (source,) = report.sources
    assert (source.started_from, source.started_at) == ("group:flights", 0)
    assert "started from group:flights at 0" in report.to_text()


def test_a_level_run_must_not_leave_records(audited: Audited) -> None:
    """When level is demanded a waiting record is a violation."""
    run = Planner(restarts=0, partitions=1).run()
    run.records[0].append((b"late comer", b"1"))
    assert audited(run).violated() == ["level"]


def test_a_lost_tile_is_found_as_an_exact_gap(audited: Audited) -> None:
    """The gap is the rectangle that was taken away, and its records are in no tile."""
    run = Planner().run()
    lost = run.edit_commit(lambda commit: changed(commit, tiles=commit.tiles[1:])).tiles[0]
    report = audited(run)
    assert {"tile-cover", "record-tile"} <= set(report.violated())
    (gap,) = report.check("tile-cover").examples
    assert (gap["kind"], gap["offset_from"], gap["offset_to"]) == ("gap", lost.offset_from, lost.offset_to)
    assert (gap["first"], gap["end"]) == (lost.first, lost.end)


def test_an_overlap_is_found_as_an_exact_rectangle(audited: Audited) -> None:
    """A tile that starts ten offsets early overlaps its left neighbour by those ten."""
    run = Planner(lag=0.0).run()
    tile = run.commits()[3]
    assert tile

    def early(commit: Committed) -> Committed:
        (own,) = commit.tiles
        return changed(
            commit, tiles=(Tile(own.worker, own.count, own.first, own.end, own.offset_from - 10, own.offset_to),)
        )

    was = run.edit_commit(early).tiles[0]
    report = audited(run)
    assert {"tile-cover", "record-tile"} <= set(report.violated())
    (overlap,) = report.check("tile-cover").examples
    assert (overlap["kind"], overlap["offset_from"], overlap["offset_to"]) == (
        "overlap",
        was.offset_from - 10,
        was.offset_from,
    )
    assert report.check("record-tile").violations == 10


def test_an_inverted_tile_is_found(audited: Audited) -> None:
    """A tile whose end lies in front of its start is no rectangle."""
    run = Planner().run()

    def inverted(commit: Committed) -> Committed:
        t = commit.tiles[0]
        return changed(
            commit, tiles=(Tile(t.worker, t.count, t.first, t.end, t.offset_to, t.offset_from), *commit.tiles[1:])
        )

    run.edit_commit(inverted)
    assert "tile-shape" in audited(run).violated()


def test_a_doubled_output_is_found(audited: Audited) -> None:
    """The same output twice is found as such, and its commit is short of one."""
    run = Planner().run()
    run.outputs.append(run.outputs[5])
    report = audited(run)
    assert {"output-once", "commit-outputs", "commit-digest"} <= set(report.violated())
    assert report.check("output-once").examples[0]["kl_offset"] == run.outputs[5].offset


def test_a_missing_output_is_found(audited: Audited) -> None:
    """The only output of a record is gone: only the commit's own count and digest can tell."""
    run = Planner().run()
    lost = next(output for output in run.outputs if output.n == 1)
    run.outputs.remove(lost)
    report = audited(run)
    assert report.violated() == ["commit-outputs", "commit-digest"]
    assert report.check("commit-outputs").violations == 1


def test_a_torn_output_is_found(audited: Audited) -> None:
    """Of two outputs of a record one is there."""
    run = Planner().run()
    lost = next(output for output in run.outputs if output.n == 2 and output.i == 1)
    run.outputs.remove(lost)
    report = audited(run)
    assert "output-complete" in report.violated()
    (torn,) = report.check("output-complete").examples
    assert (torn["kl_partition"], torn["kl_offset"], torn["seen"], torn["n_max"]) == (lost.partition, lost.offset, 1, 2)


def test_a_record_in_the_wrong_workers_tile_is_found(audited: Audited) -> None:
    """A tile that names another worker than the one whose range it covers."""
    run = Planner(lag=0.9).run()

    def misnamed(commit: Committed) -> Committed:
        t = commit.tiles[0]
        wrong = Tile(t.worker + 1, t.count, t.first, t.end, t.offset_from, t.offset_to)
        return changed(commit, tiles=(wrong, *commit.tiles[1:]))

    run.edit_commit(misnamed)
    report = audited(run)
    assert report.violated() == ["tile-worker", "record-worker"]
    assert report.check("tile-worker").violations == 1


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
    assert report.violated() == ["grant-edge", "stale-commit"], "it may have come before the grant, or after it"
    (example,) = report.check("stale-commit").examples
    assert (example["epoch"], example["transaction"], example["offset_from"]) == (1, 999, 400)
    assert report.sources[0].frontier == 400


def test_a_commit_of_a_deposed_coordinators_grant_is_stale(audited: Audited) -> None:
    """A grant under a term that a later election ended gives nothing."""
    run = Planner(restarts=0, partitions=1, log_partitions=1).run()
    run.control += [
        coordinator_elected(5, "other"),
        ranges_granted(1, 2, 2, SOURCE, 0, (Band(0, 1 << 32, 400),)),
    ]
    run.records[0] += [(b"key 1", b"1")] * 10
    run.events[0].append(Committed(2, 1, 0, 1, 2, SOURCE, 0, (Tile(0, 16, 0, 1 << 32, 400, 410),), 0, 0, 0))
    assert "stale-commit" in audited(run, level=False).violated()


def grants_that_do_not_count() -> dict[str, list[ControlEvent]]:
    """By what is wrong with it: a second term in which incarnation 2 is granted everything, in vain."""
    grant = ranges_granted(2, 2, 2, SOURCE, 0, (Band(0, 1 << 32, 400),))
    elected, joined = coordinator_elected(2, "other"), member_joined(2, 2, "other", "flights-2")
    return {
        "a number that was used": [elected, joined, changed(grant, number=1)],
        "a number before its turn": [elected, joined, changed(grant, number=5)],
        "elected for another application": [coordinator_elected(2, "other", "of another"), joined, grant],
    }


@pytest.mark.parametrize("control", grants_that_do_not_count().values(), ids=grants_that_do_not_count())
def test_a_commit_of_a_grant_that_does_not_count_is_stale(audited: Audited, control: list[ControlEvent]) -> None:
    """Each decision of a term counts once and in turn, and an election only for the same application."""
    run = Planner(restarts=0, partitions=1, log_partitions=1).run()
    run.control += control
    run.records[0] += [(b"key 1", b"1")] * 10
    run.events[0].append(Committed(2, 1, 0, 1, 2, SOURCE, 0, (Tile(0, 16, 0, 1 << 32, 400, 410),), 0, 0, 0))
    assert "stale-commit" in audited(run, level=False).violated()


def test_ranges_that_go_on_elsewhere_than_they_were_released_are_found(audited: Audited) -> None:
    """What was released at one offset is granted on from another: records between the two would be lost or doubled."""
    run = Planner(restarts=0, partitions=1, log_partitions=1).run()
    run.events[0].append(range_released(1, 999, 1, SOURCE, 0, 0, 1 << 32, 399))
    run.control += [
        coordinator_elected(2, "other"),
        member_joined(2, 2, "other", "flights-2"),
        ranges_granted(2, 2, 2, SOURCE, 0, (Band(0, 1 << 32, 400),)),
    ]
    report = audited(run, level=False)
    assert report.violated() == ["grant-edge", "release-edge"]
    assert "released at offset 399, granted on from 400" in str(report.check("grant-edge").examples)


@pytest.mark.parametrize("trimmed", ["offsets", "control"])
def test_a_truncated_log_is_found(audited: Audited, trimmed: str) -> None:
    """A log that begins above 0 without a snapshot would prove itself; it is refused."""
    run = Planner(restarts=0).run()
    run.trims[f"{APP}.{trimmed}", 0] = 3
    assert "log-whole" in audited(run).violated()


def test_a_log_without_its_opening_is_found(audited: Audited) -> None:
    """A log at offset 0 that begins with something else has lost its beginning, or never was one of ours."""
    run = Planner(restarts=0).run()
    del run.events[1][0]
    assert "log-whole" in audited(run).violated()


def test_a_commit_before_the_opening_is_found(audited: Audited) -> None:
    """A log that was emptied, written to, and opened by the next start does not begin with its opening."""
    run = Planner(restarts=0).run()
    run.events[1].insert(0, run.events[1].pop(run.commits(1)[0]))
    assert "log-whole" in audited(run).violated()


def test_an_emptied_log_is_found(audited: Audited) -> None:
    """All events are gone, by time retention say, although ranges were granted."""
    run = Planner(restarts=0).run()
    run.trims[f"{APP}.offsets", 1] = len(run.events[1])
    report = audited(run)
    assert "log-whole" in report.violated()
    assert "output-source" in report.violated()


def test_a_log_whose_end_is_lost_is_found(audited: Audited) -> None:
    """Outputs are visible that no commit of the log accounts for."""
    run = Planner(restarts=0).run()
    del run.events[0][-2:]
    assert "output-source" in audited(run, level=False).violated()


def test_a_log_trimmed_below_its_snapshot_is_proven_from_there(audited: Audited) -> None:
    """The snapshot's edges are the audit's left edge; the report says that older history can't be proven."""
    planner = Planner(restarts=1, partitions=4, log_partitions=2)
    run = planner.run()
    position = run.commits(0)[6]
    at = position + 2
    run.events[0][at:at] = planner.snapshot(run, 0, position)
    run.trims[f"{APP}.offsets", 0] = position
    report = audited(run)
    assert report.violated() == []
    assert any("can't be proven" in note for note in report.notes)
    assert {s.partition: s.start > 0 for s in report.sources} == {0: True, 1: False, 2: True, 3: False}


def test_a_wrong_snapshot_is_found(audited: Audited) -> None:
    """A snapshot that claims less than was done overlaps nothing it proves, but leaves a gap; one log, one truth."""
    planner = Planner(restarts=0, partitions=1, log_partitions=1)
    run = planner.run()
    position = run.commits(0)[4]
    run.events[0][position:position] = planner.snapshot(run, 0, run.commits(0)[2])
    (taken,) = (event for event in planner.snapshot(run, 0, position))
    run.events[0][position] = type(taken)(
        **{**{name: getattr(taken, name) for name in taken.__struct_fields__}, "position": position + 2}
    )
    run.trims[f"{APP}.offsets", 0] = position
    assert "tile-cover" in audited(run).violated()


def test_a_digest_that_does_not_fit_is_found(audited: Audited) -> None:
    """Another output in the place of the right one: the counts agree, the digest does not."""
    run = Planner().run()
    run.edit_commit(lambda commit: changed(commit, digest=(commit.digest + 1) & DIGEST_MASK))
    report = audited(run)
    assert report.violated() == ["commit-digest"]
    assert report.check("commit-digest").violations == 1


def test_a_transaction_with_a_missing_part_is_found(audited: Audited) -> None:
    """One of the commit events of a transaction is not there."""
    run = Planner(restarts=0).run()
    last = run.commits(1)[-1]
    del run.events[1][last]
    assert "transaction-parts" in audited(run, level=False).violated()


def test_commits_in_the_wrong_order_are_found(audited: Audited) -> None:
    """Two commits of a band change places: each tile is right, but one did not start at the band's edge."""
    run = Planner(restarts=0, lag=0.0, partitions=1, log_partitions=1).run()
    a, b = run.commits(0)[2:4]
    log = run.events[0]
    log[a], log[b] = log[b], log[a]
    assert audited(run).violated() == ["tile-order"]


def test_outputs_of_a_key_in_the_wrong_order_are_found(audited: Audited) -> None:
    """Two records of one key: the outputs stand the other way round."""
    run = Planner().run()
    places = [i for i, o in enumerate(run.outputs) if o.destination == LATE and o.key == b"key 7" and o.partition == 0]
    a, b = places[:2]
    run.outputs[a], run.outputs[b] = run.outputs[b], run.outputs[a]
    report = audited(run)
    assert report.violated() == ["key-order"]
    assert report.check("key-order").examples[0]["source_key"] == b"key 7"


def test_an_output_of_no_record_is_found(audited: Audited) -> None:
    """Its header names an offset that the source does not have."""
    run = Planner().run()
    run.outputs.append(replace(run.outputs[0], offset=1_000_000, i=0, n=1))
    assert audited(run).violated() == ["output-source"]


def test_a_damaged_header_is_found(audited: Audited, monkeypatch: pytest.MonkeyPatch) -> None:
    """An output whose header can't be decoded is of no record."""
    run = Planner().run()
    honest = run.outputs[0].record(2)

    class Damaged:
        destination = LATE

        def record(self, partitions: int) -> object:
            return honest._replace(topic=LATE, headers=((HEADER, b"\xc1"),))

    run.outputs.append(Damaged())  # type: ignore[arg-type]  # only what `store` uses
    assert audited(run).violated() == ["output-source"]


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
    assert audited(run).violated() == []


def test_a_worker_number_that_comes_back_is_found(audited: Audited) -> None:
    """The same cut twice in one incarnation gives the numbers twice."""
    run = Planner(restarts=0).run()
    run.events[0].append(run.events[0][1])
    assert audited(run).violated() == ["control"]


def test_an_epoch_granted_twice_over_the_same_points_is_found(audited: Audited) -> None:
    """A grant never uses an epoch again over overlapping points."""
    run = Planner(restarts=0).run()
    run.control.append(ranges_granted(1, 1, 1, SOURCE, 0, (Band(0, 5, 0),)))
    assert "control" in audited(run).violated()


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
    """An output with another value than the source gives is found, with the one that should be there."""
    run = Planner().run()
    run.outputs[3].value += b"!"
    report = audited(run, expected=expected_outputs)
    assert report.violated() == ["expected"]
    assert sorted(example["surplus"] for example in report.check("expected").examples) == [-1, 1]


def test_outputs_and_dead_letters_are_counted_together_when_nobody_says_which_is_which(audited: Audited) -> None:
    """Without the names of dead-letter topics the sum is judged."""
    report = audited(Planner(restarts=0).run(), dead_letters=None)
    assert report.violated() == []
    assert report.figures["dead_letters"] == 0


def test_records_before_the_start_are_not_the_applications(audited: Audited) -> None:
    """An output of a record in front of the partition's start is of none that the application may touch."""
    run = Planner(restarts=0).run()
    run.outputs += outputs_of(0, 0, b"key 1", b"1")
    run.control = [replace_start(event, 10) if isinstance(event, PartitionStarted) else event for event in run.control]
    assert {"tile-cover", "output-source"} <= set(audited(run).violated())


def test_a_source_that_lost_old_records_is_proven_from_what_is_left(audited: Audited) -> None:
    """Its retention passed some records: nothing is said about these, and the report says so."""
    run = Planner(restarts=0).run()
    run.trims[SOURCE, 0] = 120
    report = audited(run)
    assert report.violated() == []
    assert any("are gone" in note for note in report.notes)
    assert report.figures["records"] == 400 + 280


def test_a_missing_output_is_found_behind_lost_records(audited: Audited) -> None:
    """What the source has lost hides no fault of what is left."""
    run = Planner(restarts=0).run()
    run.trims[SOURCE, 0] = 120
    run.outputs.remove(next(o for o in run.outputs if o.partition == 0 and o.offset > 250 and o.n == 1))
    assert audited(run).violated() == ["commit-outputs", "commit-digest"]


def replace_start(event: PartitionStarted, offset: int) -> PartitionStarted:
    """The start with another offset."""
    return changed(event, offset=offset)
