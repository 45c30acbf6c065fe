"""Whose output a record is: several applications over one source, and headers of both versions in one topic."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keylanes.offsets.provenance import app_id_of
from keylanes.state.topics import TopicStore

from .honest import APP, AUDITED, DEAD, LATE, SOURCE, Output, Planner, Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from keylanes.spark.report import Report

pytestmark = pytest.mark.spark

Audited = Callable[..., "Report"]

OTHER, OTHERS_PROCESS = "sights", "another process"
OTHERS_ID = app_id_of(f"{OTHERS_PROCESS} 0")
UNREAD = "docks.in"
"""A topic that no application here reads."""


def kept_quiet(run: Run) -> Output:
    """An output that nothing wrote, of a record that gave none."""
    key, value = next((key, value) for key, value in run.records[0] if int(value) % 3 and int(value) % 17)
    return Output(LATE, key, b"planted", 0, run.records[0].index((key, value)), 0, 1)


def test_two_applications_over_one_source_into_one_topic_are_both_proven(spark: "SparkSession", tmp_path: Path) -> None:
    """Each audit judges its own outputs, and says how many of the other it saw and did not judge."""
    from keylanes.spark.audit import AuditSpec, audit

    one, other = Planner().run(), Planner(app=OTHER, process=OTHERS_PROCESS, workers=5, step=30).run()
    assert one.records == other.records
    url = one.store(tmp_path / "topics")
    store = TopicStore.open(tmp_path / "topics")
    other.write(store)
    store.close()
    for app, outputs in ((APP, [LATE, AUDITED]), (OTHER, None)):
        report = audit(spark, AuditSpec(app=app, broker=url, outputs=outputs, dead_letters=[DEAD], level=True))
        assert report.violated_checks() == []
        assert report.figures["outputs"] + report.figures["dead_letters"] == len(one.outputs)
        assert report.figures["outputs_of_others"] == len(other.outputs)
        assert any("outputs of other applications are counted and not judged" in note for note in report.notes)


def test_what_another_application_writes_is_not_judged(audited: Audited) -> None:
    """However wrong it would be as an output of this one."""
    run = Planner(restarts=0).run()
    wrong = [
        replace(kept_quiet(run), app_id=OTHERS_ID),
        replace(run.outputs[0], app_id=OTHERS_ID),
        replace(kept_quiet(run), app_id=OTHERS_ID, offset=1_000_000),
        replace(kept_quiet(run), app_id=OTHERS_ID, source=UNREAD, n=7),
    ]
    run.outputs += wrong
    report = audited(run)
    assert report.violated_checks() == []
    assert report.figures["outputs_of_others"] == len(wrong)


def test_what_only_claims_to_be_an_output_is_found(audited: Audited) -> None:
    """It carries the application's id, and names a topic that this one does not read, no record of a source, or a
    record whose commit counts no such output. One that stands under another name is missing.
    """
    run = Planner(restarts=0, records=100).run()
    planted = kept_quiet(run)
    place = next(i for i, output in enumerate(run.outputs) if output.n == 1 and output.partition == 1)
    run.outputs[place] = replace(run.outputs[place], app_id=OTHERS_ID)
    run.outputs += [replace(planted, source=UNREAD), replace(planted, offset=1_000_000), planted]
    report = audited(run)
    assert {"output-source", "commit-outputs", "commit-digest"} <= set(report.violated_checks())
    assert {example["kl_topic"] for example in report.check("output-source").examples} == {UNREAD, SOURCE}
    for name in ("commit-outputs", "commit-digest"):
        assert sorted(example["partition"] for example in report.check(name).examples) == [0, 1]


def test_outputs_that_are_not_where_they_were_declared_are_searched_for(audited: Audited) -> None:
    """The declared topics hold less than the commits say, so every topic is read; what is nowhere stays missing."""
    run = Planner(restarts=0).run()
    report = audited(run, outputs=[LATE], or_elsewhere=True)
    assert report.violated_checks() == []
    assert f"every topic was searched; outputs in topics that were not named: {AUDITED}" in report.notes
    assert report.destinations.keys() == {LATE, AUDITED, DEAD}
