"""When the clients of a process may log in."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from ..protocol import AuthenticationRefused
from .connecting import LOG_IN_REFUSED
from .tokens import NoToken, Tokens

logger = logging.getLogger("keylanes")


class LogIns:
    """The first log-in is alone. After it has succeeded others go on side by side; after a refusal none begins: each
    further one may lock the account. ``tokens``: where the clients have their tokens from. A token that is refused is
    asked for anew once.
    """

    def __init__(self, tokens: Tokens | None) -> None:
        self.refusal: AuthenticationRefused | None = None
        self.tokens = tokens
        self._has_succeeded = False
        self._is_anew = False
        """The token was asked for behind a refusal, and none has logged in with it."""
        self._first = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Around a log-in, which raises where it fails. Raises the refusal of an earlier one; NoToken in place of the
        refusal of a token, if another one is to be tried.
        """
        async with nullcontext() if self._has_succeeded else self._first:
            if self.refusal is not None:
                raise self.refusal
            was_anew = self._is_anew
            try:
                yield
            except LOG_IN_REFUSED as error:
                if self.tokens is None or was_anew:
                    raise
                if not self._is_anew:  # others may have shown the same one
                    logger.warning("a token is refused, and another one asked for: %s", error)
                    self._is_anew = True
                    self.tokens.forget()
                raise NoToken(f"the token was refused: {error}") from None
            self._has_succeeded = True
            self._is_anew = self._is_anew and not was_anew

    def refuse(self, refusal: AuthenticationRefused) -> None:
        """A broker refuses what no further try mends."""
        self.refusal = self.refusal or refusal
