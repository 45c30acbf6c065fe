"""A virtual loop on which single processes can be stopped and continued (SIGSTOP, SIGCONT), and disks can be slow.

Whose a callback is, its context tells: what a process does inherits the context that its first task was made in. While
a process stands still, its callbacks and timers are set aside, with what others tell it; the others go on.
"""

import asyncio
import heapq
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple

from keylanes.brokers.simulated.virtual_loop import VirtualLoop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_owner: ContextVar[str | None] = ContextVar("owner", default=None)


def context_of(owner: str) -> Context:
    """A context for what ``owner`` does."""
    context = copy_context()
    context.run(_owner.set, owner)
    return context


class PausingLoop(VirtualLoop):
    """See the module. ``disk_s``: how long a job in a thread takes, by who gives it."""

    def __init__(self, seed: int = 0) -> None:
        self._held: dict[str, tuple[list[asyncio.Handle], list[asyncio.TimerHandle]]] = {}
        self.disk_s: Callable[[str | None], float] = lambda owner: 0.0
        super().__init__(seed)

    def pause(self, owner: str) -> None:
        """Nothing of this owner runs from here on, until ``resume``."""
        if owner in self._held:
            return
        held = self._held[owner] = ([], [])
        for place, handle in enumerate(self._ready):
            if _owner_of(handle) == owner:
                held[0].append(handle)
                self._ready[place] = self._nothing()  # a pass has counted what it will run: as many have to be there
        held[1].extend(timer for timer in self._scheduled if _owner_of(timer) == owner)
        self._scheduled[:] = [timer for timer in self._scheduled if _owner_of(timer) != owner]
        heapq.heapify(self._scheduled)

    def _nothing(self) -> asyncio.Handle:
        handle = asyncio.Handle(int, (), self)
        handle.cancel()
        return handle

    def resume(self, owner: str) -> None:
        """Let it go on: first what it was told meanwhile, then timers that have run out."""
        ready, timers = self._held.pop(owner, ([], []))
        self._ready.extend(ready)
        for timer in timers:
            heapq.heappush(self._scheduled, timer)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As asyncio does it, unless it is for somebody who stands still."""
        handle = super().call_soon(callback, *args, context=context)
        if self._held and (owner := _owner_of(handle)) in self._held:
            self._ready.remove(handle)
            self._held[owner][0].append(handle)
        return handle

    def run_in_executor(  # type: ignore[override]  # typeshed spells the variadic arguments as a TypeVarTuple
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """At once, as the virtual loop does it; on a slow disk when its time has come."""
        delay = self.disk_s(_owner.get())
        if not delay:
            return super().run_in_executor(executor, func, *args)
        future: asyncio.Future[T] = self.create_future()
        self.call_later(delay, self._work, future, func, args)
        return future

    def _work(self, future: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001  # it is raised where the future is awaited
            if not future.cancelled():
                future.set_exception(error)
        else:
            if not future.cancelled():
                future.set_result(result)


def _owner_of(handle: asyncio.Handle) -> str | None:
    context: Context | None = handle._context  # type: ignore[attr-defined]  # private to asyncio
    return None if context is None else context.get(_owner)
