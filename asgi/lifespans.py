"""The run of an application as the lifespan of a service."""

import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, TypeVar, overload

from ..errors import KeylanesError, SettingsError
from ..runtime.app import App

logger = logging.getLogger("keylanes")

T = TypeVar("T")


@overload
def lifespan(app: App, then: None = None) -> Callable[[Any], AbstractAsyncContextManager[None]]: ...
@overload
def lifespan(
    app: App, then: Callable[[Any], AbstractAsyncContextManager[T]]
) -> Callable[[Any], AbstractAsyncContextManager[T]]: ...
def lifespan(
    app: App, then: Callable[[Any], AbstractAsyncContextManager[Any]] | None = None
) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
    """The lifespan of a service with an application, as Starlette and others take one:
    ``FastAPI(lifespan=lifespan(app))``.

    The application works before the first request comes, and stops in order behind the last one. A fatal error ends the
    server, which would go on without the application: the process gets SIGTERM, as from a supervisor, and stops in
    order. A start that fails ends the server, too. The log has the reason.

    ``then``: a lifespan of the service's own. It begins when the application works, and ends before the stop; what it
    yields is the state of the service.
    """

    @asynccontextmanager
    async def around(service: Any) -> AsyncIterator[Any]:
        is_serving = False
        try:
            own = nullcontext() if then is None else _checked(then(service))
            async with app, own as state:
                is_serving = True
                yield state
                is_serving = False
        except Exception as error:
            if is_serving:
                _end_server()
            elif isinstance(error, KeylanesError) and app.health().cause != str(error):  # the run has not said it
                logger.critical("%s does not start: %s", app.name, error)
            if isinstance(error, KeylanesError):
                raise error.with_traceback(None) from None  # its text says all, and the log has its cause
            raise

    return around


def _checked(given: Any) -> AbstractAsyncContextManager[Any]:
    """A lifespan of the service's own; raises SettingsError."""
    if not isinstance(given, AbstractAsyncContextManager):
        raise SettingsError(
            "lifespan: then is a function of the service that returns an async context manager; seen one that returns "
            f"a value of type {type(given).__name__}: put @contextlib.asynccontextmanager above it"
        )
    return given


def _end_server() -> None:
    """Ask the server for its end. Where nobody handles the signal there is none, as in a test of the service."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        signal.raise_signal(signal.SIGTERM)
