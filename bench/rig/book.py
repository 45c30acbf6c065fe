"""The results on disk: every arm run as it ends, so that a bench that was stopped goes on where it was.

A book belongs to a commit, what was changed since, and the sizes; with others a fresh one is begun, and the one
before it is kept beside it.
"""

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keylanes import IS_COMPILED
from rig.machine import git, surroundings
from rig.places import FOLDER

CODE = ("*.py", "*.java", "pom.xml", "bench/peers/requirements")


def identity(settings: dict[str, Any]) -> str:
    """What results must share to be in one book."""
    said = [git("rev-parse", "HEAD"), git("diff", "HEAD", "--", *CODE), git("status", "--porcelain", "--", *CODE)]
    said += [str(IS_COMPILED), json.dumps(settings, sort_keys=True)]
    return hashlib.sha256("\0".join(said).encode()).hexdigest()[:16]


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One long bench at a time in a checkout: two would spoil each other's figures, and the book."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "bench.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit("another bench runs in this checkout") from None
        yield


class Book:
    """``runs``: one entry for each (workload, arm, round), with ``figures`` or why it ``failed``.

    ``skipped``: arms that cannot run here, with the reason. ``failures``: every run that failed, also when it ended
    well at another try, and warm-ups; each begins with its workload and a comma.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {}

    def open(self, settings: dict[str, Any], *, again: bool = False) -> bool:
        """Go on with what is there if it is of this commit and these settings; whether it is."""
        found, mine = self.read(), identity(settings)
        if found and found.get("identity") == mine and not again:
            self.content = found
            return True
        if found:
            self.path.replace(self.path.with_name(f"{self.path.stem}-{found.get('identity', 'before')}.json"))
        self.content = {
            "identity": mine, **surroundings(), "settings": settings, "skipped": {}, "peers": {}, "runs": [],
            "failures": [],
        }  # fmt: skip
        self.write()
        return False

    def read(self) -> dict[str, Any]:
        """What the file holds; empty when there is none."""
        try:
            found = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def has(self, workload: str, arm: str, number: int) -> bool:
        """Whether that run ended well."""
        return self.figures(workload, arm, number) is not None

    def figures(self, workload: str, arm: str, number: int) -> dict[str, Any] | None:
        """Those of a run that ended well; None when there is none."""
        found = (run["figures"] for run in self.content["runs"] if _is(run, workload, arm, number) and "figures" in run)
        return next(found, None)

    def add(self, workload: str, arm: str, number: int, **what: Any) -> None:
        """Write a run down, in the place of an earlier try."""
        self.content["runs"] = [run for run in self.content["runs"] if not _is(run, workload, arm, number)]
        self.content["runs"].append({"workload": workload, "arm": arm, "round": number, **what})
        versions = what.get("figures", {}).pop("versions", None)
        if versions:
            self.content["peers"][arm] = versions
        if "failed" in what:
            self.fail(f"{workload}, round {number + 1}, {arm}: {what['failed']}")
        else:
            self.write()

    def fail(self, what: str) -> None:
        """Remember a failure for good: a further try that ends well does not make it undone."""
        self.content["failures"].append(what)
        self.write()

    def skip(self, skipped: dict[str, str]) -> None:
        """Remember which arms cannot run."""
        self.content["skipped"] = {**self.content["skipped"], **skipped}
        for arm in [arm for arm, reason in self.content["skipped"].items() if not reason]:
            del self.content["skipped"][arm]
        self.write()

    def write(self) -> None:
        """In one step: a bench that is killed leaves a whole file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.content, indent=1) + "\n")
        partial.replace(self.path)


def _is(run: dict[str, Any], workload: str, arm: str, number: int) -> bool:
    return (run["workload"], run["arm"], run["round"]) == (workload, arm, number)
