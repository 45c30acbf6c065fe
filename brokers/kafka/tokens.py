"""Tokens for SASL/OAUTHBEARER: asked for when there is no token, or when the present token will soon be too old.

Each new connection shows a token. Another connection takes over before the token is too old.
"""

import asyncio
import base64
import binascii
import json
from collections.abc import Callable
from typing import Final

import aiokafka.errors
from aiokafka.abc import AbstractTokenProvider

from ..protocol import AuthenticationRefused
from ..security import TokenProvider

REFRESH_SHARE: Final = 0.2
"""A new token is asked for when so much of the life of a token is left; clocks differ, and a log-in takes time."""
ASKED_S_MAX: Final = 10.0
"""A call of the user's function may take so long."""


class NoToken(aiokafka.errors.KafkaConnectionError):  # type: ignore[misc]  # aiokafka has no types
    """No token is there for a log-in now. The connection is tried again."""


class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """The provider for aiokafka's log-ins. ``now_s``: the time since the epoch, as in the dates of tokens."""

    def __init__(self, provider: TokenProvider, now_s: Callable[[], float]) -> None:
        self._provider = provider
        self._now_s = now_s
        self._token = ""
        self._good_until_s = 0.0
        self._turn = asyncio.Lock()  # one caller asks for a token, the others get the same token

    def forget(self) -> None:
        """Ask for a new token at the next log-in: the present token was refused."""
        self._good_until_s = 0.0

    async def token(self) -> str:
        """A token that is good for a while. Raises AuthenticationRefused for a value that is no token, NoToken when the
        provider gives none.
        """
        async with self._turn:
            if self._now_s() < self._good_until_s:
                return self._token
            try:
                async with asyncio.timeout(ASKED_S_MAX):
                    token = await self._provider()
            except Exception as error:  # noqa: BLE001  # the user's function may raise anything
                said = f"no answer for {ASKED_S_MAX:.0f} s" if isinstance(error, TimeoutError) else repr(error)
                raise NoToken(f"sasl_oauth_token_provider gives no token: {said}") from None
            if not isinstance(token, str) or not token:
                seen = "no text" if token == "" else f"a {type(token).__name__}"
                raise AuthenticationRefused(
                    f"sasl_oauth_token_provider returns a token as text; seen {seen}: return what the server of tokens "
                    "gave"
                )
            now_s = self._now_s()
            expires_s = expiry_of(token)
            self._token = token
            self._good_until_s = 0.0 if expires_s is None else now_s + (expires_s - now_s) * (1 - REFRESH_SHARE)
            return token


def expiry_of(token: str) -> float | None:
    """The expiry of a JSON web token, in seconds since the epoch (RFC 7519, exp); None: not told, or no web token."""
    parts = token.split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error):
        return None
