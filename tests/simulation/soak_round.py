"""A process that runs one round of chaos on a real Kafka, and tells on its standard output how it goes: JSON lines.

``soak_round ROUND FOLDER PART``: the round as JSON, of one broker or of a cluster. Told to end, it ends the broker and
all processes that it started.
"""

import os
import signal
import sys
import traceback
from pathlib import Path

import msgspec

from ..on_kafka.chaos import Round, run_round
from ..on_kafka.cluster_chaos import ClusterRound, run_cluster_round
from ..on_kafka.group_chaos import GroupRound, run_group_round
from .shrink import kind_of
from .soak_book import CLUSTER, GROUP
from .soak_broker import Told
from .soak_worker import Failure, take_story


def main() -> int:
    """Run it; exit code 1 when it failed."""
    lines = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def tell(told: Told) -> None:
        lines.write(msgspec.json.encode(told) + b"\n")
        lines.flush()

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as an interrupt: what was started is ended
    raw, folder, part = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    found: dict[str, int] = {}

    def say(line: str) -> None:
        tell(Told(line))

    try:
        if part == CLUSTER:
            of_cluster = run_cluster_round(msgspec.json.decode(raw, type=ClusterRound), folder, say, found.update)
            tell(Told(figures=msgspec.structs.asdict(of_cluster)))
        elif part == GROUP:
            of_group = run_group_round(msgspec.json.decode(raw, type=GroupRound), folder, say, found.update)
            tell(Told(figures=msgspec.structs.asdict(of_group)))
        else:
            figures = run_round(msgspec.json.decode(raw, type=Round), folder, say, found.update)
            tell(Told(figures=msgspec.structs.asdict(figures)))
    except Exception as error:  # noqa: BLE001  # whatever it is, the round failed
        story = take_story(error)
        failure = Failure(kind_of(error), "".join(traceback.format_exception(error)), story)
        tell(Told(failure=failure, found=found))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
