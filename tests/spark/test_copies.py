"""Copies of state in folders, against their changelogs: honest ones hold, wherever they are, and faults are named."""

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from keylanes.keyrange.hashing import SPACE_END, point_of_key
from keylanes.spark.brokers import AuditError
from keylanes.state.changelog import encode_stored
from keylanes.state.copies import open_copies
from keylanes.state.keys import point_in, state_key
from keylanes.state.rocks import write_marker
from keylanes.state.subfolders import SUBFOLDERS, SUBFOLDERS_FORMAT
from keylanes.state.tables import Mark, Marker

from .honest import APP, SOURCE, Run
from .test_state import Change, beacons, planner, stateful, write

if TYPE_CHECKING:
    from keylanes.spark.report import Report

pytestmark = pytest.mark.spark

BIRTH = "process 0"
HALF = SPACE_END // 2

Pieces = Sequence[tuple[int, int, int]]
"""(first, end, position)."""


def planned() -> tuple[Run, list[Change]]:
    """A run of one partition that keeps state, and its changelog."""
    run = planner(restarts=0, records=120, partitions=1, log_partitions=1).run()
    changes = stateful(run)
    return run, [*changes, *beacons(run)]


def fill(
    folder: Path,
    changes: Sequence[Change],
    pieces: Pieces,
    *,
    ahead: int = 0,
    age_ms: int = 0,
    birth: str = BIRTH,
    topic: str = SOURCE,
) -> None:
    """A copy of partition 0 at these markers, that holds ``ahead`` changes above each."""
    copies = open_copies(folder, app=APP, birth=birth)
    copy = copies.copy(topic, 0)
    now_ms = int(time.time() * 1000) - age_ms
    for first, end, position in pieces:
        own = [(k, v) for _, k, v in changes[: position + ahead] if len(k) > 9 and first <= point_in(k) < end]
        marks: list[Mark] = [(first, end, Marker(position, now_ms))]
        copy.write(own, marks)
    copies.close()


def edit(folder: Path, key: bytes, value: bytes | None) -> None:
    """Let a copy hold another value."""
    copies = open_copies(folder, app=APP, birth=BIRTH)
    copies.copy(SOURCE, 0).write([(key, value)])
    copies.close()


@pytest.fixture
def compared(audited: "Callable[..., Report]", tmp_path: Path) -> "Callable[..., Report]":
    """Stores a run with its changelog, and compares copies in folders with it."""

    def compare(run: Run, changes: Sequence[Change], *folders: Path, **spec: Any) -> "Report":
        write(tmp_path / "topics", changes, partitions=1)
        return audited(run, copies=[str(folder) for folder in folders], examples_max=50, **spec)

    return compare


def test_honest_copies_are_proven(compared: "Callable[..., Report]", tmp_path: Path) -> None:
    """An owner's at the end, beside its writer, and standbys: at two markers, ahead of theirs, of a part only. What
    lies at points without a marker is left over.
    """
    run, changes = planned()
    end = len(changes)
    state = tmp_path / "state"
    state.mkdir()
    write_marker(state, SUBFOLDERS, SUBFOLDERS_FORMAT)
    (state / APP).mkdir()
    fill(state / APP / "0", changes, [(0, SPACE_END, end)])
    fill(state / APP / "a", changes, [(0, HALF, 60), (HALF, SPACE_END, end - 20)])
    fill(tmp_path / "ahead", changes, [(0, SPACE_END, 40)], ahead=55)
    fill(tmp_path / "part", changes, [(HALF, SPACE_END, 100)])
    edit(tmp_path / "part", state_key(5, 0, b"left over"), b"\x00x")
    at_work = open_copies(state / APP / "0", app=APP, birth=BIRTH)
    report = compared(run, changes, state, tmp_path / "ahead", tmp_path / "part", state / APP / "a")
    at_work.close()
    assert report.violated_checks() == [], report.to_text()
    keys = {key for _, key, _ in changes if len(key) > 9}
    upper = {key for key in keys if point_in(key) >= HALF}
    assert report.check("copy-state").checked == 3 * len(keys) + len(upper)
    assert report.figures["keys_of_copies"] == 3 * len(keys) + len(upper)
    assert not any("copies" in note for note in report.notes)


def test_every_fault_in_a_copy_is_found(compared: "Callable[..., Report]", tmp_path: Path) -> None:
    """Of many right keys exactly the wrong ones are named: lost, not followed, deleted, of nobody, from nowhere."""
    run, changes = planned()
    marker = 150
    folder = tmp_path / "copy"
    early = next(key for _, key, _ in changes if key not in {change[1] for change in changes[marker - 1 :]})
    changes.insert(marker - 1, (0, early, None))
    fill(folder, changes, [(0, SPACE_END, marker)])
    below = {key: value for _, key, value in changes[:marker] if len(key) > 9}
    above = {key for _, key, _ in changes[marker:]}
    still = [key for key in below if key not in above and below[key] is not None]
    again = [key for key in below if key in above and below[key] is not None]
    gone = [key for key in below if below[key] is None and key not in above]
    new = [key for key in above - below.keys() if len(key) > 9]
    assert min(len(still), len(again) + 1, len(gone) + 1, len(new) + 1) > 1
    strange = state_key(point_of_key(b"strange"), 0, b"strange")
    edit(folder, still[0], None)
    edit(folder, still[1], encode_stored(b"older"))
    edit(folder, again[0], encode_stored(b"never"))
    edit(folder, gone[0], encode_stored(b"back"))
    edit(folder, new[0], encode_stored(b"never"))
    edit(folder, strange, encode_stored(b"1"))
    report = compared(run, changes, folder)
    assert report.violated_checks() == ["copy-state"], report.to_text()
    found = {bytes(one["raw"]): one["problem"] for one in report.check("copy-state").examples}
    neither = "neither the newest below the marker nor one above"
    assert found == {
        still[0]: "missing",
        still[1]: neither,
        again[0]: neither,
        gone[0]: neither,
        new[0]: neither,
        strange: "the changelog has no such key",
    }
    assert "NOT exactly once" in report.to_text()
    assert str(folder) in report.to_text()


