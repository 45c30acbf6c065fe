"""``make test``: two runs of pytest beside each other, by dev.py.

One has the compiled package, as users have it, in two test processes. The other one has the sources: tests that change
or read the source of what is compiled, and all that need Spark, whose session is shared. Both use the same brokers
(brokers.py). The last line is the closing line of the first run; what the second one said stands in front of it.
"""

import sys
import tempfile
from collections.abc import Sequence
from subprocess import PIPE
from typing import Final

from .brokers import KEEPER, Keeper
from .marks import TEST
from .names import RUN
from .processes import ROOT, environment, machine, started, stoppable, too_small

ON_SOURCES: Final = "spark or interpreted"
RESULTS: Final = ROOT / ".keylanes"
"""The folder of ``test-compiled.xml`` and ``test-sources.xml``, of which slowest.py makes a list."""
PROCESSES: Final = 3
"""Of the compiled half: they wait for brokers more than they compute."""
NO_TESTS: Final = 5
"""The exit code of pytest when it has chosen none."""


def main(rest: Sequence[str]) -> int:
    """Run both; the first exit code that is not 0. ``rest``: more options for pytest."""
    RESULTS.mkdir(exist_ok=True)
    if small := too_small(*machine()):
        sys.stdout.write(f"{small}: one test process after the other, which takes longer\n")
    spread = ["-n", "1" if small else str(PROCESSES), "--dist", "loadfile"]
    one, two = pytest("compiled", f"not ({ON_SOURCES})", *spread, *rest), pytest("sources", ON_SOURCES, *rest)
    with stoppable(), Keeper() as keeper, tempfile.TemporaryFile("w+") as said:
        compiled = environment(on_sources=False) | {KEEPER: keeper.address}
        sources = environment(on_sources=True) | {KEEPER: keeper.address, RUN: "s"}
        with started(two, sources, stdout=said, stderr=said) as beside:
            if small:
                beside.wait()
            with started(one, compiled, stdout=PIPE) as first:
                closing = ""
                for line in first.stdout or ():
                    sys.stdout.write(closing)
                    sys.stdout.flush()
                    closing = line
                codes = [first.wait(), beside.wait()]
        said.seek(0)
        sys.stdout.write(f"\n== on the sources\n{said.read()}\n== on the compiled package\n{closing}")
    ran = [code for code in codes if code != NO_TESTS]
    return next((code for code in ran if code), 0 if ran else NO_TESTS)


def pytest(name: str, marks: str, *options: str) -> list[str]:
    """The command of one of the two runs."""
    results = RESULTS / f"test-{name}.xml"
    written = ["-o", "junit_family=xunit1", f"--junitxml={results}"]  # the newer format can't hold figures of a test
    return [sys.executable, "-P", "-m", "pytest", f"--tier={TEST}", "-m", marks, *written, *options]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
