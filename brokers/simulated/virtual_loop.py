"""An event loop in virtual time, with every choice from a seed.

Rules:

- ``time()`` stands still while anything is ready and jumps to the next timer when nothing is. Nothing ever waits.
- With ``shuffle`` the steps of *different tasks* that are ready at the same instant run in an order drawn from the
  seed. Every other callback keeps the place in the queue: asyncio promises FIFO for ``call_soon``, and futures, locks,
  queues and task groups rely on FIFO, but no task may rely on running before another task.
- ``run_in_executor`` runs the function at once, in this thread; the result is delivered in a later pass of the loop.
- Tasks hash by number, not by address, so sets of tasks (in ``TaskGroup``, ``asyncio.wait``, ``all_tasks``) are walked
  in the same order in every run.
- Nothing ready and no timer is a deadlock, and a million passes without the clock moving is a live-lock: both raise
  ``VirtualDeadlock``, which names the tasks.
- Rounds of an application at rest may be left out (``skip_rests``): the clock goes on to the next other timer.
- Nothing real is waited for: a call for a socket, a host name, a pipe or a process is refused at once
  (``NotSimulated``), because the clock would jump over the time-out before an answer could come.

Descriptors are looked at only to let signals through.
"""

import asyncio
import itertools
import random
import reprlib
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from typing import Any, Final, NoReturn, TypeVar

from ...errors import NotSimulated
from ..patience import end_rest

T = TypeVar("T")

TIME_AT_START = 1_000.0  # seconds; small enough that a float still resolves a nanosecond
_RESOLUTION = 1e-6  # seconds; timers closer together than this fire in one pass
_PASSES_MAX = 1_000_000
_PASSES_PER_POLL = 256
_TASKS_NAMED_MAX = 20

_REAL: Final = {
    **dict.fromkeys(("create_connection", "create_unix_connection", "sock_connect"), "a connection"),
    **dict.fromkeys(("create_server", "create_unix_server", "sock_accept", "connect_accepted_socket"), "a client"),
    **dict.fromkeys(("sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into"), "data from a socket"),
    **dict.fromkeys(("sock_sendall", "sock_sendto", "sock_sendfile"), "room in a socket"),
    **dict.fromkeys(("add_reader", "add_writer"), "a descriptor"),
    **dict.fromkeys(("connect_read_pipe", "connect_write_pipe"), "a pipe"),
    **dict.fromkeys(("subprocess_exec", "subprocess_shell"), "a process"),
    "create_datagram_endpoint": "a datagram",
    "getaddrinfo": "the address of a host",
    "getnameinfo": "the name of a host",
}
"""Methods of a loop that reach out of the loop, and the thing that the caller waits for."""
_PLACES: Final = ("host", "port", "path", "sock", "remote_addr", "local_addr")
"""The arguments by name that tell what is reached for."""


class VirtualDeadlock(RuntimeError):
    """Nothing is ready and no timer is set (or the clock stands still for ever); the message names the tasks."""


