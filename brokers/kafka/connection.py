"""aiokafka's connection to one broker, with its log-in by token and its end mended."""

from typing import Any, Final

from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator

from . import inside

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
    """See the module."""

    def __init__(self, *address: Any, **arguments: Any) -> None:
        super().__init__(*address, **arguments)
        self._tokens = arguments.get("sasl_oauth_token_provider")
        self._is_encrypted = arguments.get("ssl_context") is not None

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
