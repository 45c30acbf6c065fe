"""What does it cost that ranges move? keylanes on one real Kafka, and Kafka Streams beside it in one part.

    moves       ranges without state are handed over one after the other under 20,000 records/s: how long each stands
                still
    state       a range goes to another member and back again under 20,000 records/s: how long it stands still, by its
                state of 0.1, 0.3 and 1 GB, and once 4 GB
    scaling     1, 2, 4, 2 and 1 members under load: until the work is even, what was copied, what stood still; the
                same with a standby; and Kafka Streams at the best settings for this, with a standby
    crash       a member with a name is killed and started again at once: until it works, and what it reads
    rollout     four members with names are started anew, one after the other: what they read

Members are processes of their own. Each notes the begin and the end of every record, and by how much it ended behind
its due time; a run has figures only when every record was handled. ``handing_over/verdicts.py`` has what is required.
"""

import sys
from typing import Any

from comparison.arms import java_command
from handing_over import carrying, moving, returning, scaling
from handing_over.sizes import SIZES, STREAMS, WITH_STANDBY, Size, arms, rounds_of
from handing_over.tables import tables
from handing_over.verdicts import judge
from rig.ground import Ground
from rig.parts import Parts


def scaled(ground: Ground, arm: str, suffix: str, size: Size) -> dict[str, Any]:
    """The scaling of an arm. Raises WrongRun, Skipped."""
    command = (*java_command()[:-1], "keylanes.bench.HoldingMember") if arm == STREAMS else ()
    return scaling.run(ground, command, suffix, size, standbys=int(arm == WITH_STANDBY))


BENCH = Parts(
    name="handover",
    doc=__doc__,
    runs={
        "moves": moving.run,
        "state": carrying.run,
        "scaling": scaled,
        "crash": returning.run_crash,
        "rollout": returning.run_rollout,
    },
    sizes=SIZES,
    arms=arms,
    rounds_of=rounds_of,
    tables=tables,
    judge=judge,
)

if __name__ == "__main__":
    sys.exit(BENCH.main())
