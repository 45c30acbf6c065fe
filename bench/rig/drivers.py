"""Driver processes: one run each, from its order to its exit."""

import contextlib
import json
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rig.errors import WrongRun
from rig.places import BENCH, PEERS

READY_SECONDS_MAX = 90.0
CLOSE_SECONDS_MAX = 90.0
SAID_LINES = 12


class Driver:
    """A running driver, in the folder ``at`` and with the variables ``env``, else with those of this process. As a
    context: whatever happens, its process is gone afterwards.
    """

    def __init__(
        self,
        call: Sequence[str],
        order: Mapping[str, Any],
        folder: Path,
        at: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "spec.json"
        path.write_text(json.dumps(order, indent=1))
        self.said = folder / "stderr"
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with self.said.open("a") as errors:
            self.process = subprocess.Popen(
                [*tied(), *call, str(path)],
                cwd=at,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):  # a library that prints
                found = json.loads(line)
                if isinstance(found, dict) and "event" in found:
                    self._events.put(found)
        self._events.put(None)

    def event(self, name: str, seconds_max: float, *others: str) -> dict[str, Any]:
        """The next event of that name, or one of the others. Raises WrongRun when it ends or the time is over."""
        deadline = time.monotonic() + seconds_max
        while True:
            try:
                found = self._events.get(timeout=max(deadline - time.monotonic(), 0.001))
            except queue.Empty:
                raise WrongRun(f"no {name!r} within {seconds_max:g} s: {self.last_words()}") from None
            if found is None:
                raise WrongRun(f"ended with code {self.process.wait()} before {name!r}: {self.last_words()}")
            if found["event"] in (name, *others):
                return found

    def longest_transaction_s(self) -> float:
        """What a driver that has ended told of its commits."""
        longest = 0.0
        while (found := self._events.get(timeout=CLOSE_SECONDS_MAX)) is not None:
            longest = found.get("transaction_s_max", longest)
        return longest

    def end(self) -> None:
        """Wait until it has closed in order. Raises WrongRun."""
        try:
            code = self.process.wait(CLOSE_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise WrongRun(f"did not close within {CLOSE_SECONDS_MAX:g} s: {self.last_words()}") from None
        if code != 0:
            raise WrongRun(f"ended with code {code}: {self.last_words()}")

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self.process.wait()

    def last_words(self) -> str:
        """The end of what it said."""
        lines = self.said.read_text(errors="replace").splitlines() if self.said.exists() else []
        return " / ".join(line.strip() for line in lines[-SAID_LINES:] if line.strip())[-800:] or "(it said nothing)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def tied() -> list[str]:
    """What lets a command die with this process, where the system has it."""
    found = shutil.which("setpriv")
    return [found, "--pdeathsig", "KILL", "--"] if found else []


def run_module(module: str, order: Mapping[str, Any], folder: Path) -> Driver:
    """Start a module of the harness itself."""
    return Driver([sys.executable, "-m", module], order, folder, at=BENCH)


def run_peer(program: str, order: Mapping[str, Any], folder: Path) -> Driver:
    """Start one of our own programs among the peers, which have their modules beside them."""
    return Driver([sys.executable, str(PEERS / program)], order, folder)


def checked(result: dict[str, Any]) -> dict[str, Any]:
    """A result whose records were all there and in order. Raises WrongRun."""
    wrong = {k: result[k] for k in ("out_of_order", "incomplete_keys", "wrong_states") if result.get(k)}
    if wrong:
        raise WrongRun(f"records were lost, doubled or reordered: {wrong}")
    if "incomplete_keys" not in result:
        raise WrongRun("the driver did not check that all records came")
    return result
