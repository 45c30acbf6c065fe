"""When the clients of a process may log in."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..protocol import AuthenticationRefused
from .tokens import Tokens


class LogIns:
    """The first log-in is alone. After it has succeeded others go on side by side; after a refusal none begins: each
    further one may lock the account. ``tokens``: where the clients have their tokens from. A token that is refused is
    asked for anew once.
    """

    def __init__(self, tokens: Tokens | None) -> None:
        self.refusal: AuthenticationRefused | None = None
        self._tokens = tokens
        self._has_succeeded = self._has_asked_anew = False
        self._first = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Around a log-in, which raises where it fails. Raises the refusal of an earlier one."""
        if self._has_succeeded:
            yield
            self._has_asked_anew = False
            return
        async with self._first:
            if self.refusal is not None:
                raise self.refusal
            yield
            self._has_succeeded = True

    def refused(self, refusal: AuthenticationRefused) -> AuthenticationRefused | None:
        """A log-in was refused; None: another one may try, with another token."""
        if self._tokens is not None and not self._has_asked_anew:
            self._has_asked_anew = True
            self._tokens.forget()
            return None
        self.refusal = self.refusal or refusal
        return self.refusal
