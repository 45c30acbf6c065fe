"""What does it cost that ranges move, and what do many members on few partitions cost? keylanes, on one real Kafka.

    amplification  one partition, 1 to 8 members: what they read, what it costs, whether each of them works
    moves          ranges are handed over one after the other under 20,000 records/s: how long each stands still
    skew           all traffic goes to one partition, or to a part of the keys, from a moment on: when is it even again
    join           a member joins under load: how long until it works
    held           1,000 moves beside a range that is held: whether a snapshot or a start grows (in process, no Kafka)

Members are processes of their own. Each notes the begin and the end of every record; a run has figures only when every
record was handled once and in order per key. Every run is written down as it ends, and a second start goes on. What is
required: see ``handing_over/verdicts.py``.

    --parts moves join …  some parts              --full    full sizes; else quick ones, about six minutes
    --rounds 5            another number          --tiny    the least that runs through: figures mean nothing
    --again               begin afresh; the book before it is kept
    --report              no run: the tables, verdicts and pictures of what was written down
    --docs                the same, and the part of docs/benchmarks.md and of the README
"""

import sys

from handing_over import amplification, held, joining, moving, skewing
from handing_over.sizes import SIZES, arms, rounds_of
from handing_over.tables import cell, page, tables
from handing_over.verdicts import judge
from rig.figures import Content
from rig.pages import write_between
from rig.parts import Parts
from rig.places import ROOT

NAME = "handover"


def write(content: Content) -> None:
    """Fill the pages."""
    write_between(ROOT / "docs" / "benchmarks.md", NAME, page(content))
    write_between(ROOT / "README.md", NAME, cell(content), is_inline=True)


BENCH = Parts(
    name=NAME,
    doc=__doc__,
    runs={
        "amplification": amplification.run,
        "moves": moving.run,
        "skew": skewing.run,
        "join": joining.run,
        "held": held.run,
    },
    sizes=SIZES,
    arms=arms,
    rounds_of=rounds_of,
    tables=tables,
    judge=judge,
    write=write,
    plot="handing_over.plot",
    without_kafka=("held",),
)

if __name__ == "__main__":
    sys.exit(BENCH.main())
