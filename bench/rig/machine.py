"""The machine, the versions and the commit that a figure belongs to."""

import contextlib
import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from keylanes import __version__
from keylanes.devkafka.jars import KAFKA_VERSION
from rig.places import ROOT

LIBRARIES = ("aiokafka", "msgspec", "rocksdict", "uvloop", "xxhash")


class Processors:
    """What becomes of the processors' time from now on, as Linux counts it."""

    def __init__(self) -> None:
        self._began = self._ticks()

    @staticmethod
    def _ticks() -> list[int]:
        try:
            return [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        except OSError:
            return []

    def stolen_share(self) -> float | None:
        """The part in which this machine had something to do and its host ran others; None where nobody tells."""
        spent = [now - before for before, now in zip(self._began, self._ticks(), strict=True)]
        return spent[7] / max(sum(spent), 1) if spent else None


def surroundings() -> dict[str, Any]:
    """The machine, the versions and the commit that a result belongs to."""
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "system": platform.platform(),
            "load_average_before": os.getloadavg(),
        },
        "versions": {
            "keylanes": __version__,
            "python": platform.python_version(),
            "kafka": KAFKA_VERSION,
            **{library: version(library) for library in LIBRARIES},
        },
        "commit": git("rev-parse", "HEAD"),
        "has_changes": bool(git("status", "--porcelain", "--untracked-files=no")),
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def git(*command: str) -> str:
    """What git says of this checkout, stripped; empty where there is none."""
    with contextlib.suppress(OSError):
        answer = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        return answer.stdout.strip()
    return ""
