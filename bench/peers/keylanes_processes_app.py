"""keylanes_app.py in several processes of one parent: ``app.run(processes=…)``, for W3 and W4.

The witness is in memory that all processes share: the turn of each key goes along when its range goes from one process
to another, and the run ends when all of them together have handled all records. That is looked for each 5 ms, so the
clock stops up to 5 ms late. Memory is the sum of all processes, the parent included; what they share counts for each.
"""

import json
import mmap
import os
import signal
import sys
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _driver import Spec, Tally, _place, read_spec, rss_bytes, rss_peak_bytes, say
from keylanes.runtime.processes.child import SIBLING
from keylanes_app import Wrong, app_of, figures_of, handler, tell_ready

LOOK_S = 0.005
SLOT = 2
"""Of a process: how many records it has handled, and when the first one began in ns of the system's monotonic clock."""
SLOT_BYTES = 8 * SLOT


class SharedTally(Tally):
    """The witness of process ``number``, from 1 on, of ``of``. The file at ``path`` holds a slot for each, behind these
    the turn of each key.
    """

    def __init__(self, spec: Spec, path: Path, number: int, of: int) -> None:
        with path.open("r+b") as file:
            memory = memoryview(mmap.mmap(file.fileno(), 0))
        self._slots = memory[: SLOT_BYTES * of].cast("Q")
        self._turns = memory[SLOT_BYTES * of :].cast("I")
        self._at = SLOT * (number - 1)
        super().__init__(spec, lambda: None)

    def _alone(self) -> tuple[Callable[[bytes], Any], Callable[[Any], None]]:
        self.next = turn = self._turns
        slots, at, place = self._slots, self._at, _place
        running = handled = 0

        def begin(value: bytes) -> int:
            nonlocal running
            key, number = place(value)
            if turn[key] != number:
                self.out_of_order += 1
            running += 1
            if running > self.peak:
                self.peak = running
                if running == 1:
                    self._start()
                    slots[at + 1] = self._began[0][0]
            return int(key)

        def end(key: int) -> None:
            nonlocal running, handled
            turn[key] += 1
            running -= 1
            handled += 1
            slots[at] = handled

        return begin, end

    def handled(self) -> int:
        """By all processes together."""
        return sum(self._slots[::SLOT])

    def own(self) -> int:
        """By this one."""
        return self._slots[self._at]

    def began_ns(self) -> int:
        """When the first record of all began."""
        return min(began for began in self._slots[1::SLOT] if began)

    def cpu_s(self) -> float:
        """What this process used since its first record."""
        return time.process_time() - self._began[0][1] if self._began else 0.0

    def incomplete_keys(self) -> int:
        """How many keys do not have as many records as they should."""
        expected = array("I", Path(self.spec.expected).read_bytes())
        return sum(seen != wanted for seen, wanted in zip(self._turns, expected, strict=True))


def make_shared(path: Path, keys: int, of: int) -> None:
    """The file, with nothing in it."""
    path.write_bytes(bytes(SLOT_BYTES * of + 4 * keys))


def merged(parts: list[dict[str, Any]], tally: SharedTally, ended_ns: int, parent_bytes: int) -> dict[str, Any]:
    """The result of all, from what each of them says."""
    seconds = (ended_ns - tally.began_ns()) / 1e9
    sums = ("out_of_order", "wrong_states", "concurrency_peak", "commits", "tiles", "event_bytes", "splits")
    return {
        "event": "result",
        "records": tally.spec.returning,
        "seconds": seconds,
        "began_at_s": time.time() - (time.monotonic_ns() - tally.began_ns()) / 1e9,
        "cpu_us_per_record": sum(part["cpu_s"] for part in parts) / tally.spec.returning * 1e6,
        "rss_peak_bytes": sum(part["rss_peak_bytes"] for part in parts) + parent_bytes,
        "rss_base_bytes": sum(part["rss_base_bytes"] for part in parts),
        "incomplete_keys": tally.incomplete_keys(),
        "shares": [part["records"] / tally.spec.returning for part in parts],
        "versions": parts[0]["versions"],
        **{name: sum(part[name] for part in parts) for name in sums},
    }


def tell_when_done(folder: Path, tally: SharedTally, told: Callable[[], dict[str, Any]], number: int, of: int) -> None:
    """In a thread of each process: write down what it has to say when all is handled; the first one says the result,
    and has the parent end all.
    """
    while tally.handled() < tally.spec.returning:
        time.sleep(LOOK_S)
    ended_ns = time.monotonic_ns()
    partial = folder / f"part-{number}.partial"
    partial.write_text(json.dumps(told()))
    partial.rename(folder / f"part-{number}")
    if number == 1:
        paths = [folder / f"part-{one}" for one in range(1, of + 1)]
        while not all(path.exists() for path in paths):
            time.sleep(LOOK_S)
        parts = [json.loads(path.read_text()) for path in paths]
        say(merged(parts, tally, ended_ns, rss_peak_bytes(os.getppid())))
        os.kill(os.getppid(), signal.SIGTERM)


def main(spec: Spec, processes: int) -> None:
    """Run until all expected records are handled, then stop in order."""
    base_bytes, folder = rss_bytes(), Path(spec.folder).parent
    number = 1 if SIBLING is None else SIBLING.number
    if SIBLING is None:
        make_shared(folder / "witness", spec.keys, processes)
    tally, wrong, app = SharedTally(spec, folder / "witness", number, processes), Wrong(), app_of(spec)

    def told() -> dict[str, Any]:
        return {
            "records": tally.own(),
            "cpu_s": tally.cpu_s(),
            "rss_peak_bytes": rss_peak_bytes(),
            "rss_base_bytes": base_bytes,
            "out_of_order": tally.out_of_order,
            "wrong_states": wrong.count,
            "concurrency_peak": tally.peak,
            **figures_of(app),
        }

    app.handler(spec.topic, to=spec.output or None, parallelising_factor=spec.in_flight)(handler(spec, tally, wrong))
    if SIBLING is not None:
        given = (folder, tally, told, number, processes)
        threading.Thread(target=tell_when_done, args=given, daemon=True).start()
        tell_ready(app)
    app.run(processes=processes)


if __name__ == "__main__":
    main(read_spec(), json.loads(Path(sys.argv[1]).read_text())["parallel"])
