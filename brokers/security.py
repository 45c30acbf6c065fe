"""The identity of a client, and the encryption of connections: TLS and SASL, and text that is never shown."""

import importlib.util
import inspect
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import msgspec

from ..errors import SettingsError
from .certificates import tls_context
from .options import Options, near

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
WITH_PASSWORD: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


TokenProvider: TypeAlias = Callable[[], Awaitable[str]]
"""Gets a token from the giver of tokens, and returns the token."""


def address_without_login(address: str) -> str:
    """An address without the user and the password in front of an ``@``."""
    user, at, place = address.rpartition("@")
    return f"***@{place}" if at and user else address


class Secret:
    """Text that logs, tracebacks of settings and events never show. Not a ``str``: encoders would write a ``str``."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise SettingsError(f"a secret is text; seen a {type(text).__name__}")
        self._text = text

    def __repr__(self) -> str:
        return "'***'"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def reveal(self) -> str:
        """The text itself, for the client library."""
        return self._text


class Security(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS and SASL, with the names of Kafka's clients.

    A new structure reads and tries the files; later connections read the files again. Raises SettingsError, also for
    settings that do not go together.
    """

    security_protocol: str = "PLAINTEXT"  # PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
    ssl_cafile: str | None = None  # CAs that may sign for the brokers (certificates in PEM); None: the system's CAs
    ssl_certfile: str | None = None  # our own certificate (PEM), for brokers that ask clients for a certificate
    ssl_keyfile: str | None = None  # the key of our certificate (PEM); None: ssl_certfile holds the key
    ssl_password: Secret | None = None  # the passphrase of the key
    sasl_mechanism: str = "PLAIN"  # PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, or GSSAPI (with package gssapi)
    sasl_plain_username: str | None = None  # for PLAIN and SCRAM
    sasl_plain_password: Secret | None = None  # for PLAIN and SCRAM
    sasl_oauth_token_provider: TokenProvider | None = None
    """For OAUTHBEARER: an async function without arguments that returns a token; not from the environment."""
    allow_plaintext: bool = False  # False: an unencrypted connection is refused to any address but loopback

    def __post_init__(self) -> None:
        for name in ("ssl_password", "sasl_plain_password"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Secret):
                msgspec.structs.force_setattr(self, name, Secret(value))
        super().__post_init__()
        _refuse_unknown("security_protocol", self.security_protocol, PROTOCOLS)
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise SettingsError(
                f"ssl_keyfile is the key of ssl_certfile; seen ssl_keyfile={self.ssl_keyfile!r} and no ssl_certfile: "
                "give both, or neither where brokers ask for no certificate"
            )
        if self.security_protocol.startswith("SASL_"):
            self._check_log_in()
        if self.is_encrypted:
            self.tls_context()

    @property
    def is_encrypted(self) -> bool:
        """Whether connections use TLS."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    def tls_context(self) -> ssl.SSLContext:
        """The context that encrypts connections, from the present files; raises SettingsError."""
        password = None if self.ssl_password is None else self.ssl_password.reveal()
        return tls_context(self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile, password)

    def _check_log_in(self) -> None:
        mechanism, provider = self.sasl_mechanism, self.sasl_oauth_token_provider
        _refuse_unknown("sasl_mechanism", mechanism, MECHANISMS)
        if mechanism == "GSSAPI" and importlib.util.find_spec("gssapi") is None:
            raise SettingsError(
                "sasl_mechanism 'GSSAPI' needs the package gssapi, which is not installed: pip install gssapi, or use "
                f"{', '.join(WITH_PASSWORD)}"
            )
        if mechanism == "OAUTHBEARER" and not inspect.iscoroutinefunction(provider):
            seen = "None" if provider is None else f"a {type(provider).__name__}"
            raise SettingsError(
                "sasl_mechanism 'OAUTHBEARER' needs a provider of tokens, an async function without arguments that "
                f"returns one as text; seen sasl_oauth_token_provider={seen}: give "
                "Security(sasl_oauth_token_provider=…)"
            )
        wanted = ("sasl_plain_username", "sasl_plain_password") if mechanism in WITH_PASSWORD else ()
        missing = [name for name in wanted if getattr(self, name) is None]
        if missing:
            raise SettingsError(
                f"security_protocol {self.security_protocol} with sasl_mechanism {self.sasl_mechanism} needs a user "
                f"and a password; seen no {' and no '.join(missing)}: give "
                f"Security({', '.join(f'{n}=…' for n in missing)}) or "
                f"set {', '.join(f'KEYLANES_{name.upper()}' for name in missing)}"
            )

    @property
    def principal(self) -> str | None:
        """The principal of this client for a cluster without mapping rules; None: only the cluster knows."""
        if self.security_protocol.startswith("SASL_"):
            return f"User:{self.sasl_plain_username}" if self.sasl_mechanism in WITH_PASSWORD else None
        is_named = self.security_protocol == "SSL" and self.ssl_certfile is not None
        return None if is_named else "User:ANONYMOUS"


def _refuse_unknown(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        meant = near(value.upper().replace("_", "-") if name == "sasl_mechanism" else value.upper(), allowed)
        raise SettingsError(
            f"{name} is {', '.join(allowed[:-1])} or {allowed[-1]}; seen {value!r}"
            + (f"; did you mean {meant}?" if meant else "; give one of these")
        )
