"""Where partitions are started from is decided once; one that its topic got later is told from one of a torn start."""

import pytest

from keylanes.offsets.control import Control, evolve_control
from keylanes.offsets.control_events import PartitionStarted
from keylanes.offsets.starts import ADDED, StartChanged, check_starts, is_added

from ..stage.log_events import coordinator_elected, in_turn, partition_started
from ..tiers.marks import tier

pytestmark = tier("check")


def control(*started: PartitionStarted) -> Control:
    """The fold of these starts."""
    fold = Control()
    for event in in_turn([coordinator_elected(1, "one"), *started]):
        fold = evolve_control(fold, event)
    return fold


def test_a_partition_is_added_when_its_topic_did_not_have_it() -> None:
    """Of a start that a crash cut short the rest is no growth: the events say how many partitions there were."""
    torn = control(partition_started(1, "t", 0, 40, "latest", 3))
    assert [is_added(torn, "t", p) for p in (1, 2, 3)] == [False, False, True]
    grown = control(partition_started(1, "t", 0, 40, "latest", 1), partition_started(1, "t", 1, 0, ADDED, 2))
    assert [is_added(grown, "t", p) for p in (1, 2)] == [False, True]
    assert not is_added(control(), "t", 0)
    assert not is_added(torn, "other", 5)


def test_a_later_change_is_refused_with_the_way_out() -> None:
    """What it was, what it is now, and both things that can be done; other topics are nobody's business."""
    begun = control(partition_started(1, "t", 0, 40, "group:orders", 2), partition_started(1, "t", 2, 0, ADDED, 3))
    check_starts(begun, {"t": "group:orders", "new": "latest"})
    check_starts(begun, {})
    with pytest.raises(StartChanged) as refused:
        check_starts(begun, {"t": "latest"})
    assert str(refused.value) == (
        "t was started from 'group:orders' (partition 0 at offset 40); start= is 'latest' now. It is decided once, at "
        "the first start, and the offsets that were committed since count from there. Write start='group:orders' again "
        "to go on where the application stands, or start under a new application name to begin from 'latest'."
    )
