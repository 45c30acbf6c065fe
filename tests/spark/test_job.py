"""The audit as a program: exit codes, JSON, and what it says to wrong usage. And the parts that need no Spark."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keylanes.spark.access import Access, parse_security
from keylanes.spark.brokers import AuditError
from keylanes.spark.job import main
from keylanes.spark.report import Check, Report, SourceFigures

from ..stage.log_events import store_declared
from ..tiers.marks import tier
from .honest import APP, SOURCE, Planner

pytestmark = tier("check")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")  # skipped where there is no Java
def test_the_program_refutes_with_1_and_names_the_statement(tmp_path: Path) -> None:
    """As a process of its own, with the settings of production; what the group did is drawn and stands in the JSON."""
    run = Planner(restarts=0).run()
    run.outputs.append(run.outputs[0])
    url = run.store(tmp_path / "topics")
    command = [sys.executable, "-m", "keylanes.spark.job", "--broker", url, "--app", APP, "--json"]
    pictures = [tmp_path / "group.png", tmp_path / "plane.png"]
    command += ["--group-plot", str(pictures[0]), "--plane-plot", str(pictures[1])]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode == 1, ended.stderr
    report = json.loads(ended.stdout)
    failed = {check["name"] for check in report["checks"] if not check["holds"]}
    assert {"output-once", "commit-outputs", "commit-digest"} <= failed
    assert [member["incarnation"] for member in report["group"]["members"]] == [1]
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)


def test_what_can_not_be_audited_ends_with_2_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An application that the broker does not know, in words and as JSON."""
    pytest.importorskip("pyspark")
    url = Planner(restarts=0).run().store(tmp_path / "topics")
    assert main(["--broker", url, "--app", "other", "--json"]) == 2
    shown = capsys.readouterr()
    assert "applications seen: flights" in shown.err
    assert "applications seen: flights" in json.loads(shown.out)["error"]
    assert main(["--broker", url, "--app", APP, "--expected", "nowhere:nothing"]) == 2
    assert "expected: module:function" in capsys.readouterr().err
    assert main(["--broker", url, "--app", APP, "--state", "nowhere:nothing"]) == 2
    assert "state: module:function" in capsys.readouterr().err
    assert main(["--broker", url, "--app", APP, "--state", f"{__name__}:right"]) == 2
    assert "state: the application 'flights' has declared no store" in capsys.readouterr().err
    assert main(["--broker", url, "--app", APP, "--copies", str(tmp_path)]) == 2
    assert "copies: the application 'flights' has declared no store" in capsys.readouterr().err


def right(spark: object, done: object) -> None:
    """A function as ``--state`` and ``--expected`` call it."""


def of_one(done: object) -> None:
    """One that lacks the session."""


@pytest.mark.parametrize("option", ["state", "expected"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:nothing", "'nowhere:nothing': ModuleNotFoundError: No module named 'nowhere'"),
        ("broken:right", "'broken:right': ZeroDivisionError: division by zero"),
        (f"{__name__}:nothing", "AttributeError: module"),
        (f"{__name__}:APP", "is no function but str"),
        (
            f"{__name__}:of_one",
            "which takes (done: object) -> None: too many positional arguments. It is called with two arg",
        ),
    ],
)
def test_a_function_that_can_not_be_called_is_refused_before_spark_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
    name: str,
    said: str,
) -> None:
    """With what it is called with. A module is looked for in the working directory, too."""
    pytest.importorskip("pyspark")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["--broker", f"embedded:{tmp_path}", "--app", APP, f"--{option}", name]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"audit: {option}: module:function")
    assert said in shown


def test_a_store_is_left_out_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that was not declared is refused with those that were, and so is one where no state is compared."""
    pytest.importorskip("pyspark")
    run = Planner(restarts=0).run()
    run.control += [
        store_declared(1, number, name, SOURCE, "value", "", "int", "json")
        for number, name in enumerate(("total", "seen"))
    ]
    url = run.store(tmp_path / "topics")
    given = ["--broker", url, "--app", APP, "--without-store", "sen"]
    assert main([*given, "--state", f"{__name__}:right"]) == 2
    assert "--without-store: 'flights' has no store 'sen'; it has seen, total" in capsys.readouterr().err
    assert main(given) == 2
    assert "give --state MODULE:FUNCTION" in capsys.readouterr().err


def test_the_page_lists_all_statements() -> None:
    """In the order of the report."""
    pytest.importorskip("pyspark")
    from keylanes.spark.audit import CHECKS

    page = Path(__file__).resolve().parents[2] / "docs" / "audit.md"
    table = page.read_text(encoding="utf-8").partition("## What is proven")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)) == CHECKS


@pytest.mark.parametrize("url", ["", "flights", "http://x", "kafka:x", "kafka://", "embedded:"])
def test_a_wrong_broker_is_named_with_what_is_allowed(url: str) -> None:
    """The message shows what was seen and the two forms."""
    with pytest.raises(AuditError, match=r"kafka://host:port or embedded:folder"):
        Access(url).open()


@pytest.mark.parametrize("url", ["kafka://u:hunter2@h:1", "u:hunter2@h:1", "hunter2@h"])
def test_a_password_in_an_address_is_not_shown(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused, with what stands behind the @; also as JSON."""
    with pytest.raises(AuditError, match=r"holds no user and no password; seen \*\*\*@h") as refused:
        Access(url).open()
    assert main(["--broker", url, "--app", "flights", "--json"]) == 2
    assert "hunter2" not in "".join([str(refused.value), *capsys.readouterr()])


def test_a_folder_that_is_no_brokers_is_refused(tmp_path: Path) -> None:
    """A missing folder and one of something else are named."""
    with pytest.raises(AuditError, match="no such folder"):
        Access(f"embedded:{tmp_path / 'none'}").open()
    with pytest.raises(AuditError, match="can't be read"):
        Access(f"embedded:{tmp_path}").open()


def test_client_settings_come_as_json_or_as_lines() -> None:
    """Both forms; a damaged one is refused without its values."""
    expected = {"security.protocol": "SASL_SSL", "sasl.password": "a=b"}
    assert parse_security(json.dumps(expected)) == expected
    assert parse_security("# comment\nsecurity.protocol = SASL_SSL\nsasl.password=a=b\n") == expected
    with pytest.raises(AuditError) as refused:
        parse_security("sasl.password hunter2")
    assert "hunter2" not in str(refused.value)


def test_the_table_shows_violations_as_exact_rectangles() -> None:
    """Points in hex, offsets as numbers, and the verdict in the last line."""
    gap = {"topic": "t", "partition": 0, "kind": "gap", "offset_from": 10, "offset_to": 20, "first": 0, "end": 1 << 31}
    report = Report(
        app="flights",
        broker="embedded:x",
        checks=(
            Check("control", "no epoch is given twice", 3, 0),
            Check("tile-cover", "the tiles cover each band", 5, 1, (gap,)),
        ),
        sources=(SourceFigures("t", 0, 0, 10, 30, 0, 30, 30, 20, 10),),
        figures={"records_done": 20},
        destinations={},
        notes=("something",),
    )
    text = report.to_text()
    assert "kind=gap offset_from=10 offset_to=20 first=00000000 end=80000000" in text
    assert text.endswith("NOT exactly once: 1 of 2 statements fail")
    assert report.exit_code == 1
    assert report.violated_checks() == ["tile-cover"]
    assert json.loads(report.to_json())["checks"][1]["examples"] == [gap]
    with pytest.raises(KeyError):
        report.check("other")