def test_a_marker_that_lies_too_high_is_found(compared: "Callable[..., Report]", tmp_path: Path) -> None:
    """Ahead of what the copy has followed, and ahead of the changelog."""
    run, changes = planned()
    fill(tmp_path / "behind", changes[:100], [(0, SPACE_END, 160)])
    fill(tmp_path / "beyond", changes, [(0, SPACE_END, len(changes) + 1)])
    report = compared(run, changes, tmp_path / "behind", tmp_path / "beyond")
    assert report.violated_checks() == ["copy-state"]
    first, *others = report.check("copy-state").examples
    assert first["problem"] == f"its marker lies ahead of the end of its changelog, {len(changes)}"
    assert first["folder"] == str(tmp_path / "beyond")
    assert others
    assert {one["folder"] for one in others} == {str(tmp_path / "behind")}


def compacted(changes: Sequence[Change], until: int) -> list[int]:
    """Where what compaction leaves stood, when it comes so far: of each key the newest there."""
    last = {key: at for at, (_, key, _) in enumerate(changes[:until])}
    return [at for at, (_, key, _) in enumerate(changes) if at >= until or last[key] == at]


@pytest.mark.parametrize("age_ms", [0, 4 * 24 * 3_600_000])
def test_what_compaction_took_is_not_judged(compared: "Callable[..., Report]", tmp_path: Path, age_ms: int) -> None:
    """Of keys whose newest record below the marker may be gone; a key that compaction has not come to is judged. Where
    a copy is old what says that a key is deleted may be gone, too.
    """
    run, changes = planned()
    middle, marker = 150, 100
    left = compacted(changes, middle)
    position = sum(at < marker for at in left)
    fill(tmp_path / "copy", changes[:marker], [(0, SPACE_END, position)], ahead=marker, age_ms=age_ms)
    below = {key: value for _, key, value in changes[:marker] if len(key) > 9}
    lost = {key for key in below if key not in {changes[at][1] for at in left if at < marker}}
    report = compared(run, [changes[at] for at in left], tmp_path / "copy")
    assert report.violated_checks() == [], report.to_text()
    differ = [key for key in lost if below[key] is not None]
    (note,) = [note for note in report.notes if "copies" in note]
    undecided = int(note.split()[0])
    assert 0 < undecided <= len(differ)
    assert report.check("copy-state").checked + undecided == len({key for _, key, _ in changes if len(key) > 9})
    late = next(key for _, key, _ in changes[middle:] if len(key) > 9 and key not in {c[1] for c in changes[:middle]})
    edit(tmp_path / "copy", late, encode_stored(b"never"))
    edit(tmp_path / "copy", b"\0" * 10, encode_stored(b"never"))
    shutil.rmtree(tmp_path / "topics")
    report = compared(run, [changes[at] for at in left], tmp_path / "copy")
    wrong = [bytes(one["raw"]) for one in report.check("copy-state").examples]
    assert sorted(wrong) == ([] if age_ms else sorted([late, b"\0" * 10]))


def test_what_is_no_copy_of_the_application_is_an_error(
    compared: "Callable[..., Report]", audited: "Callable[..., Report]", tmp_path: Path
) -> None:
    """A folder that is not there, that holds nothing, or of other logs; a partition or topic that it does not read; a
    changelog that is no log; an application without stores.
    """
    from keylanes.spark.audit import AuditSpec, pin_now

    run, changes = planned()
    topics, copy = tmp_path / "topics", tmp_path / "copy"

    def refused(folder: Path, words: str) -> None:
        with pytest.raises(AuditError, match=words):
            pin_now(AuditSpec(app=APP, broker=url, copies=[str(folder)]))

    url = run.store(topics)
    refused(tmp_path / "none", "does not exist")
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "file").touch()
    refused(tmp_path / "strange", "was not made by keylanes")
    empty = tmp_path / "state"
    empty.mkdir()
    write_marker(empty, SUBFOLDERS, SUBFOLDERS_FORMAT)
    refused(empty, "holds no state of 'flights'")
    fill(tmp_path / "older", changes, [(0, SPACE_END, 5)], birth="another")
    refused(tmp_path / "older", "born another; this is application 'flights', born process 0")
    open_copies(tmp_path / "other", app="other", birth=BIRTH).close()
    refused(tmp_path / "other", "holds the state of application 'other'")
    shutil.rmtree(topics)
    url = planner(restarts=0, records=60).run().store(topics)
    refused(copy, "declared no store")
    shutil.rmtree(topics)
    fill(copy, changes, [(0, SPACE_END, 5)], topic="gone")
    with pytest.raises(AuditError, match=r"has a copy for gone\[0\], which 'flights' does not read"):
        compared(run, changes, copy)
    shutil.rmtree(topics)
    shutil.rmtree(copy)
    fill(copy, changes, [(0, SPACE_END, 5)])
    write(topics, changes, by_key=True, partitions=1)
    with pytest.raises(AuditError, match=r"keeps the changelog of flights\.in by key"):
        audited(run, copies=[str(copy)])
