"""Whether a change is slower: the order of the runs, their ratios and the verdict, BASE as a package, and bad input."""

import contextlib
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pairs
from comparison import rate
from pairing import revision
from pairing.ratios import AGAIN, BASE, CURRENT, MEDIAN_MAX, SIDES, Finding, Round, findings, rounds_of
from pairing.revision import NoBase
from rig import machine
from rig.book import Book
from rig.errors import WrongRun

PACKAGE = {
    "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    '[project]\nname = "keylanes"\nversion = "1"\n',
    "keylanes/__init__.py": "IS_COMPILED = False\n",
}
"""The least that can be built as keylanes."""
TIMES = st.floats(0.5, 20.0)
ROUNDS = st.builds(Round, st.integers(0, 4), st.sampled_from(["W1-2ms", "W3"]))


# The order of the runs


def test_base_runs_beside_each_of_the_two_others() -> None:
    """The rounds turn, so each stands as often before BASE as behind it, and workloads take turns."""
    found = rounds_of(2, ["W3", "W4"])
    assert found == [(0, "W3"), (0, "W4"), (1, "W3"), (1, "W4")]
    assert [one.sides for one in found[1:3]] == [(CURRENT, BASE, AGAIN), (AGAIN, BASE, CURRENT)]


@given(st.integers(1, 9), st.lists(st.sampled_from(["W1-2ms", "W3", "W4"]), min_size=1, unique=True))
def test_every_workload_has_every_round_once(count: int, workloads: list[str]) -> None:
    """Whole rounds; and of two rounds in turn one is the other one backwards."""
    found = rounds_of(count, workloads)
    assert len(found) == len(set(found)) == count * len(workloads)
    for workload in workloads:
        own = [one for one in found if one.workload == workload]
        assert [one.number for one in own] == [*range(count)]
        assert all(a.sides == b.sides[::-1] and sorted(a.sides) == sorted(SIDES) for a, b in pairwise(own))


# The ratios and the verdict


def run(one: Round, side: str, us: float) -> dict[str, Any]:
    """A run in a book."""
    figures = {"cpu_us_per_record": us}
    return {"round": one.number, "workload": one.workload, "arm": side, "figures": figures}


def test_ratios_are_of_runs_of_one_round() -> None:
    """Also when the machine is twice as slow in another one."""
    rounds = rounds_of(2, ["W3"])
    runs = [run(one, side, us * (one.number + 1)) for one in rounds for side, us in zip(SIDES, (3, 2, 4), strict=True)]
    found = findings(rounds, runs)
    assert found == {"W3": Finding([(3, 2, 4), (6, 4, 8)])}
    assert (found["W3"].ratios, found["W3"].again) == ([1.5, 1.5], [2.0, 2.0])


@given(st.integers(0, 4), st.dictionaries(st.tuples(ROUNDS, st.sampled_from(SIDES)), TIMES))
def test_a_round_that_lacks_a_run_counts_for_nothing(count: int, times: dict[tuple[Round, str], float]) -> None:
    """As a plain search says; nor do rounds count that nobody asked for."""
    expected: dict[str, list[tuple[float, ...]]] = {}
    for workload in ("W1-2ms", "W3"):
        for number in range(count):
            three = [us for side in SIDES for key, us in times.items() if key == ((number, workload), side)]
            if len(three) == 3:
                expected.setdefault(workload, []).append(tuple(three))
    found = findings(rounds_of(count, ["W1-2ms", "W3"]), [run(one, side, us) for (one, side), us in times.items()])
    assert {workload: one.rounds for workload, one in found.items()} == expected


