"""What the audit derives of who owned what, held against the logs of a simulation: without Spark."""

from collections import Counter

from keylanes.offsets.codec import decode
from keylanes.offsets.events import Event

from ..spark.owned_logs import owned
from ..stage.cluster import Cluster


def check_ownership(cluster: Cluster, app: str) -> Counter[str]:
    """All statements, over all that was ever written and over what trimming has left; what was looked at.

    Raises AssertionError for one that does not hold.
    """
    (control,) = cluster.places(f"{app}.control")
    decisions = [decode(row.value or b"") for row in cluster.rows(control)]
    logs: dict[int, list[tuple[int, Event]]] = {}
    starts: dict[int, int] = {}
    for place in cluster.places(f"{app}.offsets"):
        logs[place.partition] = [(row.offset, decode(row.value or b"")) for row in cluster.rows(place)]
        starts[place.partition] = cluster.watermarks(place).start
    left = {number: [item for item in events if item[0] >= starts[number]] for number, events in logs.items()}
    looked_at: Counter[str] = Counter()
    for found, since in ((logs, {}), (left, starts)):
        for name, verdict in owned(decisions, found, since).verdicts().items():
            assert not verdict.problems, f"the witness: {name}: {verdict.problems[:3]}"
            looked_at[f"witness: {name}"] += verdict.checked
    return looked_at
