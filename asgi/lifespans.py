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

    The application works before the first request comes, and stops in order behind the last request. A fatal error ends
    the server, which would go on without the application: the process gets SIGTERM, as from a supervisor. The server
    closes its connections, ``then`` and the application end, and the process ends with ``error.exit_code``, as
    ``app.run()`` does. A start that fails ends the process with its code, too. The log has the reason.

    ``then``: a lifespan of the service's own. The inner lifespan begins when the application works, and ends before the
    stop; its yielded value is the state of the service.

    ``exits=False`` leaves the code to the server, and raises the error for the code around the lifespan. With
    ``exits=True`` that code does not come to its end, and neither do functions of ``atexit``. Where a server has
    started the process as a worker of its own the code is the server's, and the server starts another worker
    (docs/deployment.md). Where nobody listens for SIGTERM, as in a test of the service, the error is raised.
    """

    @asynccontextmanager
    async def around(service: Any) -> AsyncIterator[Any]:
        inside = _inside(app, then, service)
        is_heard = signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN)
        is_server_told = exits and is_heard and threading.current_thread() is threading.main_thread()
        is_begun = has_failed = False
        try:
            async with _enter_in_task(app, inside) if is_heard else inside as state:
                is_begun = True
                yield state
                has_failed = app.health().state == "failed"
        except Exception as error:
            is_of_run = app.health().cause == str(error)  # and the log has it
            if isinstance(error, KeylanesError) and not (is_begun or is_of_run):
                logger.critical("%s does not start: %s", app.name, error)
            if is_server_told and multiprocessing.parent_process() is None:
                if has_failed:
                    _exit(getattr(error, "exit_code", 1))
                if not is_begun and isinstance(error, SettingsError | FatalError):
                    _exit(error.exit_code)
            if is_server_told and is_begun and is_of_run:
                return  # the server would log the error again
            if isinstance(error, KeylanesError):
                raise error.with_traceback(None) from None  # the message is complete, and the log has the cause
            raise

    return around


@asynccontextmanager
async def _inside(
    app: App, then: Callable[[Any], AbstractAsyncContextManager[Any]] | None, service: Any
) -> AsyncIterator[Any]:
    """The application at work, and within it the lifespan of the service's own."""
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
    """Enter ``inside`` in a task of its own. A fatal error cancels that task and spares the task of the server, which
    would hear no more when its connections are closed. The task holds ``inside`` open until then.
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

    holding = loop.create_task(hold())
    try:
        await asyncio.wait([holding, begun], return_when=asyncio.FIRST_COMPLETED)
        if begun.done():
            yield begun.result()
    finally:
        leave.set()
        if not begun.done():
            holding.cancel()
        await holding


def _exit(code: int) -> NoReturn:
    """End the process with a code. A server that a signal told to end would end with that signal."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # there is none, nobody reads it, it is closed
            stream.flush()
    os._exit(code)
