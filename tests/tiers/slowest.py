"""``python -m tests.tiers.slowest``: the files that took longest in the last ``make test``, into tests/README.md."""

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from .run import RESULTS

FILES_SHOWN: Final = 20
PAGE: Final = Path(__file__).resolve().parents[1] / "README.md"
HEAD: Final = "| file | s |\n|---|---|\n"


def seconds_of_files(results: Iterable[Path]) -> dict[str, float]:
    """The seconds of each file of tests, in these files of results."""
    found = defaultdict[str, float](float)
    for path in results:
        for case in ET.parse(path).iter("testcase"):
            found[case.get("classname", "").removeprefix("tests.")] += float(case.get("time", "0"))
    return found


def written(page: str, seconds: Mapping[str, float]) -> str:
    """The page with the list in the place of the one that stands there."""
    before, head, after = page.partition(HEAD)
    if not head:
        raise ValueError(f"{PAGE.name} has no table that begins with {HEAD!r}")
    rest = after[after.index("\n\n") :] if "\n\n" in after else "\n"
    longest = sorted(seconds.items(), key=lambda one: -one[1])[:FILES_SHOWN]
    rows = [f"| {name.replace('.', '/')}.py | {spent:.0f} |" for name, spent in longest]
    return before + head + "\n".join(rows) + rest


def main() -> int:
    """Write the list; 1 when there was no run."""
    results = sorted(RESULTS.glob("test-*.xml"))
    if not results:
        sys.stderr.write("no results: run `make test` first\n")
        return 1
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), seconds_of_files(results)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
