"""keylanes: Kafka parallelism beyond partitions, exactly once, for Python.

Errors apart, a name is imported when it is first used. So whoever needs a part of the package does not wait for the
rest: each process that reads logs for a Spark job is one.
"""

from importlib import import_module
from typing import TYPE_CHECKING

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
    HandlerMisdeclared,
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
from .runtime.build_info import IS_COMPILED, VERSION

if TYPE_CHECKING:
    from .brokers.partitioner import Partitioner
    from .brokers.protocol import Broker
    from .brokers.security import Secret, Security
    from .brokers.simulated.broker import CommittedRecord
    from .keyrange.ranges import KeyRange
    from .runtime.app import App
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
        UnownedPartition,
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
    "HandlerMisdeclared",
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
    "UnownedPartition",
]

_NAMES = {
    "brokers.partitioner": "Partitioner",
    "brokers.protocol": "Broker",
    "brokers.security": "Secret Security",
    "brokers.simulated.broker": "CommittedRecord",
    "keyrange.ranges": "KeyRange",
    "runtime.app": "App",
    "runtime.handlers.context": "Context Record",
    "runtime.handlers.handler": "DeadLetter Retry Stop",
    "runtime.handlers.store_declarations": "Store",
    "runtime.handlers.stores": "MapState State",
    "runtime.handlers.values": "Codec JsonCodec MsgpackCodec",
    "runtime.settings": "Settings",
    "runtime.stores.view": "StoreEntry StoreView",
    "runtime.testing": "SimulatedApp",
    "runtime.watch.statistics": (
        "Copying Health HotKey PartitionStatistics Progress RunningRecord Statistics ToLevel UnownedPartition"
    ),
}
"""The names of each module, as type checkers see them above."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """A name that is used for the first time."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f".{_MODULES[name]}", __name__)
    globals()[name] = found = getattr(module, name)
    return found


def __dir__() -> list[str]:
    """What there is, also what was not used yet."""
    return sorted({*globals(), *_MODULES})
