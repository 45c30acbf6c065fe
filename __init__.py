"""keylanes: Kafka parallelism beyond partitions, exactly once, for Python."""

from .brokers.security import Secret, Security
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
    SendUnknown,
    SettingsError,
    SourceError,
    StateError,
    StateNotReady,
    StateValueTooLarge,
    StoreError,
)
from .runtime.app import App
from .runtime.compiled import IS_COMPILED
from .runtime.handlers.context import Context, Record
from .runtime.handlers.handler import DeadLetter, Retry, Stop
from .runtime.handlers.store_declarations import Store
from .runtime.handlers.stores import MapState, State
from .runtime.handlers.values import Codec, JsonCodec, MsgpackCodec
from .runtime.settings import Settings
from .runtime.watch.statistics import Health, Statistics

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
    "SendUnknown",
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
