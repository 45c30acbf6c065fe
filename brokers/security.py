"""How a client proves who it is, and who may listen: TLS and SASL, and text that never shows itself."""

import msgspec

from ..errors import SettingsError


class Secret:
    """Text that never shows itself in logs, tracebacks of settings, or events. No ``str``: encoders would write it."""

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


class Security(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS and SASL, named as Kafka's clients name them."""

    security_protocol: str = "PLAINTEXT"
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_password: Secret | None = None
    sasl_mechanism: str = "PLAIN"
    sasl_plain_username: str | None = None
    sasl_plain_password: Secret | None = None
    allow_plaintext: bool = False
    """Without it, an unencrypted connection is refused to any address but loopback."""

    def __post_init__(self) -> None:
        for name in ("ssl_password", "sasl_plain_password"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Secret):
                msgspec.structs.force_setattr(self, name, Secret(value))
