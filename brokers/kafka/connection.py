"""aiokafka's connection to one broker, with its log-in by token and its end mended. Nothing is sent in the clear to
another machine, unless that is allowed, log-ins have an order, and a log-in counts for the session that the broker
grants (``connections.max.reauth.ms``, or the life of the token): KIP-368.
"""

import asyncio
import math
from collections.abc import Awaitable
from typing import Any, Final

from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator
from aiokafka.protocol.admin import SaslAuthenticateRequest

from ..protocol import AuthenticationRefused
from . import inside
from .address import ALLOWING_PLAINTEXT, is_elsewhere
from .log_ins import LogIns

KVSEP: Final = b"\x01"
RENEWED_AT, UNUSED_AT = 0.7, 0.9
"""Shares of a session. At the first another connection is begun; from the second on nothing is asked on this one: the
broker closes it at a request that comes when the session is over.
"""


class _LogIn(OAuthAuthenticator):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's takes every answer for a yes. A broker that refuses a token says so in its answer, and waits for a
    byte before it ends the log-in with an error (RFC 7628, 3.2.3).
    """

    async def step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        """What is sent next; None: the log-in is over."""
        if payload:
            return KVSEP, True
        sent: tuple[bytes, bool] | None = await super().step(payload)
        return sent


class KafkaConnection(AIOKafkaConnection):  # type: ignore[misc]  # aiokafka has no types
    """See the module. ``attempt``: the limit of making it, of ``attempt_s``; to wait for a turn does not use it up.

    ``renewed_s``, ``unused_s``: when its session has come to these shares of it, by the loop's time. ``muted_until_s``:
    until then the broker reads nothing of it. ``limits``: of those who wait for an answer.
    """

    def __init__(
        self,
        *address: Any,
        log_ins: LogIns,
        allow_plaintext: bool,
        attempt: asyncio.Timeout,
        attempt_s: float,
        **arguments: Any,
    ) -> None:
        super().__init__(*address, **arguments)
        self._log_ins, self._allow_plaintext = log_ins, allow_plaintext
        self._attempt, self._attempt_s = attempt, attempt_s
        self._tokens = arguments.get("sasl_oauth_token_provider")
        self._is_encrypted = arguments.get("ssl_context") is not None
        self.renewed_s = self.unused_s = math.inf
        self.muted_until_s = 0.0
        self.limits: set[asyncio.Timeout] = set()

    async def _do_version_lookup(self) -> None:
        """The first that is sent. Raises AuthenticationRefused before it where nothing may be sent in the clear."""
        transport = inside.transport_of(self)
        place = transport.get_extra_info("peername") if transport is not None else None
        if not (self._is_encrypted or self._allow_plaintext or place is None) and is_elsewhere(str(place[0])):
            raise AuthenticationRefused(
                f"the cluster advertises {self.host}:{self.port}, which is another machine ({place[0]}), at a listener "
                f"of security_protocol {self._security_protocol}: that is not encrypted, which is allowed to this "
                f"machine only; {ALLOWING_PLAINTEXT}"
            )
        await super()._do_version_lookup()

    async def _do_sasl_handshake(self) -> None:
        """Log in, in its turn."""
        self._attempt.reschedule(None)
        async with self._log_ins.turn():
            self._attempt.reschedule(asyncio.get_running_loop().time() + self._attempt_s)
            await super()._do_sasl_handshake()

    def send(self, request: Any, expect_response: bool = True) -> Awaitable[Any]:  # aiokafka's
        """The answer to a request. One to a log-in tells how long it counts."""
        answer: Awaitable[Any] = super().send(request, expect_response)
        return self._logged_in(answer) if isinstance(request, SaslAuthenticateRequest) else answer

    def mute(self, seconds: float) -> None:
        """The broker throttles it: what was asked is answered so much later."""
        now_s = asyncio.get_running_loop().time()
        longer_s, self.muted_until_s = now_s + seconds - max(now_s, self.muted_until_s), now_s + seconds
        for limit in self.limits:
            extend(limit, longer_s)

    async def _logged_in(self, answering: Awaitable[Any]) -> Any:
        began_s = asyncio.get_running_loop().time()
        answer = await answering
        if session_s := getattr(answer, "session_lifetime_ms", 0) / 1000:
            self.renewed_s, self.unused_s = (began_s + session_s * share for share in (RENEWED_AT, UNUSED_AT))
        return answer

    def authenticator_oauth(self) -> Any:
        """The log-in by token."""
        return _LogIn(sasl_oauth_token_provider=self._tokens)

    def close(self, reason: Any = None, exc: BaseException | None = None) -> Any:
        """Close it, and what encrypts it at once: nothing is wanted of it any more. TLS would wait up to 30 s for the
        other side to say goodbye, and keep the transport until then: longer than the loop may live.
        """
        transport = inside.transport_of(self)
        closed = super().close(reason=reason, exc=exc)
        if self._is_encrypted and transport is not None:
            transport.abort()
        return closed


def extend(limit: asyncio.Timeout, seconds: float) -> None:
    """Let a limit end later, if it has not ended."""
    if (when := limit.when()) is not None and not limit.expired():
        limit.reschedule(when + seconds)
