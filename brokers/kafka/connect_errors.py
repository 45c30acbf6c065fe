"""The meaning of a failed connection to a broker, in words for people.

A refused log-in or certificate is refused again at each further try, and tries may lock an account: a refusal ends the
tries at once. After any other failure the broker may just be starting, and the tries go on.
"""

import ssl
from collections.abc import Iterator, Mapping
from typing import Any

import aiokafka.errors

from ..protocol import AuthenticationRefused
from .tokens import NoToken

LOG_IN_REFUSED = (
    aiokafka.errors.SaslAuthenticationFailed,
    aiokafka.errors.AuthenticationFailedError,
)
ALERTS_OF_CERTIFICATES = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
"""Parts of the names of TLS alerts by which a broker refuses the client's certificate, or the lack of a certificate."""


def log_in_of(arguments: Mapping[str, Any]) -> str:
    """The settings of a client's log-in for people to look at, without the values."""
    if arguments.get("sasl_mechanism") == "OAUTHBEARER":
        return "sasl_mechanism and what sasl_oauth_token_provider returns"
    user, password = (
        " (ends with white space)" if (text := arguments.get(name) or "") != text.rstrip() else ""
        for name in ("sasl_plain_username", "sasl_plain_password")
    )
    return f"sasl_mechanism, sasl_plain_username{user} and the password{password}"


def refusal_of(error: BaseException, server: str, log_in: str) -> AuthenticationRefused | None:
    """The refusal behind an error; None: another try may succeed. ``log_in``: see ``log_in_of``."""
    for cause in _chain(error):
        if isinstance(cause, NoToken):
            return None
        if isinstance(cause, AuthenticationRefused):
            return cause
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = cause.verify_message or str(cause)
            return AuthenticationRefused(
                f"the certificate of {server} is not trusted: {why}. ssl_cafile names the CA that signed it, and the "
                "address must be one that it was made for"
            )
        if isinstance(cause, ssl.SSLError) and any(word in (cause.reason or "") for word in ALERTS_OF_CERTIFICATES):
            return AuthenticationRefused(
                f"{server} refuses this client's certificate ({cause.reason}): ssl_certfile and ssl_keyfile name one "
                "that the brokers trust"
            )
        if isinstance(cause, LOG_IN_REFUSED):
            return AuthenticationRefused(f"{server} refuses the log-in: {_text_of_error(cause)}. Look at {log_in}")
        if isinstance(cause, aiokafka.errors.UnsupportedSaslMechanismError):
            return AuthenticationRefused(
                f"{server} does not offer this sasl_mechanism: give one that its brokers offer"
            )
        if isinstance(cause, aiokafka.errors.IllegalSaslStateError):
            return AuthenticationRefused(
                f"{server} takes no log-in: its port is one without SASL. Look at security_protocol and the port"
            )
    return None


def in_words(error: BaseException, server: str, security_protocol: str) -> str:
    """The reason for the lack of a connection, and the likely cause."""
    text = f"no connection to {server}: {_text_of_error(error)}"
    if any(isinstance(cause, ConnectionRefusedError | NoToken) for cause in _chain(error)):
        return text
    is_closed = isinstance(error, aiokafka.errors.KafkaConnectionError | EOFError)
    if security_protocol in ("SSL", "SASL_SSL"):
        if is_closed:
            return f"{text} (closed behind the TLS handshake: is this port one with SASL, or is a certificate missing?)"
        if not isinstance(error, OSError) or isinstance(error, ConnectionError | TimeoutError | ssl.SSLError):
            return f"{text} (no TLS handshake came about: is this port one without TLS?)"
    elif is_closed:
        return f"{text} (closed at the first request: is this port one with TLS or SASL?)"
    return text


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _text_of_error(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    return str(error) or repr(error)
