"""Requests to a Kafka server without a client library (https://kafka.apache.org/protocol): a connection per request.

The login of a listener with authentication is SASL PLAIN. Numbers are big-endian; in *flexible* versions lengths are
varints that are too large by 1 (0: null), and tagged fields follow each structure; here none are used.
"""

import socket
import struct
from collections.abc import Iterable
from typing import NamedTuple

from .ports import HOST

ANSWER_SECONDS_MAX = 5.0
ANSWER_BYTES_MAX = 1 << 20
NO_TAGS = b"\0"
_SASL_HANDSHAKE, _SASL_AUTHENTICATE = 17, 36


class Login(NamedTuple):
    """A user and the password, for SASL PLAIN."""

    user: str
    password: str


class Answer:
    """The bytes of an answer, read from front to back; raises ``struct.error`` or ``IndexError`` behind the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _number(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return int(value)

    def int8(self) -> int:
        """A byte with a sign."""
        return self._number(">b")

    def int16(self) -> int:
        """Two bytes, as in error codes."""
        return self._number(">h")

    def int32(self) -> int:
        """Four bytes."""
        return self._number(">i")

    def count(self) -> int:
        """The number of following entries in a flexible version; also the length of a text."""
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return max(value - 1, 0)

    def text(self) -> str:
        """A text in a flexible version; "" for null."""
        return self._take(self.count())

    def plain_text(self) -> str:
        """A text in a version that is not flexible; "" for null."""
        return self._take(max(self.int16(), 0))

    def tags(self) -> None:
        """Pass over the number of tagged fields; raises ValueError when the answer has tagged fields here."""
        # This number is not too large by 1, unlike other lengths: ``count`` returns 0 for one field, too.
        if self.count() or self._data[self._at - 1]:
            raise ValueError("tagged fields in an answer")

    def _take(self, size: int) -> str:
        start, self._at = self._at, self._at + size
        return self._data[start : self._at].decode("utf-8", "replace")


def varint(value: int) -> bytes:
    """A number without a sign, seven bits to a byte."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def text(value: str | bytes | None) -> bytes:
    """A text, or bytes, in a flexible version."""
    if value is None:
        return varint(0)
    data = value.encode() if isinstance(value, str) else value
    return varint(len(data) + 1) + data


def array(entries: Iterable[bytes]) -> bytes:
    """Entries in a flexible version."""
    found = list(entries)
    return varint(len(found) + 1) + b"".join(found)


def ask(
    port: int, kind: int, version: int, body: bytes, login: Login | None = None, *, is_flexible: bool = True
) -> Answer:
    """Send a request to a server on this machine; its answer, behind the header. Raises OSError and ValueError."""
    with socket.create_connection((HOST, port), timeout=ANSWER_SECONDS_MAX) as connection:
        if login is not None:
            _log_in(connection, login)
        answer = _exchange(connection, kind, version, (NO_TAGS if is_flexible else b"") + body)
    if is_flexible:
        answer.tags()
    return answer


def _log_in(connection: socket.socket, login: Login) -> None:
    mechanism = b"PLAIN"
    code = _exchange(connection, _SASL_HANDSHAKE, 1, struct.pack(">h", len(mechanism)) + mechanism).int16()
    if code == 0:
        told = f"\0{login.user}\0{login.password}".encode()
        code = _exchange(connection, _SASL_AUTHENTICATE, 0, struct.pack(">i", len(told)) + told).int16()
    if code:
        raise PermissionError(f"{login.user} can't log in at port {connection.getpeername()[1]}: Kafka error {code}")


def _exchange(connection: socket.socket, kind: int, version: int, body: bytes) -> Answer:
    client = b"keylanes"
    request = struct.pack(">hhih", kind, version, 1, len(client)) + client + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _receive(connection, 4))
    if not 4 <= size <= ANSWER_BYTES_MAX:
        raise ValueError(f"an answer of {size} bytes")
    answer = Answer(_receive(connection, size))
    answer.int32()  # the request's number
    return answer


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("closed in the middle of an answer")
        data += part
    return data
