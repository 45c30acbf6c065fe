"""The book of the bench: what ran is not run again, by the same code at the same sizes only."""

from pathlib import Path

from compare import plan
from comparison.workloads import WORKLOADS
from rig.book import Book

from ..tiers.marks import tier

pytestmark = tier("check")

SETTINGS = {"size": "quick"}


def opened(path: Path, settings: dict[str, str] = SETTINGS, *, again: bool = False) -> Book:
    """A book that goes on, or begins."""
    book = Book(path)
    book.open(settings, again=again)
    return book


def test_a_book_goes_on_where_it_was(tmp_path: Path) -> None:
    """After a restart the runs that ended well are there; one that failed is tried again, and then replaced."""
    book = opened(tmp_path / "book.json")
    book.add("W1-2ms", "keylanes", 0, figures={"per_second": 5.0, "versions": {"keylanes": "1"}})
    book.add("W1-2ms", "getmany", 0, failed="no broker")
    later = opened(tmp_path / "book.json")
    assert later.has("W1-2ms", "keylanes", 0)
    assert not later.has("W1-2ms", "keylanes", 1)
    assert not later.has("W1-2ms", "getmany", 0)
    later.add("W1-2ms", "getmany", 0, figures={"per_second": 7.0})
    assert [run.get("figures") for run in later.content["runs"]] == [{"per_second": 5.0}, {"per_second": 7.0}]
    assert later.content["peers"] == {"keylanes": {"keylanes": "1"}}


def test_a_failure_is_remembered_when_a_later_try_ends_well(tmp_path: Path) -> None:
    """Luck at the second try is no proof: what failed stays in the book, and so does a warm-up that did."""
    book = opened(tmp_path / "book.json")
    book.add("W4", "quix-eos", 1, failed="records were lost")
    book.fail("W7-handled, a warm-up, keylanes: no ready")
    later = opened(tmp_path / "book.json")
    later.add("W4", "quix-eos", 1, figures={"per_second": 7.0})
    assert opened(tmp_path / "book.json").content["failures"] == [
        "W4, round 2, quix-eos: records were lost",
        "W7-handled, a warm-up, keylanes: no ready",
    ]


def test_other_settings_begin_a_fresh_book_and_keep_the_old_one(tmp_path: Path) -> None:
    """Figures of two sizes never stand in one book; asked to begin again, the one before is kept too."""
    book = opened(tmp_path / "book.json")
    book.add("W1-2ms", "keylanes", 0, figures={})
    assert opened(tmp_path / "book.json", {"size": "full"}).content["runs"] == []
    assert opened(tmp_path / "book.json", {"size": "full"}, again=True).content["runs"] == []
    assert len(list(tmp_path.glob("book-*.json"))) == 2


def test_a_book_that_was_torn_is_begun_anew(tmp_path: Path) -> None:
    """What can't be read is no result."""
    (tmp_path / "book.json").write_text('{"identity": "x", "ru')
    assert opened(tmp_path / "book.json").content["runs"] == []


def test_an_arm_that_can_run_again_is_no_longer_skipped(tmp_path: Path) -> None:
    """The reason goes when the arm is ready."""
    book = opened(tmp_path / "book.json")
    book.skip({"pyrallel": "needs Python 3.12", "keylanes": ""})
    assert book.content["skipped"] == {"pyrallel": "needs Python 3.12"}
    book.skip({"pyrallel": ""})
    assert book.content["skipped"] == {}


def test_only_what_is_missing_is_planned_in_rounds_that_begin_elsewhere(tmp_path: Path) -> None:
    """Arms alternate; each round begins with another one, so that none always runs first."""
    book = opened(tmp_path / "book.json")
    workload = next(w for w in WORKLOADS if w.name == "W5")
    core, reactor = workload.arms[1:]
    book.add("W5", core, 0, figures={"per_second": 1.0})
    wanted = [(arm, number) for _, arm, number in plan(book, [workload], [], {"W5": 2})]
    assert wanted == [("keylanes", 0), (reactor, 0), (core, 1), (reactor, 1), ("keylanes", 1)]
    assert [arm for _, arm, _ in plan(book, [workload], ["keylanes"], {"W5": 1})] == ["keylanes"]
