"""keylanes: Kafka parallelism beyond partitions, exactly once, for Python."""

from .brokers.partitioner import Partitioner
from .brokers.protocol import Broker
from .brokers.security import Secret, Security
from .brokers.simulated.broker import CommittedRecord
from .errors import (
    AccessRefused,
    BrokerUnavailable,
    ContextClosed,
    DecodeFailed,
    Elsewhere,
    EmbeddedInUse,
    FatalError,
    FencedError,
    HandlerError,
    HandlerFailed,
    HandlerTimeout,
    InvariantBroken,
    KeylanesError,
    LogError,
    MachineError,
    NoKey,
    NotSimulated,
    OutputRefused,
    SendUnknown,
    SettingsError,
    SourceError,
    StateError,
    StateNotReady,
    StateValueTooLarge,
    StoreError,
)
from .keyrange.ranges import KeyRange
from .runtime.app import App
from .runtime.compiled import IS_COMPILED, VERSION
from .runtime.handlers.context import Context, Record
from .runtime.handlers.handler import DeadLetter, Retry, Stop
from .runtime.handlers.store_declarations import Store
from .runtime.handlers.stores import MapState, State
from .runtime.handlers.values import Codec, JsonCodec, MsgpackCodec
from .runtime.settings import Settings
from .runtime.stores.view import StoreEntry, StoreView
from .runtime.testing import SimulatedApp
from .runtime.watch.statistics import (
    Copying,
    Health,
    HotKey,
    PartitionStatistics,
    Progress,
    RunningRecord,
    Statistics,
    ToLevel,
)

__version__ = VERSION

__all__ = [
    "IS_COMPILED",
    "AccessRefused",
    "App",
    "Broker",
    "BrokerUnavailable",
    "Codec",
    "CommittedRecord",
    "Context",
    "ContextClosed",
    "Copying",
    "DeadLetter",
    "DecodeFailed",
    "Elsewhere",
    "EmbeddedInUse",
    "FatalError",
    "FencedError",
    "HandlerError",
    "HandlerFailed",
    "HandlerTimeout",
    "Health",
    "HotKey",
    "InvariantBroken",
    "JsonCodec",
    "KeyRange",
    "KeylanesError",
    "LogError",
    "MachineError",
    "MapState",
    "MsgpackCodec",
    "NoKey",
    "NotSimulated",
    "OutputRefused",
    "PartitionStatistics",
    "Partitioner",
    "Progress",
    "Record",
    "Retry",
    "RunningRecord",
    "Secret",
    "Security",
    "SendUnknown",
    "Settings",
    "SettingsError",
    "SimulatedApp",
    "SourceError",
    "State",
    "StateError",
    "StateNotReady",
    "StateValueTooLarge",
    "Statistics",
    "Stop",
    "Store",
    "StoreEntry",
    "StoreError",
    "StoreView",
    "ToLevel",
]
