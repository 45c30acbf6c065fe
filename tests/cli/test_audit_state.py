"""``keylanes audit --state`` with the function that docs/state.md shows, over an application with one store more."""

import json
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from keylanes.state.topics import NewRecord, TopicStore

from .test_commands import keylanes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "state.md").read_text(encoding="utf-8")
WORDS = 10
APPLICATION = """
    from keylanes import App, State

    app = App("counts", broker="embedded:topics")

    @app.handler("words")
    async def count(value: bytes, counted: State[int], seen: State[bytes]) -> None:
        counted.put((counted.get() or 0) + 1)
        seen.put(value)
"""


def functions() -> str:
    """The module of the page."""
    found = re.search(r"^```python\n(.*?)^```$", PAGE.partition("## Proving state")[2], re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    """A folder in which the application has counted 100 words."""
    (tmp_path / "expectation.py").write_text(functions(), encoding="utf-8")
    (tmp_path / "words.py").write_text(textwrap.dedent(APPLICATION), encoding="utf-8")
    store = TopicStore.open(tmp_path / "topics")
    store.create("words", 2, {})
    store.append([NewRecord("words", n % 2, b"word %d" % (n % WORDS), b"", (), 1) for n in range(100)])
    store.close()
    assert keylanes(tmp_path, "run", "words:app", "--until", "level").returncode == 0
    return tmp_path


def test_the_function_of_the_page_proves_its_store(counted: Path) -> None:
    """It lies in the working directory; the second store is left out by its name."""
    pytest.importorskip("pyspark")
    named = ("--app", "counts", "--broker", "embedded:topics", "--level", "--json")
    state = ("--state", "expectation:expected_state", "--without-store", "seen")
    ended = keylanes(counted, "audit", *named, *state)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert {check["name"]: check["checked"] for check in report["checks"]}["state"] == WORDS
    assert report["not_looked_at"] == ["state of store 'seen': left out by --without-store"]


def test_a_store_that_the_function_says_nothing_of_is_one_violation(counted: Path, spark: "SparkSession") -> None:
    """It says how to leave it out."""
    from keylanes.spark.audit import AuditSpec, audit

    scope: dict[str, Any] = {}
    exec(functions(), scope)  # noqa: S102  # what people copy
    report = audit(
        spark, AuditSpec(app="counts", broker=f"embedded:{counted / 'topics'}", state=scope["expected_state"])
    )
    assert report.violated_checks() == ["state"]
    problem = "the function gives no row of this store, which --without-store seen leaves out"
    assert report.check("state").violations == 1
    assert report.check("state").examples == ({"store": "seen", "keys": WORDS, "problem": problem},)
