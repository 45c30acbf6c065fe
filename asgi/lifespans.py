"""The run of an application as the lifespan of a service."""

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any, NoReturn, TypeVar, overload

from ..errors import FatalError, KeylanesError, SettingsError
from ..runtime.app import App

logger = logging.getLogger("keylanes")

T = TypeVar("T")


@overload
def lifespan(
    app: App, then: None = None, *, exits: bool = True
) -> Callable[[Any], AbstractAsyncContextManager[None]]: ...
@overload
def lifespan(
    app: App, then: Callable[[Any], AbstractAsyncContextManager[T]], *, exits: bool = True
) -> Callable[[Any], AbstractAsyncContextManager[T]]: ...
def lifespan(
    app: App, then: Callable[[Any], AbstractAsyncContextManager[Any]] | None = None, *, exits: bool = True
) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
    """The lifespan of a service with an application, for Starlette and others:
    ``FastAPI(lifespan=lifespan(app))``.

    The application works before the first request comes, and stops in order behind the last request.

    A fatal error ends the server: the server would go on without the application. The process gets SIGTERM, as from a
    supervisor. The server closes its connections, ``then`` and the application end, and the process ends with
    ``error.exit_code``, as ``app.run()`` does. A start that fails ends the process with its code, too. The log has the
    reason.

    ``then``: a lifespan of the service's own. The inner lifespan begins when the application works, and ends before the
    stop; its yielded value is the state of the service.

    ``exits=False`` leaves the exit code to the server, and raises the error for the code around the lifespan. With
    ``exits=True`` that code does not come to its end, and functions of ``atexit`` do not run. Where a server has
    started the process as a worker, the server chooses the exit code and starts another worker (docs/deployment.md).
    Where nobody listens for SIGTERM, as in a test of the service, the error is raised.
    """

    @asynccontextmanager
    async def around(service: Any) -> AsyncIterator[Any]:
        inside = _inside(app, then, service)
        is_heard = signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN)
        # The server of this process ends by SIGTERM, and the error is for nobody else. A server has the main thread.
        ends_server = exits and is_heard and threading.current_thread() is threading.main_thread()
        is_worker = multiprocessing.parent_process() is not None
        has_begun = has_failed = False
        try:
            async with _enter_in_task(app, inside) if is_heard else inside as state:
                has_begun = True
                yield state
                has_failed = app.health().state == "failed"
        except Exception as error:
            is_logged = app.health().cause == str(error)  # the error ended the run, and the run has logged it
            if isinstance(error, KeylanesError) and not (has_begun or is_logged):
                logger.critical("%s does not start: %s", app.name, error)
            if ends_server and not is_worker:
                if has_failed:
                    _exit(getattr(error, "exit_code", 1))
                if not has_begun and isinstance(error, SettingsError | FatalError):
                    _exit(error.exit_code)
            if ends_server and has_begun and is_logged:
                return  # the server would log the error again
            if isinstance(error, KeylanesError):
                raise error.with_traceback(None) from None  # the message is complete, and the log has the cause
            raise

    return around


@asynccontextmanager
async def _inside(
    app: App, then: Callable[[Any], AbstractAsyncContextManager[Any]] | None, service: Any
) -> AsyncIterator[Any]:
    """The application at work, and within it the lifespan of the service's own; yields the state of the service."""
    own = nullcontext() if then is None else then(service)
    if not isinstance(own, AbstractAsyncContextManager):
        raise SettingsError(
            "lifespan: then is a function of the service that returns an async context manager; seen one that returns "
            f"a value of type {type(own).__name__}: put @contextlib.asynccontextmanager above it"
        )
    async with app, own as state:
        yield state


@asynccontextmanager
async def _enter_in_task(app: App, inside: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enter ``inside`` in a task of its own.

    A fatal error of the application cancels the task that has entered ``inside``. The task of the server is spared: it
    still has to hear the shutdown, which comes when the connections are closed. After a fatal error the own task tells
    the server by SIGTERM, and holds ``inside`` open until the shutdown.
    """
    loop, leave = asyncio.get_running_loop(), asyncio.Event()
    begun: asyncio.Future[Any] = loop.create_future()

    async def hold() -> None:
        async with inside as state:
            begun.set_result(state)
            try:
                await leave.wait()
            except asyncio.CancelledError:
                if app.health().state != "failed":
                    raise
                signal.raise_signal(signal.SIGTERM)
                await leave.wait()

    holder = loop.create_task(hold())
    try:
        await asyncio.wait([holder, begun], return_when=asyncio.FIRST_COMPLETED)
        if begun.done():
            yield begun.result()
    finally:
        leave.set()
        if not begun.done():
            holder.cancel()
        await holder  # raises the error of a start that failed


def _exit(code: int) -> NoReturn:
    """End the process with a code, here: a server that was ended by a signal would end the process by that signal."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # there is none, nobody reads it, it is closed
            stream.flush()
    os._exit(code)
