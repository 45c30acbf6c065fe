"""What a process works on once it is in office, and with what."""

from dataclasses import dataclass

from ..brokers.protocol import TopicPartition
from .ends_watch import EndsWatch
from .engine.balance import Balance
from .engine.commit import CommitCycle
from .engine.partition_run import PartitionRun
from .engine.readers import CatchUp, MainReader
from .logs.office import Standing
from .requests import Requests
from .source_watch import SourceWatch


@dataclass(slots=True)
class Work:
    """Made in one step when the start is through, and there to its end. ``runs`` and ``ends`` grow with the sources."""

    runs: list[PartitionRun]
    ends: dict[TopicPartition, int]
    """Where each source partition ended when it was found: where a run to the ends is to come to."""
    standing: Standing
    cycle: CommitCycle
    reader: MainReader
    catch_up: CatchUp
    balance: Balance | None
    """None: hot ranges are not to be split."""
    requests: Requests
    ends_watch: EndsWatch
    source_watch: SourceWatch
