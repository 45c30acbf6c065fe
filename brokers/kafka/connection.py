"""aiokafka's connection to one broker, with its log-in by token and its end mended. Nothing is sent in the clear to
another machine, unless that is allowed, and log-ins have an order.
"""

import asyncio
from typing import Any, Final

from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator

from ..protocol import AuthenticationRefused
from . import inside
from .address import ALLOWING_PLAINTEXT, is_elsewhere
from .log_ins import LogIns

KVSEP: Final = b"\x01"


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
    """See the module. ``attempt``: the limit of making it, of ``attempt_s``; to wait for a turn does not use it up."""

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
