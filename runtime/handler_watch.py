"""Handlers as ``app.test()`` calls them, with a watch for two mistakes that raise no error.

- A handler that would block the event loop of a run. Time is virtual in a test, and no loop is late there. A run uses
  ``LoopWatch``, at no cost for a record.
- A value of a store that is changed in place and not put. The watch encodes each value from a store again at the end of
  the attempt. A run does not watch for the mistake.
"""

import logging
import time
import types
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from typing import Any, TypeAlias

from msgspec.structs import replace

from ..state.keys import MapKey
from .engine.async_functions import async_function
from .handlers.handler import Handler
from .handlers.stores import MapState, State, StoreDeclaration
from .watch.watchdog import NOT_TURNED, blocked_by

logger = logging.getLogger("keylanes")

StoreKey: TypeAlias = tuple[str, MapKey | None]
"""The name of a store, and the key of a map; None: the store is no map."""


class HandlerWatch:
    """Measures in real time each step of async handlers, and compares the values from stores at the end of an attempt.
    A step goes from a suspension of the handler to the next suspension. A step of ``lag_ms`` or more is logged once for
    each handler, a lost change once for each store of a handler.
    """

    def __init__(self, lag_ms: int) -> None:
        self.lag_ms = lag_ms
        self.lag_max_s = 0.0
        self._said: set[tuple[str, str]] = set()
        """The handlers with a line in the log, each with the store of the line; "" for a step."""

    def watched_handler(self, handler: Handler) -> Handler:
        """The handler with a watched function."""
        function = async_function(replace(handler, own_task=False)) if handler.is_async else handler.function

        async def call(value: Any, *further: Any) -> Any:
            given = _Given()
            work = function(value, *given.watched_arguments(handler, further))
            result = await _measure_steps(work, lambda seconds: self._note_step(handler.name, seconds))
            self._compare(handler.name, given)
            return result

        def call_in_thread(value: Any, *further: Any) -> Any:
            given = _Given()
            result = function(value, *given.watched_arguments(handler, further))
            self._compare(handler.name, given)
            return result

        return replace(handler, function=call if handler.is_async else call_in_thread, is_decorated=False)

    def _note_step(self, handler: str, seconds: float) -> None:
        self.lag_max_s = max(self.lag_max_s, seconds)
        if seconds * 1000 >= self.lag_ms and self._is_new(handler, ""):
            logger.error(NOT_TURNED, seconds * 1000, blocked_by(handler))

    def _compare(self, handler: str, given: "_Given") -> None:
        for store in given.stores_with_lost_change():
            if self._is_new(handler, store):
                logger.warning(
                    "handler %s changed a value of store %r in place, and the change is lost: give the changed value "
                    "to put()",
                    handler,
                    store,
                )

    def _is_new(self, handler: str, store: str) -> bool:
        said = (handler, store)
        is_new = said not in self._said
        self._said.add(said)
        return is_new


class _Given:
    """The values that stores gave out in an attempt, by store key, each with its bytes from that moment.

    A value is compared no more once the handler has written the store key, or has put the value under any store key.
    """

    def __init__(self) -> None:
        self._values: dict[StoreKey, list[tuple[StoreDeclaration, Any, bytes]]] = {}
        self._put: dict[int, Any] = {}
        """Put values by identity. A reference keeps the value alive: no other value gets the identity."""

    def watched_arguments(self, handler: Handler, further: Sequence[Any]) -> Iterator[Any]:
        """The handler's arguments behind the value, with stores that report each value to this object."""
        for declared, argument in zip(handler.further, further, strict=True):
            kind = None if declared is None else _WatchedMap if declared.kind == "map" else _WatchedState
            yield argument if declared is None or kind is None else kind(argument, declared, self)

    def give(self, declared: StoreDeclaration, key: MapKey | None, value: Any) -> None:
        """Note that a store gave a value out."""
        data = None if value is None else _bytes_of(declared, value)
        if data is not None and data == _bytes_of(declared, value):  # an encrypting codec gives new bytes each time
            self._values.setdefault((declared.name, key), []).append((declared, value, data))

    def take(self, declared: StoreDeclaration, key: MapKey | None, value: Any = None) -> None:
        """Note that the handler has written or deleted a store key."""
        self._values.pop((declared.name, key), None)
        self._put[id(value)] = value

    def stores_with_lost_change(self) -> Iterator[str]:
        """The names of the stores with a value that the handler has changed in place."""
        for values in self._values.values():
            for declared, value, data in values:
                if id(value) not in self._put and _bytes_of(declared, value) != data:
                    yield declared.name


class _WatchedState:
    """A ``State`` of an attempt that reports each value to ``_Given``."""

    __class__ = State  # type: ignore[assignment]  # for checks of types at run time; a compiled class has no subclass

    def __init__(self, store: State[Any], declared: StoreDeclaration, given: _Given) -> None:
        self._store = store
        self._declared = declared
        self._given = given

    def get(self) -> Any:
        value = self._store.get()
        self._given.give(self._declared, None, value)
        return value

    def put(self, value: Any) -> None:
        self._store.put(value)
        self._given.take(self._declared, None, value)

    def delete(self) -> None:
        self._store.delete()
        self._given.take(self._declared, None)


class _WatchedMap:
    """A ``MapState`` of an attempt that reports each value to ``_Given``."""

    __class__ = MapState  # type: ignore[assignment]  # as above

    def __init__(self, store: MapState[Any, Any], declared: StoreDeclaration, given: _Given) -> None:
        self._store = store
        self._declared = declared
        self._given = given

    def get(self, key: MapKey) -> Any:
        value = self._store.get(key)
        self._given.give(self._declared, key, value)
        return value

    def put(self, key: MapKey, value: Any) -> None:
        self._store.put(key, value)
        self._given.take(self._declared, key, value)

    def delete(self, key: MapKey) -> None:
        self._store.delete(key)
        self._given.take(self._declared, key)

    def items(self) -> Iterator[tuple[MapKey, Any]]:
        for key, value in self._store.items():
            self._given.give(self._declared, key, value)
            yield key, value

    def keys(self) -> Iterator[MapKey]:
        return self._store.keys()

    def values(self) -> Iterator[Any]:
        return (value for _, value in self.items())

    def __iter__(self) -> Iterator[MapKey]:
        return self.keys()

    def __contains__(self, key: MapKey) -> bool:
        return key in self._store


def _bytes_of(declared: StoreDeclaration, value: Any) -> bytes | None:
    """The bytes that a store would write; None: the value can't be encoded."""
    try:
        return declared.encode(value)
    except Exception:  # noqa: BLE001  # a codec may raise anything
        return None


@types.coroutine
def _measure_steps(work: Coroutine[Any, Any, Any], note: Callable[[float], None]) -> Generator[Any, None, Any]:
    """Await the work, and call ``note`` with the seconds of each step."""
    raised: BaseException | None = None
    while True:
        began_s = time.perf_counter()
        try:
            waits_for = work.send(None) if raised is None else work.throw(raised)
        except StopIteration as ended:
            return ended.value
        finally:
            note(time.perf_counter() - began_s)
        raised = None
        try:
            yield waits_for
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001  # the error belongs to the work, and goes there
            raised = error
