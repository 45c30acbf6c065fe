"""The access to a broker: its address, the client settings, and the limit of a question."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .brokers import AuditError, EmbeddedWitness, WitnessBroker
from .kafka import KafkaWitness
from .kafka_clients import API_TIMEOUT_MS


@dataclass(frozen=True, slots=True)
class Access:
    """The broker at ``kafka://host:port[,host:port]`` or ``embedded:folder``.

    ``security``: settings of the Kafka client such as ``security.protocol``. ``default_api_timeout_ms``: the limit of a
    question with all attempts, at all brokers, and the limit of a read that brings nothing.
    """

    url: str
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    default_api_timeout_ms: int = API_TIMEOUT_MS

    def open(self) -> WitnessBroker:
        """The broker; raises AuditError."""
        scheme, _, rest = self.url.partition(":")
        if scheme != "embedded" and "@" in self.url:
            raise AuditError(
                f"broker: an address holds no user and no password; seen {address_without_login(self.url)}: leave out "
                "what stands before the @, and give --client-settings FILE with sasl.username and sasl.password"
            )
        if scheme == "kafka" and rest.startswith("//") and len(rest) > 2:
            return KafkaWitness(rest[2:].rstrip("/"), self.security, self.default_api_timeout_ms / 1000)
        if scheme == "embedded" and rest:
            return EmbeddedWitness(Path(rest))
        raise AuditError(f"broker: expected kafka://host:port or embedded:folder; seen {self.url!r}")

    def options(self) -> dict[str, str]:
        """The access as options for Spark's readers. A folder is absolute: readers may run in another folder."""
        scheme, _, rest = self.url.partition(":")
        url = f"{scheme}:{Path(rest).resolve()}" if scheme == "embedded" and rest else self.url
        return {
            "broker": url,
            "client_secrets": json.dumps(dict(self.security)),
            "default_api_timeout_ms": str(self.default_api_timeout_ms),
        }


def address_without_login(url: str) -> str:
    """An address without the part before an ``@``: a user and a password."""
    user, at, place = url.rpartition("@")
    return f"***@{place}" if at and user else url


def parse_security(text: str) -> dict[str, str]:
    """Client settings from JSON or from lines ``name=value``; raises AuditError without showing a value."""
    if text.lstrip().startswith("{"):
        try:
            return {str(name): str(value) for name, value in json.loads(text).items()}
        except json.JSONDecodeError as error:
            raise AuditError(f"client settings: no JSON: line {error.lineno}") from None
    settings = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise AuditError(f"client settings: line {number}: expected name=value")
        settings[name.strip()] = value.strip()
    return settings
