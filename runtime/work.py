"""What a process works on once it is in office, and with what."""

from dataclasses import dataclass

from ..brokers.protocol import TopicPartition
from .ends_watch import EndsWatch
from .engine.balance import Balance
from .engine.commit import CommitCycle
from .engine.partition_run import PartitionRun
from .engine.readers import CatchUp, MainReader
from .holding import Holding
from .logs.office import Standing
from .requests import Requests


@dataclass(slots=True)
class Work:
    """Made in one step when the process has joined, and there to its end. ``runs`` come and go with what it holds."""

    runs: list[PartitionRun]
    ends: dict[TopicPartition, int]
    """Where each source partition ended when something of it was taken up first."""
    standing: Standing
    cycle: CommitCycle
    reader: MainReader
    catch_up: CatchUp
    balance: Balance | None
    """None: hot ranges are not to be split."""
    requests: Requests
    ends_watch: EndsWatch
    holding: Holding