class _NumberedTask(asyncio.Task[Any]):
    """A task that hashes by number."""

    def __init__(self, number: int, coro: Any, **options: Any) -> None:
        self._number = number  # before the base class puts the task into a set
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class _JumpingSelector(selectors.BaseSelector):
    """Asks the loop to move the clock where a real selector would wait."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.before_pass: Callable[[float | None], bool] = bool

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.before_pass(timeout):
            return self._real.select(0)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.get_key(fileobj)

    def close(self) -> None:
        self._real.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop for simulations; see the rules above. ``seed`` alone decides the order of task steps.

    ``refused``: the first real thing that was refused, also when the caller has caught the error. ``before_waiting`` is
    called when nothing is ready and the clock is about to move; the function may ``skip_rests``.
    """

    # Of asyncio.BaseEventLoop, the same in every supported Python: what is ready, and the heap of timers.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, seed: int, *, shuffle: bool = True) -> None:
        self._now = TIME_AT_START
        self._random = random.Random(seed)
        self._shuffle = shuffle
        self._numbers = itertools.count(1)
        self._passes = 0
        self._passes_at_now = 0
        self.refused: NotSimulated | None = None
        self.before_waiting: Callable[[], None] | None = None
        selector = _JumpingSelector()
        super().__init__(selector)
        self._clock_resolution = _RESOLUTION
        selector.before_pass = self._before_pass
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Virtual seconds; starts at ``TIME_AT_START``."""
        return self._now

    def run_in_executor(  # type: ignore[override]  # typeshed spells the variadic arguments as a TypeVarTuple
        self,
        executor: Executor | None,  # noqa: ARG002  # no thread is used
        func: Callable[..., T],
        *args: Any,
    ) -> asyncio.Future[T]:
        """Run ``func`` now, in this thread; the future is done in a later pass, as if a thread had finished."""
        future: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            self.call_soon(_finish, future, None, error)
        else:
            self.call_soon(_finish, future, result, None)
        return future

    def skip_rests(self, awake_s: float) -> bool:
        """Move the clock on to ``awake_s`` seconds before the next timer that is no rest (patience.py); False: the
        timer
        is due sooner. Rests that have passed then end at once, each once.
        """
        due = [timer.when() for timer in self._scheduled if not timer.cancelled() and not _is_rest(timer)]
        landing = min(due, default=self._now) - awake_s
        if landing <= self._now:
            return False
        self._now = landing
        return True

    def close(self) -> None:
        """Cancel all pending tasks, let them clean up, and close."""
        if self.is_closed() or self.is_running():
            super().close()
            return
        try:
            pending = sorted(asyncio.all_tasks(self), key=hash)
            for task in pending:
                task.cancel()
            if pending:
                self.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
            self.run_until_complete(self.shutdown_asyncgens())
        finally:
            super().close()

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        number = next(self._numbers)
        if options.get("name") is None:
            options["name"] = f"Task-{number}"
        return _NumberedTask(number, coro, loop=loop, **options)

    def _before_pass(self, timeout: float | None) -> bool:
        """Order what is ready, or move the clock to the next timer; True when descriptors are to be looked at."""
        self._passes += 1
        poll = self._passes % _PASSES_PER_POLL == 0
        if timeout is not None and timeout <= 0:
            self._passes_at_now += 1
            if self._passes_at_now > _PASSES_MAX:
                self._passes_at_now = 0  # so that close can still run the tasks' clean-up
                raise VirtualDeadlock(self._describe(f"{_PASSES_MAX} passes without the clock moving"))
            if self._shuffle and len(self._ready) > 1:
                self._shuffle_task_steps()
            return poll
        self._passes_at_now = 0
        if timeout is not None:
            if self.before_waiting is not None:
                self.before_waiting()
            self._now = max(self._now, self._scheduled[0].when())
            return poll
        if self._selector_has_events():
            return True
        raise VirtualDeadlock(self._describe("nothing is ready and no timer is set"))

    def _selector_has_events(self) -> bool:
        selector: _JumpingSelector = self._selector  # type: ignore[attr-defined]  # private to asyncio
        return bool(selector._real.select(0))

    def _shuffle_task_steps(self) -> None:
        """Permute the ready steps of tasks among their places in the queue; each task has at most one step ready."""
        ready = self._ready
        places = [place for place, handle in enumerate(ready) if _is_task_step(handle)]
        if len(places) < 2:
            return
        handles = list(ready)
        order = places.copy()
        self._random.shuffle(order)
        ready.clear()
        moved = dict(zip(places, order, strict=True))
        ready.extend(handles[moved.get(place, place)] for place in range(len(handles)))

    def _describe(self, what: str) -> str:
        tasks = sorted((task for task in asyncio.all_tasks(self) if not task.done()), key=hash)
        named = [f"  {task!r}" for task in tasks[:_TASKS_NAMED_MAX]]
        if len(tasks) > _TASKS_NAMED_MAX:
            named.append(f"  and {len(tasks) - _TASKS_NAMED_MAX} more")
        return "\n".join([f"virtual time {self._now:.6f}: {what}; pending tasks:", *(named or ["  none"])])


def run_virtual(main: Coroutine[Any, Any, T], *, seed: int = 0, shuffle: bool = True) -> T:
    """Run ``main`` to the end on a new ``VirtualLoop``; tasks left pending are cancelled afterwards."""
    loop = VirtualLoop(seed, shuffle=shuffle)
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        try:
            loop.close()
        finally:
            asyncio.set_event_loop(None)


def _refusal(name: str) -> Callable[..., NoReturn]:
    """The replacement of a method that reaches out of the loop."""

    def refuse(self: VirtualLoop, *args: Any, **named: Any) -> NoReturn:
        places = [value for value in args if not callable(value)][:2] + [named[key] for key in _PLACES if key in named]
        error = NotSimulated(
            f"a handler waits for {_REAL[name]}, and time is virtual under app.test(): no real answer is waited for; "
            f"seen {name}({', '.join(reprlib.repr(place) for place in places)}), allowed are timers, locks, other "
            "tasks and the simulated broker, in a def handler also calls that block: give the handler a fake client, "
            "or run it against the real service with app.run()"
        )
        if self.refused is None:
            self.refused = error
        raise error

    return refuse


for _name in _REAL:
    setattr(VirtualLoop, _name, _refusal(_name))


def _is_task_step(handle: asyncio.Handle) -> bool:
    # Both the first step and every wake-up are bound to their task, in the C and in the Python version alike.
    callback = handle._callback  # type: ignore[attr-defined]  # private to asyncio
    return isinstance(getattr(callback, "__self__", None), asyncio.Task)


def _is_rest(timer: asyncio.TimerHandle) -> bool:
    return timer._callback is end_rest  # type: ignore[attr-defined]  # private to asyncio


def _finish(future: asyncio.Future[T], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
