"""Last stage: the visible outputs and dead letters, against the records, the commits and the expected outputs.

An output belongs to the application named in its header. Outputs of other applications are counted, not judged.

A replay is no output: somebody wrote a dead letter back, with its headers, to the source topic of the failed record.
The application writes no dead letter of a topic to the same topic, and no handler writes headers of dead letters.
Therefore no other record looks like a replay.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from . import checks
from .brokers import AuditError, Place, Span
from .judge_plane import Tiles
from .judge_records import Records, done_records
from .run import AuditContext

Expected: TypeAlias = Callable[[SparkSession, DataFrame], DataFrame]
"""Computes from the done source records (topic, partition, offset, timestamp, key, value) the outputs of the records:
``destination`` and any of ``source_topic``, ``source_partition``, ``source_offset``, ``key``, ``value``."""

EXPECTED_COLUMNS = ("destination", "source_topic", "source_partition", "source_offset", "key", "value")
_PLACE = ("kl_topic", "kl_partition", "kl_offset")
_OUTPUT = ("topic", "partition", "offset", *_PLACE, "kl_i", "kl_n")


@dataclass(slots=True)
class Outputs:
    """The numbers of visible outputs by destination, dead letters included, and the number of known dead letters.

    ``of_others``: the number of records of other applications, by topic; ``replays``: the number of replays, and
    partition and offset of the first replay, by topic.
    """

    destinations: dict[str, int]
    dead_letters: int
    of_others: dict[str, int]
    replays: dict[str, tuple[int, int, int]]


def judge_outputs(
    run: AuditContext, tiles: Tiles, records: Records, dead_letters: Sequence[str] | None, expected: Expected | None
) -> Outputs:
    """Judge all statements on outputs. ``dead_letters`` None: the topics of dead letters are unknown."""
    gone = _places_gone(run)
    located = run.persist(checks.locate_outputs(_outputs(run, values=expected is not None), records.places, gone))
    counts = (
        located.groupBy("topic")
        .agg(
            F.count_if("own").alias("whole"),
            F.count_if("kl_damaged").alias("damaged"),
            F.count_if(F.col("own") & F.col("astray")).alias("astray"),
            F.count_if(~F.col("own") & ~F.col("kl_damaged") & ~F.col("replay")).alias("of_others"),
            F.count_if("replay").alias("replays"),
            F.min(F.when(F.col("replay"), F.struct("partition", "offset"))).alias("first_replay"),
        )
        .collect()
    )
    # A foreign header of the same name may hold any bytes: damaged headers count only in topics with own outputs.
    destinations = {row["topic"]: row["whole"] for row in sorted(counts) if row["whole"]}
    total = sum(destinations.values())
    run.judge_counted(
        "output-source",
        "every output is of one existing record in a counted tile",
        total,
        sum(row["astray"] + row["damaged"] for row in counts if row["whole"]),
        located.where(F.col("own") & F.col("astray") | F.col("kl_damaged") & F.col("topic").isin(list(destinations))),
        _OUTPUT,
    )
    ours = located.where("own")
    _judge_completeness(run, ours, total)
    _judge_commits(run, tiles, ours, dead_letters)
    _judge_key_order(run, ours, total)
    if expected is not None:
        _judge_expected(run, ours, records, expected)
    dead = sum(n for topic, n in destinations.items() if topic in (dead_letters or ()))
    of_others = {row["topic"]: row["of_others"] for row in sorted(counts) if row["of_others"]}
    replays = {row["topic"]: (row["replays"], *row["first_replay"]) for row in sorted(counts) if row["replays"]}
    return Outputs(destinations, dead, of_others, replays)


def _places_gone(run: AuditContext) -> DataFrame | None:
    """The places of records that the sources have lost since the application started; None without a loss."""
    starts = run.pins.grants.starts
    rows = [
        (run.numbers[source], start, run.pins.sources[source].start)
        for source, start in starts.items()
        if start < run.pins.sources[source].start
    ]
    return run.frame(rows, "kl_source int, gone_from bigint, gone_to bigint") if rows else None


def _outputs(run: AuditContext, *, values: bool) -> DataFrame:
    """Every visible record with a provenance header.

    ``own``: the header names this application, and the record is no replay; ``replay``: a dead letter of this
    application, written back to its source topic.
    """
    columns = "topic,partition,offset,kl_app,kl_topic,kl_source,kl_partition,kl_offset,kl_i,kl_n,kl_damaged,kl_letter"
    spans: dict[Place, Span] = dict(run.pins.outputs)
    read = run.read("keylanes_records", spans, columns + (",key,value" if values else ""), headed="true")
    named = F.coalesce(F.col("kl_app") == F.lit(run.pins.grants.app_id), F.lit(False))
    replay = F.coalesce(F.col("kl_letter") & named & (F.col("kl_topic") == F.col("topic")), F.lit(False))
    return read.withColumns({"own": named & ~replay, "replay": replay}).drop("kl_app", "kl_letter")


def _judge_key_order(run: AuditContext, ours: DataFrame, total: int) -> None:
    statement = "outputs of one key stand in the order of its records"
    if checks.out_of_key_order(ours, exact=False).isEmpty():
        run.judge("key-order", statement, total, 0)
        return
    shown = ["topic", "partition", "offset", "source_key", "offset_before", "kl_offset"]
    run.judge_rows("key-order", statement, total, checks.out_of_key_order(ours), shown)


def _judge_completeness(run: AuditContext, ours: DataFrame, total: int) -> None:
    bad = checks.incomplete_places(ours)
    shown = [*_PLACE, "seen", "distinct", "n_min", "n_max"]
    if bad.isEmpty():
        run.judge("output-once", "no output is there twice", total, 0)
        run.judge("output-complete", "of n outputs of a record all n are there", total, 0)
        return
    run.judge_rows("output-once", "no output is there twice", total, bad.where("seen > distinct"), shown)
    torn = bad.where("n_min <> n_max or distinct <> n_max or i_max <> n_max - 1")
    run.judge_rows("output-complete", "of n outputs of a record all n are there", total, torn, shown)


def _judge_commits(run: AuditContext, tiles: Tiles, ours: DataFrame, dead_letters: Sequence[str] | None) -> None:
    # A commit is judged if all its outputs must be in view and all its records still exist.
    committed, provable, gone = tiles.committed, F.col("judged"), _places_gone(run)
    if gone is not None:
        committed = committed.join(F.broadcast(gone), F.col("source") == F.col("kl_source"), "left")
        provable = provable & F.coalesce(F.col("offset_from") >= F.col("gone_to"), F.lit(True))
    names = ("source", "incarnation", "transaction", "outputs", "dead_letters", "digest_high", "digest_low")
    commits = committed.groupBy(*checks.EVENT_KEY, *names).agg(F.min(provable).alias("provable")).where("provable")
    seen = checks.recount_outputs(ours, list(dead_letters or ()))
    bad = run.persist(checks.commits_against(commits, seen, apart=dead_letters is not None))
    at = ["source", "incarnation", "transaction", *checks.EVENT_KEY]
    run.judge_rows(
        "commit-outputs",
        "every commit has as many visible outputs and dead letters as it says",
        tiles.commits,
        bad.where("not counts_right"),
        [*at, "outputs", "seen_outputs", "dead_letters", "seen_dead_letters"],
    )
    run.judge_rows(
        "commit-digest",
        "the visible outputs of every commit have the digest that it says",
        tiles.commits,
        bad.where("not digest_right"),
        [*at, "digest_high", "seen_digest_high", "digest_low", "seen_digest_low"],
    )


def _judge_expected(run: AuditContext, ours: DataFrame, records: Records, expected: Expected) -> None:
    wanted = expected(run.spark, done_records(run, records))
    columns = [name for name in EXPECTED_COLUMNS if name in wanted.columns]
    if "destination" not in columns or len(columns) != len(wanted.columns):
        raise AuditError(f"expected: columns are among {', '.join(EXPECTED_COLUMNS)}; seen {wanted.columns}")
    visible = ours.where("tiles = 1 and judged").select(
        F.col("topic").alias("destination"),
        F.col("kl_topic").alias("source_topic"),
        F.col("kl_partition").alias("source_partition"),
        F.col("kl_offset").alias("source_offset"),
        "key",
        "value",
    )
    run.judge_rows(
        "expected",
        "the outputs are those that the sources give",
        visible.count(),
        checks.rows_differing(wanted, visible, columns),
        [*columns, "surplus"],
    )
