"""Clients of librdkafka for one Kafka cluster, and the attempts of one question.

librdkafka keeps leaders and leader epochs for ever, and answers FENCED_LEADER_EPOCH after a leader has moved. Therefore
a new client asks again after an error. One attempt is short, because a hanging broker says nothing. All attempts
together have a limit.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .brokers import AuditError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError
    from confluent_kafka.admin import AdminClient

A = TypeVar("A")

API_TIMEOUT_MS: Final = 30_000
"""The limit of a question with all attempts, like ``default_api_timeout_ms`` of an application."""
ATTEMPT_S: Final = 4.0
"""The limit of an attempt, like ``request_timeout_ms`` of an application. Longer: nobody waits behind the audit."""
PAUSE_S_MAX: Final = 1.0

_PATIENT: Final = {
    "socket.timeout.ms": int(ATTEMPT_S * 1000),
    "socket.connection.setup.timeout.ms": int(ATTEMPT_S * 1000),
    "api.version.request.timeout.ms": int(ATTEMPT_S * 1000),
    "topic.metadata.refresh.interval.ms": int(ATTEMPT_S * 1000),
    "reconnect.backoff.ms": 500,
    "reconnect.backoff.max.ms": 1_000,
}
_PERMANENT: Final = frozenset(
    (
        "_AUTHENTICATION",
        "_AUTO_OFFSET_RESET",
        "_INVALID_ARG",
        "CLUSTER_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "OFFSET_OUT_OF_RANGE",
        "SASL_AUTHENTICATION_FAILED",
        "TOPIC_AUTHORIZATION_FAILED",
        "UNSUPPORTED_SASL_MECHANISM",
        "UNSUPPORTED_VERSION",
    )
)
"""Errors that another attempt does not cure."""
_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location")
_PROBE: Final = "probe"
"""In place of a file: the certificates that the machine trusts."""
_UNREACHED: Final = frozenset(("_ALL_BROKERS_DOWN", "_SSL", "_TIMED_OUT", "_TRANSPORT"))
_UNFIT: Final = ". Do the client settings (security.protocol, …) fit these brokers?"
_UNSECURED: Final = (
    ". Brokers that want TLS or a log-in may say no more than that: give --client-settings FILE (security.protocol=…), "
    "or MODULE:APP, whose security settings are used then"
)


class KafkaClients:
    """Makes the clients of one cluster. ``security`` holds client settings such as ``security.protocol``.

    ``api_timeout_s``: how long a question is asked again before an error, and how long a read may bring nothing.
    """

    def __init__(self, servers: str, security: Mapping[str, str], api_timeout_s: float) -> None:
        self.api_timeout_s = api_timeout_s
        self._servers = servers
        self._is_secured = "security.protocol" in security
        for name in _FILES:
            path = security.get(name, _PROBE)
            if path != _PROBE and not Path(path).exists():
                raise AuditError(f"client settings: {name}: no such file on this machine: {path}")
        self._common: dict[str, Any] = {
            **_PATIENT,
            **security,
            "bootstrap.servers": servers,
            "log_level": 2,
            "error_cb": self._hear,
        }
        user = security.get("sasl.username")
        self.principal = f"User:{user}" if user and security["security.protocol"].startswith("SASL_") else None
        """The client's name at the brokers, unless the brokers have rules of their own; None: only the brokers know."""
        self._admin: AdminClient | None = None
        self._heard: KafkaError | None = None
        """The last error of a connection: the error of a question says less."""

    def consumer(self, settings: Mapping[str, Any]) -> "Consumer":
        """A new consumer; raises AuditError."""
        from confluent_kafka import Consumer, KafkaException

        try:
            return Consumer({**self._common, **settings})
        except (KafkaException, ValueError) as error:
            raise AuditError(f"broker: wrong client settings: {error}") from None

    def admin_of(self, server: str) -> "AdminClient":
        """A new client that begins with one broker; raises AuditError."""
        return self._new_admin({"bootstrap.servers": server, "topic.metadata.refresh.interval.ms": -1})

    def _new_admin(self, settings: Mapping[str, Any]) -> "AdminClient":
        try:
            from confluent_kafka import KafkaException
            from confluent_kafka.admin import AdminClient
        except ImportError:
            raise AuditError("broker: reading Kafka needs the package confluent-kafka") from None
        try:
            return AdminClient({**self._common, **settings})
        except (KafkaException, ValueError) as error:
            raise AuditError(f"broker: wrong client settings: {error}") from None

    def close(self) -> None:
        """Let go of connections."""
        self._admin = None

    # --- questions -------------------------------------------------------------------------------------------------

    def ask(self, what: str, question: "Callable[[AdminClient, float], A]") -> A:
        """The answer to a question. After an error a new client asks again, up to the time limit. Raises AuditError.

        ``question`` has a client and the seconds of one attempt, and raises KafkaException.
        """
        from confluent_kafka import KafkaException

        self.forget_problems()
        asked_from, pause_s, limit_s = time.monotonic(), 0.1, 1.0  # short at first: a lasting error is heard soon
        while True:
            admin = self._admin = self._new_admin({}) if self._admin is None else self._admin
            try:
                return question(admin, limit_s)
            except KafkaException as error:
                admin.poll(0)
                self._admin = None
                self.may_go_on(error.args[0], asked_from, what)
            time.sleep(pause_s)
            pause_s, limit_s = min(2 * pause_s, PAUSE_S_MAX), min(2 * limit_s, ATTEMPT_S)

    # --- what went wrong -------------------------------------------------------------------------------------------

    def forget_problems(self) -> None:
        """Forget earlier errors of connections."""
        self._heard = None

    def _hear(self, error: "KafkaError") -> None:
        if self._heard is None or error.name() != "_ALL_BROKERS_DOWN":  # comes behind the cause
            self._heard = error

    def may_go_on(self, error: "KafkaError | None", silent_from: float, what: str) -> None:
        """Raises AuditError when another attempt does not help, or the time limit is over."""
        heard = self._heard
        causes = [cause for cause in (error, heard) if cause is not None]
        said = "; ".join(dict.fromkeys(cause.str() for cause in causes)) or "nothing came"
        if any(_is_permanent(cause) for cause in causes):
            raise AuditError(f"broker: {what}: {said}")
        if time.monotonic() - silent_from < self.api_timeout_s:
            return
        limit, hint = f"{self.api_timeout_s:.0f} s", ""
        if any(cause.name() in _UNREACHED for cause in causes[:1]):
            hint = _UNFIT if self._is_secured else _UNSECURED
        raise AuditError(f"broker: no answer from {self._servers} for {limit}: {what}: {said}{hint}")


def unread_of(admin: "AdminClient", topics: Sequence[str], limit_s: float) -> list[str]:
    """The topics that a client may not read, as far as the brokers tell; raises KafkaException."""
    from confluent_kafka import KafkaError, KafkaException, TopicCollection
    from confluent_kafka.admin import AclOperation

    if not topics:
        return []
    asked = admin.describe_topics(
        TopicCollection([*topics]), include_authorized_operations=True, request_timeout=limit_s
    )
    unread = []
    for name, answer in asked.items():
        try:
            allowed = answer.result().authorized_operations
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                unread.append(name)
            elif code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
        else:
            if allowed is not None and AclOperation.READ not in allowed:
                unread.append(name)
    return unread


def _is_permanent(error: "KafkaError") -> bool:
    # A stopping broker ends TLS handshakes, too: only a refused certificate is a lasting TLS error.
    return error.name() in _PERMANENT or (error.name() == "_SSL" and "verify failed" in error.str())
