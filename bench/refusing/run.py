"""One run of one arm: outputs that are taken, one that is refused, more records behind it, and two restarts.

1. The application handles ``BEFORE``. All outputs must become visible, or the run is void.
2. The topic's limit is lowered, unless the application was to know it from the start.
3. ``AMID`` is sent, with the record whose output is too large, and what came of it is awaited; then ``BEHIND``.
4. The process is stopped, and started again under the same limit.
5. It is stopped, the limit is raised, and it is started once more.
"""

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refusing.stage import KEYS, LIMIT_BYTES, PARTITIONS, REFUSED_KEY, ROOM_BYTES, Stage
from rig.drivers import Driver
from rig.ground import Ground
from rig.outputs import COMMIT_MS
from rig.witness import WrongRun

BEFORE, AMID, BEHIND = range(10), range(10, 30), range(30, 40)
"""Numbers of each key's records."""
OTHERS = (KEYS - 1) * len(BEHIND) + (KEYS - 1) * len(AMID)
"""Records of other keys that are sent with the large one and behind it."""
ALL = KEYS * BEHIND.stop
BEFORE_SECONDS_MAX = 90.0
QUIET_S = {"running": 8.0, "starting": 25.0}
"""Nothing more comes when nothing came for so long: while an application runs, and since one was started."""
LOOK_S = 0.5
STOP_SECONDS_MAX = 15.0
ERROR = re.compile(r"\b(?:[A-Z]\w*(?:Error|Exception|Failed|Refused)|OutOfOrderSequenceNumber|[A-Z_]+_TOO_LARGE)\b")
ERRORS_MAX = 4
RECORDS = 1_000_000
"""More than there are, and more than any field that a driver takes for an index."""


class Application:
    """The arm's process: started, watched and stopped."""

    def __init__(self, command: Sequence[str], stage: Stage, ground: Ground, folder: Path) -> None:
        self.command, self.stage, self.ground, self.folder = command, stage, ground, folder
        self.starts = self.heard = 0
        """Processes so far, and how many characters of what the last one said are not of interest any more."""
        self.driver: Driver | None = None

    def start(self) -> None:
        """A process of it."""
        own = self.folder / "own"
        own.mkdir(parents=True, exist_ok=True)
        order = {
            "arm": self.stage.arm,
            "workload": "refused",
            "bootstrap": self.stage.bootstrap,
            "topic": self.stage.source,
            "partitions": PARTITIONS,
            "parallel": PARTITIONS,
            "output": self.stage.output,
            "group": self.stage.group,
            "folder": str(own),
            "records": RECORDS,
            "keys": KEYS,
            "commit_ms": 0 if self.stage.arm.endswith("-alo") else COMMIT_MS,
        }
        self.starts, self.heard = self.starts + 1, 0
        self.driver = Driver(self.command, order, self.folder / f"start-{self.starts}")

    def ended(self) -> int | None:
        """The code of a process that has ended by itself."""
        assert self.driver is not None, "it was started"
        return self.driver.process.poll()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that is not enough; its consumer group forgets it at once."""
        assert self.driver is not None, "it was started"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.driver.process.send_signal(signal.SIGTERM)
            self.driver.process.wait(STOP_SECONDS_MAX)
        self.driver.kill()
        if self.stage.has_group:
            self.ground.forget_members(self.stage.group)

    def settle(self, wanted: int, quiet_s: float) -> dict[str, Any]:
        """Wait until so many records are visible, or the process has ended, or nothing has come for a while; what it
        said of its end, and how it stands.
        """
        seen, came_s = -1, time.monotonic()
        while time.monotonic() - came_s < quiet_s:
            now = len(self.stage.visible().times)
            if now != seen:
                seen, came_s = now, time.monotonic()
            if now >= wanted or self.ended() is not None:
                break
            time.sleep(LOOK_S)
        said = self._said()[self.heard :]
        return {"code": self.ended(), "errors": errors_of(said), "said": said[-4_000:]}

    def forget(self) -> None:
        """What was said up to now is of a start, and not of what is to come."""
        self.heard = len(self._said())

    def _said(self) -> str:
        assert self.driver is not None, "it was started"
        return self.driver.said.read_text(errors="replace")


def errors_of(said: str) -> list[str]:
    """The first errors that a process named, each once, in the order in which it did."""
    return list(dict.fromkeys(ERROR.findall(said)))[:ERRORS_MAX]


def run_arm(arm: str, command: Sequence[str], ground: Ground, group: str, *, is_known: bool) -> dict[str, Any]:
    """The facts of one run. ``is_known``: the limit stands from the start. Raises WrongRun."""
    with ground.scratch(group) as folder:
        stage = Stage(ground, arm, group, limit_bytes=LIMIT_BYTES if is_known else ROOM_BYTES)
        application = Application(command, stage, ground, folder)
        try:
            return watch(application, stage)
        finally:
            if application.driver is not None:
                application.driver.kill()


def watch(application: Application, stage: Stage) -> dict[str, Any]:
    """All that is done to an application, and what came of it."""
    stage.send(BEFORE)
    application.start()
    application.settle(KEYS * len(BEFORE), BEFORE_SECONDS_MAX)
    before = stage.visible()
    if len(before.times) != KEYS * len(BEFORE):
        assert application.driver is not None, "it was started"
        raise WrongRun(f"{len(before.times)} outputs before anything was refused: {application.driver.last_words()}")
    application.forget()
    stage.limit(LIMIT_BYTES)
    stage.send(AMID)
    first = application.settle(KEYS * AMID.stop, QUIET_S["running"])
    stage.send(BEHIND)
    if first["code"] is None:
        first = application.settle(ALL, QUIET_S["running"])
    meanwhile = stage.visible()
    facts: dict[str, Any] = {
        "first": first,
        "others": meanwhile.of_others() - before.of_others(),
        "others_sent": OTHERS,
        "offset": stage.committed(),
        "refused_offset": stage.refused_offset,
        "ahead": ahead(stage),
    }
    application.stop()

    application.start()
    facts["again"] = application.settle(ALL, QUIET_S["starting"])
    facts["again"]["more"] = len(stage.visible().times) - len(meanwhile.times)
    application.stop()

    stage.limit(ROOM_BYTES)
    application.start()
    facts["raised"] = application.settle(ALL, QUIET_S["starting"])
    application.stop()
    return {**facts, **at_last(stage)}


def ahead(stage: Stage) -> int | None:
    """How many changes the committed state holds whose outputs are not visible; None where none is kept."""
    visible, counts = stage.visible(), stage.counts()
    of = {key: sum(key == other for other, _ in visible.times) for key in counts}
    return sum(max(count - of[key], 0) for key, count in counts.items()) if counts else None


def at_last(stage: Stage) -> dict[str, Any]:
    """What there is when the limit is away."""
    visible = stage.visible()
    wanted = {(key, number) for key in range(KEYS) for number in range(BEHIND.stop)}
    missing = wanted - visible.times.keys()
    return {
        "refused_is_visible": visible.refused,
        "dead": stage.dead_letters(),
        "missing": len(missing),
        "missing_others": sum(key != REFUSED_KEY for key, _ in missing),
        "doubled": visible.doubled,
        "ahead_at_last": ahead(stage),
    }
