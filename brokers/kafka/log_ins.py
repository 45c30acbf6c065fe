"""When the clients of a process may log in."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from ..protocol import AuthenticationRefused
from .connect_errors import LOG_IN_REFUSED
from .tokens import NoToken, Tokens

logger = logging.getLogger("keylanes")


class LogIns:
    """The order of log-ins. The first log-in is alone. After a success other log-ins go on side by side; after a
    refusal none begins: each further log-in may lock the account. ``tokens``: the source of the clients' tokens. After
    a refused token, a new token is asked for once.
    """

    def __init__(self, tokens: Tokens | None) -> None:
        self.refusal: AuthenticationRefused | None = None
        self.tokens = tokens
        self._has_succeeded = False
        self._token_is_new = False
        """A new token was asked for after a refusal, and no client has logged in with the new token."""
        self._first = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Around a log-in, which raises on failure. Raises the refusal of an earlier log-in; raises NoToken in place of
        the refusal of a token, if another token is to be tried.
        """
        async with nullcontext() if self._has_succeeded else self._first:
            if self.refusal is not None:
                raise self.refusal
            token_was_new = self._token_is_new
            try:
                yield
            except LOG_IN_REFUSED as error:
                if self.tokens is None or token_was_new:
                    raise
                if not self._token_is_new:  # others may have shown the same token
                    logger.warning("a token is refused, and another one asked for: %s", error)
                    self._token_is_new = True
                    self.tokens.forget()
                raise NoToken(f"the token was refused: {error}") from None
            self._has_succeeded = True
            # A log-in that began before a refusal showed the old token: its success says nothing of the new token.
            self._token_is_new = self._token_is_new and not token_was_new

    def refuse(self, refusal: AuthenticationRefused) -> None:
        """Note a refusal that no further try mends."""
        self.refusal = self.refusal or refusal
