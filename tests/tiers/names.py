"""Names for topics, applications and transactions that no other test of a run uses, whatever process it is in."""

import itertools
import os
from typing import Final

RUN: Final = "TEST_RUN"
"""In the environment: what tells two runs of pytest apart that use the same brokers."""
PROCESS: Final = os.environ.get(RUN, "t") + os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
"""The number of this test process, behind a letter."""
_numbers = itertools.count(1)


def fresh(kind: str) -> str:
    """A name, with the number of this test process in front."""
    return f"{PROCESS}-{kind}-{next(_numbers)}"
