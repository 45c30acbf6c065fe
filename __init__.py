"""keylanes: Kafka parallelism beyond partitions, exactly once, for Python."""

from .errors import (
    BrokerUnavailable,
    ContextClosed,
    DecodeFailed,
    FatalError,
    FencedError,
    HandlerError,
    HandlerFailed,
    HandlerTimeout,
    InvariantBroken,
    KeylanesError,
    LogError,
    NoKey,
    OutputRefused,
    SettingsError,
    SourceError,
    StateError,
    StateNotReady,
    StateValueTooLarge,
    StoreError,
)
from .runtime.app import App
from .runtime.brokers.security import Secret, Security
from .runtime.compiled import IS_COMPILED
from .runtime.context import Context, Record
from .runtime.declarations import Store
from .runtime.handlers import DeadLetter, Retry, Stop
from .runtime.settings import Settings
from .runtime.statistics import Health, Statistics
from .runtime.stores import MapState, State
from .runtime.values import Codec, JsonCodec, MsgpackCodec

__version__ = "0.1.0"

__all__ = [
    "IS_COMPILED",
    "App",
    "BrokerUnavailable",
    "Codec",
    "Context",
    "ContextClosed",
    "DeadLetter",
    "DecodeFailed",
    "FatalError",
    "FencedError",
    "HandlerError",
    "HandlerFailed",
    "HandlerTimeout",
    "Health",
    "InvariantBroken",
    "JsonCodec",
    "KeylanesError",
    "LogError",
    "MapState",
    "MsgpackCodec",
    "NoKey",
    "OutputRefused",
    "Record",
    "Retry",
    "Secret",
    "Security",
    "Settings",
    "SettingsError",
    "SourceError",
    "State",
    "StateError",
    "StateNotReady",
    "StateValueTooLarge",
    "Statistics",
    "Stop",
    "Store",
    "StoreError",
]
