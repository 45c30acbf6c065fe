"""What does it cost that state moves? keylanes on one real Kafka, and Kafka Streams beside it.

    state       a range goes to another member and back again under 20,000 records/s: how long it stands still, by its
                state of 0.1, 0.3 and 1 GB, and once 4 GB
    curves      how late records are around a move of half of the state: all at once, in four steps, piece by piece, and
                cold, as before copies: its owner stops and waits for nobody
    scaling     1, 2, 4, 2 and 1 members under load: until the work is even, what was copied, what stood still; the
                same with a standby; and Kafka Streams at the best settings for this, with a standby
    crash       a member with a name is killed and started again at once: until it works, and what it reads
    rollout     four members with names are started anew, one after the other: what they read

Members are processes of their own. Each notes the begin and the end of every record, and by how much it ended behind
its due time; a run has figures only when every record was handled. Every run is written down as it ends, and a second
start goes on.

    --parts state crash …    some parts              --full    full sizes; else quick ones
    --rounds 5               another number          --tiny    the least that runs through: figures mean nothing
    --again                  begin afresh; the book before it is kept
    --report                 no run: the tables and pictures of what was written down
    --docs                   the same, and the part of docs/benchmarks.md and of the README
"""

import sys
from typing import Any

from comparison.arms import java_command
from handing_over import carrying, halving, returning, scaling
from handing_over.state_sizes import SIZES, STREAMS, WITH_STANDBY, StateSize, arms, rounds_of
from handing_over.state_tables import judge, page, peers, tables
from rig.figures import Content
from rig.ground import Ground
from rig.pages import write_between
from rig.parts import Parts
from rig.places import ROOT

NAME = "moves"


def write(content: Content) -> None:
    """Fill the page, and the row of the README's table of peers."""
    write_between(ROOT / "docs" / "benchmarks.md", NAME, page(content))
    write_between(ROOT / "README.md", NAME, peers(content), is_inline=True)


def scaled(ground: Ground, arm: str, suffix: str, size: StateSize) -> dict[str, Any]:
    """The scaling of an arm. Raises WrongRun, Skipped."""
    command = (*java_command()[:-1], "keylanes.bench.HoldingMember") if arm == STREAMS else ()
    return scaling.run(ground, command, suffix, size, standbys=int(arm == WITH_STANDBY))


BENCH = Parts(
    name=NAME,
    doc=__doc__,
    runs={
        "state": carrying.run,
        "curves": halving.run,
        "scaling": scaled,
        "crash": returning.run_crash,
        "rollout": returning.run_rollout,
    },
    sizes=SIZES,
    arms=arms,
    rounds_of=rounds_of,
    tables=tables,
    judge=judge,
    write=write,
    plot="handing_over.state_plot",
)

if __name__ == "__main__":
    sys.exit(BENCH.main())
