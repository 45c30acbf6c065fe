"""One source partition while it runs."""

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
from .awaited import async_function
from .calls import LoopCalls

Attempt: TypeAlias = tuple[Scope, "list[State[Any] | MapState[Any, Any]]"]


def _references_most(stores: "list[State[Any] | MapState[Any, Any]] | list[object]") -> int:
    most = 0
    for store in stores:
        count = getrefcount(store)
        if count > most:
            most = count
    return most


_NOT_KEPT: Final = _references_most([object()])
"""So many references there are to a store that nobody else has; interpreters count differently."""


CALLS_KEPT_MAX: Final = 1_000
"""So many calls that have ended are kept to be used again: about as many as run at once."""


@dataclass(slots=True, eq=False)
class PartitionRun:
    """One source partition while it runs: its dispatch, its handler, and what its readers wait for."""

    dispatch: PartitionDispatch
    handler: Handler
    place: SourcePlace
    state: PartitionState | None = None
    """None: its handler asks for none."""
    bindings: Bindings = ()
    """What the handler is called with behind the value; None: the context."""
    room: asyncio.Event = field(default_factory=asyncio.Event)
    catch_up_room: asyncio.Event = field(default_factory=asyncio.Event)
    lacks: asyncio.Event = field(default_factory=asyncio.Event)
    """A worker lacks records and may have room for them: set by whoever brings that about."""
    is_codec_ours: bool = False
    """Its codec looks at no context variables."""
    is_limited: bool = False
    """Its handler says how many may run at once, or begin in a second."""
    has_lanes: bool = False
    """Its handler runs in threads."""
    cut: tuple[int, ...] = ()
    """The bounds that the handler's declaration asks for."""
    function: Callable[..., Any] = field(init=False)
    """What is called with a value."""
    _spare: Attempt | None = None
    _calls: list[LoopCalls] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.handler.stores:
            self.bindings = (None,) * len(self.handler.further)
        self.cut = even_bounds(self.handler.parallelising_factor)
        self.is_limited = self.handler.max_in_flight is not None or self.handler.rate_per_s is not None
        self.has_lanes = not self.handler.is_async
        self.function = async_function(self.handler)
        self.is_codec_ours = type(self.handler.codec) in (JsonCodec, MsgpackCodec)

    def scope(self, record: ConsumerRecord) -> Scope | None:
        """What an attempt at a record sees of the state; None: its handler asks for none."""
        return None if self.state is None else Scope(self.state, record)

    def attempt(self, record: ConsumerRecord, cell: OverlayEntry | None = None) -> Attempt | None:
        """What an attempt at a record of a handler that asks for nothing but stores sees of the state, and what
        the handler is called with behind the value; None: it asks for no store. ``cell``: where the value of the key
        is in its only store, when that was looked up.
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
        """An attempt has ended and was closed; it serves again, unless the handler keeps one of its stores somewhere:
        that one has to go on saying that its attempt has ended.
        """
        if _references_most(attempt[1]) == _NOT_KEPT:
            self._spare = attempt

    def calls(self, within: Context) -> LoopCalls:
        """What calls the handler on the loop, in copies of this context. Whoever has it gives it back with
        ``put_back_calls``, unless a call did not come to its end.
        """
        return self._calls.pop() if self._calls else LoopCalls(self.function, self.handler.decode, within)

    def put_back_calls(self, calls: LoopCalls) -> None:
        """Its last call is through."""
        calls.end()
        if len(self._calls) < CALLS_KEPT_MAX:
            self._calls.append(calls)

    @property
    def label(self) -> str:
        """The source partition, for people."""
        return self.dispatch.label


def run_of(runs: Iterable[PartitionRun], place: tuple[str, int], app: str) -> PartitionRun:
    """The run of a source partition of an application; raises ValueError when there is none."""
    for run in runs:
        if run.dispatch.place == place:
            return run
    raise ValueError(f"{place[0]}[{place[1]}] is no source partition of application {app!r}")
