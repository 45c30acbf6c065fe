"""Requests to a development cluster: its readiness, the removal of a broker, users, and access lists.

An open port is not readiness: a broker serves once the controller lists the broker. After a change each node is checked
for the change: a broker learns of the change a moment after the controller has answered.
"""

import hashlib
import os
import struct
from collections.abc import Collection
from typing import NamedTuple

from .jars import KafkaServerError
from .wire import NO_TAGS, Answer, Login, array, ask, text

_METADATA, _UNREGISTER = 3, 64
_DESCRIBE_ACLS, _CREATE_ACLS, _DELETE_ACLS, _ACLS_VERSION = 29, 30, 31, 3
_DESCRIBE_SCRAM, _ALTER_SCRAM = 50, 51
_NOT_REGISTERED = 102

RESOURCES = {"topic": 2, "group": 3, "cluster": 4, "transactional_id": 5}
PATTERNS = {"literal": 3, "prefixed": 4}
OPERATIONS = {
    "all": 2, "read": 3, "write": 4, "create": 5, "delete": 6, "alter": 7, "describe": 8, "cluster_action": 9,
    "describe_configs": 10, "alter_configs": 11, "idempotent_write": 12,
}  # fmt: skip
_ALLOW = 3
MECHANISMS = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}
ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 16_384


class Acl(NamedTuple):
    """An entry of the access list: ``Acl("app", "read", "topic", "orders")``. Names are Kafka's, in small letters.

    ``name`` of the cluster is ``kafka-cluster``; ``pattern``: literal or prefixed.
    """

    user: str
    operation: str
    resource: str
    name: str
    pattern: str = "literal"

    def to_bytes(self) -> bytes:
        """The entry in the form of the requests about access lists; also a filter for this entry alone."""
        return (
            struct.pack(">b", _check_known("resource", self.resource, RESOURCES))
            + text(self.name)
            + struct.pack(">b", _check_known("pattern", self.pattern, PATTERNS))
            + text(f"User:{self.user}")
            + text("*")
            + struct.pack(">bb", _check_known("operation", self.operation, OPERATIONS), _ALLOW)
            + NO_TAGS
        )


def _check_known(what: str, name: str, allowed: dict[str, int]) -> int:
    try:
        return allowed[name]
    except KeyError:
        raise ValueError(f"{what} is one of {', '.join(allowed)}; seen {name!r}") from None


def cluster_at(port: int, advertised_ports: Collection[int], login: Login | None = None) -> str:
    """The id of the cluster at this port that lists brokers at ``advertised_ports``; "" while no cluster does."""
    try:
        answer = ask(port, _METADATA, 2, struct.pack(">i", 0), login, is_flexible=False)
        missing = set(advertised_ports)
        for _ in range(answer.int32()):
            answer.int32()  # the node
            answer.plain_text()  # its host
            missing.discard(answer.int32())
            answer.plain_text()  # its rack
        return "" if missing else answer.plain_text()
    except (OSError, struct.error, ValueError, IndexError):
        return ""


def unregister_broker(port: int, node: int, login: Login | None) -> bool:
    """Ask a controller to forget a broker; returns whether the broker is forgotten. False: the controller is not the
    active one yet, ask again.
    """
    try:
        answer = ask(port, _UNREGISTER, 0, struct.pack(">i", node) + NO_TAGS, login)
        answer.int32()  # throttled for
        return answer.int16() in (0, _NOT_REGISTERED)
    except (OSError, struct.error, ValueError, IndexError):
        return False


def create_acls(port: int, acls: Collection[Acl], login: Login | None) -> None:
    """Add to the access list; raises KafkaServerError."""
    answer = _ask(port, _CREATE_ACLS, _ACLS_VERSION, array(acl.to_bytes() for acl in acls) + NO_TAGS, login)
    answer.int32()
    for _ in range(answer.count()):
        _raise_refusal(answer.int16(), answer.text())
        answer.tags()


def delete_acls(port: int, acls: Collection[Acl], login: Login | None) -> None:
    """Remove entries from the access list; raises KafkaServerError."""
    answer = _ask(port, _DELETE_ACLS, _ACLS_VERSION, array(acl.to_bytes() for acl in acls) + NO_TAGS, login)
    answer.int32()
    _raise_refusal(answer.int16() if answer.count() else 0, answer.text())


def has_acl(port: int, acl: Acl, login: Login | None) -> bool:
    """Whether a broker knows of an entry of the access list."""
    answer = _ask(port, _DESCRIBE_ACLS, _ACLS_VERSION, acl.to_bytes(), login)
    answer.int32()
    _raise_refusal(answer.int16(), answer.text())
    return answer.count() > 0


def set_password(port: int, user: str, password: str, mechanism: str, iterations: int, login: Login | None) -> None:
    """Make a SCRAM user, or change the password of a user; raises KafkaServerError."""
    number, hashed = MECHANISMS[mechanism]
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac(hashed, password.encode(), salt, iterations)
    change = text(user) + struct.pack(">bi", number, iterations) + text(salt) + text(salted) + NO_TAGS
    answer = _ask(port, _ALTER_SCRAM, 0, array([]) + array([change]) + NO_TAGS, login)
    answer.int32()
    for _ in range(answer.count()):
        answer.text()  # the user
        _raise_refusal(answer.int16(), answer.text())
        answer.tags()


def iterations_of(port: int, user: str, mechanism: str, login: Login | None) -> int:
    """The number of iterations of the password that a broker knows; 0: no password of this mechanism."""
    answer = _ask(port, _DESCRIBE_SCRAM, 0, array([text(user) + NO_TAGS]) + NO_TAGS, login)
    answer.int32()
    _raise_refusal(answer.int16(), answer.text())
    for _ in range(answer.count()):
        answer.text()  # the user
        answer.int16()  # none: unknown
        answer.text()
        for _ in range(answer.count()):
            number, iterations = answer.int8(), answer.int32()
            answer.tags()
            if number == MECHANISMS[mechanism][0]:
                return iterations
        answer.tags()
    return 0


def _ask(port: int, kind: int, version: int, body: bytes, login: Login | None) -> Answer:
    try:
        return ask(port, kind, version, body, login)
    except (OSError, ValueError) as error:
        raise KafkaServerError(f"the broker at port {port} does not answer: {error}") from error


def _raise_refusal(code: int, why: str) -> None:
    """Raise KafkaServerError for a Kafka error; code 0 means no error."""
    if code:
        raise KafkaServerError(f"the broker refused: Kafka error {code}{': ' if why else ''}{why}")
