"""aiokafka's connection to one broker, with a log-in by token and a mended end.

Nothing is sent in the clear to another machine without permission. Log-ins have an order. A log-in counts for the
session that the broker grants (``connections.max.reauth.ms``, or the life of the token): KIP-368.
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
"""Parts of a session. After the first part another connection is begun. After the second part no request is sent on
the old connection: the broker closes a connection at a request after the session.
"""


class _LogIn(OAuthAuthenticator):  # type: ignore[misc]  # aiokafka has no types
    """A log-in by token that notices refusals: aiokafka takes every answer for a yes. A broker that refuses a token
    says so in the answer, and waits for a byte before an error ends the log-in (RFC 7628, 3.2.3).
    """

    async def step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        """The next message to send; None: the log-in is over."""
        if payload:
            return KVSEP, True
        sent: tuple[bytes, bool] | None = await super().step(payload)
        return sent


class KafkaConnection(AIOKafkaConnection):  # type: ignore[misc]  # aiokafka has no types
    """A connection, see the module. ``attempt``: the limit for making the connection, of ``attempt_s``. The wait for a
    turn uses up nothing of the limit.

    ``renewed_s``, ``unused_s``: the times at which the parts ``RENEWED_AT`` and ``UNUSED_AT`` of the session are over,
    by the loop's clock. ``muted_until_s``: until then the broker reads nothing of the connection. ``limits``: the
    limits of callers that wait for an answer.
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
        self._log_ins = log_ins
        self._allow_plaintext = allow_plaintext
        self._attempt = attempt
        self._attempt_s = attempt_s
        self._tokens = arguments.get("sasl_oauth_token_provider")
        self._is_encrypted = arguments.get("ssl_context") is not None
        self.renewed_s = self.unused_s = math.inf
        self.muted_until_s = 0.0
        self.limits: set[asyncio.Timeout] = set()

    async def _do_version_lookup(self) -> None:
        """The first request. Raises AuthenticationRefused before the request where nothing may be sent in the clear."""
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
        """Log in, when the turn has come."""
        self._attempt.reschedule(None)
        async with self._log_ins.turn():
            self._attempt.reschedule(asyncio.get_running_loop().time() + self._attempt_s)
            await super()._do_sasl_handshake()

    def send(self, request: Any, expect_response: bool = True) -> Awaitable[Any]:  # aiokafka's
        """The answer to a request. The answer to a log-in tells how long the log-in counts."""
        answer: Awaitable[Any] = super().send(request, expect_response)
        return self._logged_in(answer) if isinstance(request, SaslAuthenticateRequest) else answer

    def mute(self, seconds: float) -> None:
        """The broker throttles the connection: open requests are answered so much later."""
        now_s = asyncio.get_running_loop().time()
        longer_s, self.muted_until_s = now_s + seconds - max(now_s, self.muted_until_s), now_s + seconds
        for limit in self.limits:
            extend(limit, longer_s)

    async def _logged_in(self, answering: Awaitable[Any]) -> Any:
        began_s = asyncio.get_running_loop().time()
        answer = await answering
        if session_s := getattr(answer, "session_lifetime_ms", 0) / 1000:
            self.renewed_s, self.unused_s = (began_s + session_s * part for part in (RENEWED_AT, UNUSED_AT))
        return answer

    def authenticator_oauth(self) -> Any:
        """The log-in by token."""
        return _LogIn(sasl_oauth_token_provider=self._tokens)

    def close(self, reason: Any = None, exc: BaseException | None = None) -> Any:
        """Close the connection, and the encryption at once: nothing more is needed. TLS would wait up to 30 s for the
        good-bye of the other side, and keep the transport until then: longer than the loop may live.
        """
        transport = inside.transport_of(self)
        closed = super().close(reason=reason, exc=exc)
        if self._is_encrypted and transport is not None:
            transport.abort()
        return closed


def extend(limit: asyncio.Timeout, seconds: float) -> None:
    """Let a limit end later, unless the limit has ended."""
    if (when := limit.when()) is not None and not limit.expired():
        limit.reschedule(when + seconds)
