"""A source partition in a running process."""

import asyncio
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass, field
from sys import getrefcount
from typing import Any, Final, TypeAlias

from ...brokers.protocol import ConsumerRecord
from ...keyrange.ranges import even_bounds
from ...state.overlay import OverlayEntry
from ..handlers.handler import Handler
from ..handlers.outputs import SourcePlace
from ..handlers.partition_state import PartitionState, Scope
from ..handlers.stores import Bindings, MapState, State
from ..handlers.values import JsonCodec, MsgpackCodec
from ..partition.dispatch import PartitionDispatch
from .async_functions import async_function
from .calls import LoopCalls

Attempt: TypeAlias = tuple[Scope, "list[State[Any] | MapState[Any, Any]]"]
"""The scope of an attempt at a record of a handler with stores, and the stores to call the handler with."""


def _references_most(stores: "list[State[Any] | MapState[Any, Any]] | list[object]") -> int:
    """The greatest reference count of some stores."""
    most = 0
    for store in stores:
        count = getrefcount(store)
        if count > most:
            most = count
    return most


_NOT_KEPT: Final = _references_most([object()])
"""The reference count of a store that no other code refers to; interpreters count differently."""

CALLS_KEPT_MAX: Final = 1_000
"""The most ended calls that stay for reuse: about as many as run at once."""


@dataclass(slots=True, eq=False)
class PartitionRun:
    """A source partition in a running process: the dispatch, the handler, and the events that its readers wait for."""

    dispatch: PartitionDispatch
    handler: Handler
    place: SourcePlace
    state: PartitionState | None = None
    """None: the handler has no stores."""
    bindings: Bindings = ()
    """The handler's arguments behind the value; None: the context."""
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """The full worker at which the main reader stands may have room again."""
    catch_up_room: asyncio.Event = field(default_factory=asyncio.Event)
    """The full worker at which the catch-up pass stands may have room again."""
    lacks: asyncio.Event = field(default_factory=asyncio.Event)
    """A worker may have dropped records and room for them: set by the code that drops records or makes room."""
    is_codec_ours: bool = False
    """The codec is keylanes' own, and reads no context variables."""
    is_limited: bool = False
    """The handler limits how many attempts run at once, or begin in a second."""
    has_lanes: bool = False
    """The handler runs in threads."""
    cut: tuple[int, ...] = ()
    """The bounds that the handler's declaration asks for."""
    function: Callable[..., Any] = field(init=False)
    """The function to call with a value."""
    _spare: Attempt | None = None
    """An ended attempt, for reuse."""
    _calls: list[LoopCalls] = field(default_factory=list)
    """Ended calls, for reuse."""

    def __post_init__(self) -> None:
        if not self.handler.stores:
            self.bindings = (None,) * len(self.handler.further)
        self.cut = even_bounds(self.handler.parallelising_factor)
        self.is_limited = self.handler.max_in_flight is not None or self.handler.rate_per_s is not None
        self.has_lanes = not self.handler.is_async
        self.function = async_function(self.handler)
        self.is_codec_ours = type(self.handler.codec) in (JsonCodec, MsgpackCodec)

    def scope(self, record: ConsumerRecord) -> Scope | None:
        """The scope of the state for an attempt at a record; None: the handler has no stores."""
        return None if self.state is None else Scope(self.state, record)

    def attempt(self, record: ConsumerRecord, cell: OverlayEntry | None = None) -> Attempt | None:
        """The scope for an attempt at a record, and the stores to call the handler with; for a handler without the
        context. None: the handler has no stores. ``cell``: the overlay entry of the record's key in the handler's only
        store, where looked up before.
        """
        if self.state is None:
            return None
        spare = self._spare
        if spare is None:
            scope = Scope(self.state, record)
            return scope, [binding.bound(scope, record.key) for binding in self.bindings if binding is not None]
        self._spare = None
        spare[0].begin(record)
        stores = spare[1]
        if cell is not None and cell.is_here and isinstance(first := stores[0], State):
            first.begin_at(cell)
        else:
            key = record.key
            for store in stores:
                store.begin(key)
        return spare

    def put_back(self, attempt: Attempt) -> None:
        """Put an ended, closed attempt back for reuse, unless the handler still refers to a store of the attempt: the
        store has to go on raising ContextClosed.
        """
        if _references_most(attempt[1]) == _NOT_KEPT:
            self._spare = attempt

    def calls(self, within: Context) -> LoopCalls:
        """A ``LoopCalls`` for the handler, with copies of the context ``within``. The caller returns the object with
        ``put_back_calls``, unless a call did not come to its end.
        """
        return self._calls.pop() if self._calls else LoopCalls(self.function, self.handler.decode, within)

    def put_back_calls(self, calls: LoopCalls) -> None:
        """Put a ``LoopCalls`` back for reuse; its last call is finished."""
        calls.end()
        if len(self._calls) < CALLS_KEPT_MAX:
            self._calls.append(calls)

    @property
    def label(self) -> str:
        """The source partition, for people."""
        return self.dispatch.label


def run_of(runs: Iterable[PartitionRun], place: tuple[str, int], app: str) -> PartitionRun:
    """The ``PartitionRun`` of a source partition; raises ValueError for a place that is no source of application
    ``app``.
    """
    for run in runs:
        if run.dispatch.place == place:
            return run
    raise ValueError(f"{place[0]}[{place[1]}] is no source partition of application {app!r}")