@given(st.lists(st.tuples(TIMES, TIMES, TIMES), min_size=1, max_size=9))
def test_the_verdict_is_that_of_the_rule(rounds: list[tuple[float, float, float]]) -> None:
    """As a twin says that sorts and counts."""
    ratios = sorted(current / base for current, base, _ in rounds)
    middle = (ratios[(len(ratios) - 1) // 2] + ratios[len(ratios) // 2]) / 2
    is_within = any(again / base <= middle for _, base, again in rounds) and any(
        again / base >= middle for _, base, again in rounds
    )
    assert Finding(rounds).is_no_slower == (middle <= 1.02 or is_within)


@pytest.mark.parametrize(
    ("current", "again", "expected"),
    [
        ((1.0, 1.02, 9.0), (1.0, 1.0, 1.0), True),
        ((1.0, 1.021, 9.0), (1.0, 1.0, 1.0), False),
        ((1.05, 1.05, 1.05), (0.9, 1.0, 1.06), True),
        ((1.05, 1.05, 1.05), (0.9, 1.0, 1.04), False),
        ((0.5, 0.5, 0.5), (1.0, 1.0, 1.0), True),
    ],
    ids=["at the bar", "above it", "within the noise", "above the noise", "faster"],
)
def test_slower_is_above_the_bar_and_the_noise(
    current: tuple[float, ...], again: tuple[float, ...], expected: bool
) -> None:
    """The median counts: a round that was far off decides nothing."""
    assert MEDIAN_MAX == 1.02
    assert Finding([(one, 1.0, other) for one, other in zip(current, again, strict=True)]).is_no_slower is expected


def test_the_report_has_a_verdict_for_each_workload(capsys: pytest.CaptureFixture[str]) -> None:
    """Also behind one that fails; a workload without a whole round fails."""
    workloads = pairs.paired(["W1", "W3", "W4"])
    rounds = [(5.0, 5.0, 5.1), (4.9, 5.0, 4.9), *[(5.0, 5.0, 5.0)] * 5]
    found = {"W1-2ms": Finding([(11.0, 10.0, 10.5)] * 7), "W4": Finding(rounds)}
    assert not pairs.report(workloads, "full", found)
    said = capsys.readouterr().out
    assert "FAILS: W1-2ms is no slower: median 1.100 of current / BASE; at most 1.02, or within 1.050 to 1.050" in said
    assert "FAILS: W3: a round in which no run failed" in said
    assert "holds: W4 is no slower: median 1.000 of current / BASE; at most 1.02, or within 0.980 to 1.020" in said
    assert "500,000" in said
    assert pairs.report(workloads[2:], "full", found)


@pytest.mark.parametrize(("size", "rounds"), [("quick", 7), ("full", 6)])
def test_a_verdict_of_too_little_does_not_count(size: str, rounds: int, capsys: pytest.CaptureFixture[str]) -> None:
    """It is shown, and fails nothing."""
    workloads = pairs.paired(["W3"])
    assert pairs.report(workloads, size, {"W3": Finding([(2.0, 1.0, 1.0)] * rounds)})
    said = capsys.readouterr().out
    assert "does not count (it takes 7 rounds at full size): W3 is no slower: median 2.000" in said
    assert "FAILS" not in said


# The runs


class Runs:
    """Runs that take no time: those that ``fail``, and all that were made. Each takes as many µs as there were runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, book: Path, *fail: int) -> None:
        self.fail = fail
        self.book = Book(book)
        self.book.open({})
        self.made: list[str] = []
        self.paths: list[str | None] = []
        monkeypatch.setattr(pairs, "running_broker", lambda *_: contextlib.nullcontext("kafka://here:1"))
        monkeypatch.setattr(rate, "prepare", lambda *_: None)
        monkeypatch.setattr(rate, "run", self.run)

    def run(self, workload: Any, arm: str, size: str, ground: Any, env: dict[str, str] | None) -> dict[str, Any]:
        """Instead of that of the comparison."""
        self.made.append(workload.name)
        self.paths.append(env["PYTHONPATH"] if env else None)
        if len(self.made) in self.fail:
            raise WrongRun("lost a record")
        return {"cpu_us_per_record": float(len(self.made))}

    def start(self, rounds: int, *names: str) -> dict[str, Finding]:
        """Run what the book lacks; what it says then."""
        workloads = pairs.paired(names)
        wanted = rounds_of(rounds, [w.name for w in workloads])
        pairs.run_missing(self.book, workloads, wanted, "quick", Path("base"))
        return findings(wanted, self.book.content["runs"])


def test_what_warms_the_broker_up_is_not_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each workload runs on both sides before the first round begins. BASE runs with its own package."""
    runs = Runs(monkeypatch, tmp_path / "book.json")
    assert runs.start(2, "W3", "W4") == {
        "W3": Finding([(5.0, 6.0, 7.0), (13.0, 12.0, 11.0)]),
        "W4": Finding([(8.0, 9.0, 10.0), (16.0, 15.0, 14.0)]),
    }
    assert runs.made == ["W3", "W3", "W4", "W4", *(["W3"] * 3 + ["W4"] * 3) * 2]
    assert runs.paths[:10] == [None, "base", None, "base", None, "base", "base", None, "base", "base"]


def test_a_second_start_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the rounds that the book lacks; nothing runs when it lacks none."""
    runs = Runs(monkeypatch, tmp_path / "book.json")
    first = runs.start(1, "W3")
    second = runs.start(2, "W3")
    assert second["W3"].rounds == [*first["W3"].rounds, (10.0, 9.0, 8.0)]
    assert runs.start(2, "W3") == second
    assert len(runs.made) == 2 * (2 + 3)


def test_a_run_that_fails_costs_its_round(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is told, and the others go on. The next start runs the whole round anew."""
    runs = Runs(monkeypatch, tmp_path / "book.json", 4)
    assert runs.start(2, "W3") == {"W3": Finding([(7.0, 6.0, 5.0)])}
    assert runs.book.content["failures"] == ["W3, round 1: BASE: lost a record"]
    assert runs.start(2, "W3") == {"W3": Finding([(10.0, 11.0, 12.0), (7.0, 6.0, 5.0)])}


def test_a_base_that_cannot_run_a_workload_ends_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before the first round."""
    runs = Runs(monkeypatch, tmp_path / "book.json", 2)
    with pytest.raises(NoBase, match="nothing to compare: W3, to warm the broker up: BASE: lost a record"):
        runs.start(7, "W3")
    assert len(runs.made) == 2


# BASE


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose last commit can be built, and the one before it can't."""
    root = tmp_path / "checkout"
    for name, text in {"requirements/check.txt": "", **PACKAGE}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    steps = (["init"], ["add", "requirements"], ["commit", "-m", "a"], ["add", "."], ["commit", "-m", "b"])
    for step in steps:
        subprocess.run(["git", *who, *step], cwd=root, check=True, capture_output=True)
    for module in (machine, revision):
        monkeypatch.setattr(module, "ROOT", root)
    monkeypatch.setattr(revision, "FOLDER", root)
    monkeypatch.setattr(revision, "BUILT", root / "built")
    return root


def test_base_is_built_once(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the commit, not from the files that lie there, and only the package stays. Other build tools build anew."""
    (repository / "keylanes" / "__init__.py").write_text("raise ImportError\n")
    commit = revision.commit_of("HEAD")
    package = revision.package_of(commit)
    assert (package / "keylanes" / "__init__.py").read_text() == PACKAGE["keylanes/__init__.py"]
    assert [*(repository / "built").iterdir()] == [package]
    assert not revision.is_compiled(package)
    built: list[str] = []
    monkeypatch.setattr(revision, "build", lambda commit, folder: built.append(commit))
    assert revision.package_of(commit) == package
    assert built == []
    (repository / "requirements" / "check.txt").write_text("mypy==3\n")
    assert revision.package_of(commit) != package
    assert built == [commit]
    assert not package.exists()


def test_a_base_that_cannot_be_built_says_why(repository: Path) -> None:
    """With the end of what the build said, and nothing of it stays."""
    commit = revision.commit_of("HEAD~1")
    with pytest.raises(NoBase, match=rf"{commit[:10]} can't be built, exit code 1: .*pyproject\.toml"):
        revision.package_of(commit)
    assert [*(repository / "built").iterdir()] == []


def test_a_package_that_is_not_the_one_that_is_imported_is_none(tmp_path: Path) -> None:
    """An empty folder hides nothing."""
    with pytest.raises(NoBase, match=r"keylanes is imported from .*, not from "):
        revision.is_compiled(tmp_path)
    (tmp_path / "keylanes").mkdir()
    (tmp_path / "keylanes" / "__init__.py").write_text("")
    with pytest.raises(NoBase, match=r"can't be imported: AttributeError: .*IS_COMPILED"):
        revision.is_compiled(tmp_path)


def test_an_unknown_revision_is_refused(repository: Path) -> None:
    """With what was seen and what is allowed."""
    for name in ("no-such-branch", "HEAD~7", ""):
        with pytest.raises(SystemExit, match=rf"^pairs: there is no revision '{name}' in .*; allowed is what git"):
            pairs.main([name])


def test_a_compiled_package_is_not_compared_with_an_interpreted_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says which is which, and what to do."""
    monkeypatch.setattr(pairs, "package_of", Path)
    said = {True: "the hot modules of v1 do not compile here", False: r"compiles it: python3 dev\.py bench pairs v1"}
    for is_mine_compiled in (True, False):
        monkeypatch.setattr(pairs, "IS_COMPILED", is_mine_compiled)
        for is_base_compiled in (True, False):
            monkeypatch.setattr(pairs, "is_compiled", lambda _, answer=is_base_compiled: answer)
            if is_base_compiled == is_mine_compiled:
                assert pairs.built("v1", "0" * 40) == Path("0" * 40)
            else:
                with pytest.raises(NoBase, match=said[is_mine_compiled]):
                    pairs.built("v1", "0" * 40)


def test_changes_that_are_not_committed_are_told(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are part of what is measured."""
    commit = revision.commit_of("HEAD")
    pairs.tell("main", commit)
    clean = capsys.readouterr().out
    assert f"current: this checkout as it is, commit {commit[:10]}\n" in clean
    assert f"BASE: main, commit {commit[:10]}\n" in clean
    assert " cores (" in clean
    assert "kafka " in clean
    (repository / "keylanes" / "__init__.py").write_text("")
    (repository / "fresh.py").write_text("")
    pairs.tell("main", commit)
    assert f"commit {commit[:10]}, with changes that are not committed in 2 file(s)\n" in capsys.readouterr().out


# The command line


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ([], "the following arguments are required: BASE"),
        (["HEAD", "--pairs", "0"], "argument --pairs: seen '0', allowed are whole numbers from 1 on"),
        (["HEAD", "--pairs", "many"], "argument --pairs: seen 'many'"),
        (["HEAD", "--workload", "W5"], "argument --workload: invalid choice: 'W5'"),
        (["HEAD", "HEAD~1"], "unrecognized arguments: HEAD~1"),
    ],
)
def test_bad_input_is_refused(words: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is built."""
    with pytest.raises(SystemExit) as refused:
        pairs.main(words)
    assert refused.value.code == 2
    assert answer in capsys.readouterr().err


def test_without_options_it_is_seven_rounds_of_four_workloads() -> None:
    """Each of them is one of ``compare.py``, on one partition, with an arm of ours."""
    parsed = pairs.arguments(["main"])
    assert (parsed.base, parsed.pairs, parsed.workload, parsed.quick) == ("main", 7, None, False)
    assert pairs.arguments(["main", "--workload", "W1", "--workload", "W4"]).workload == ["W1", "W4"]
    found = pairs.paired([*pairs.PAIRED])
    sizes = [(w.name, w.records("full")) for w in found]
    assert sizes == [("W1-2ms", 300_000), ("W2-1p", 500_000), ("W3", 500_000), ("W4", 500_000)]
    assert [w.records("quick") for w in found] == [60_000, 100_000, 100_000, 100_000]
    assert all(w.partitions == 1 and w.kind == "rate" and "keylanes" in w.arms for w in found)
