"""Two requests to a Kafka server, without a client library (https://kafka.apache.org/protocol).

Metadata version 2, for no topics: do you serve yet, and for which cluster. An open port is not readiness: a broker
serves once the controller lists it. UnregisterBroker version 0, to a controller: forget a broker that has crashed.
"""

import socket
import struct

ANSWER_SECONDS_MAX = 2.0
ANSWER_BYTES_MAX = 1 << 20
_METADATA, _METADATA_VERSION = 3, 2
_UNREGISTER, _UNREGISTER_VERSION = 64, 0
_NOT_REGISTERED = 102


def answering_cluster(host: str, port: int, advertised_port: int) -> str:
    """The id of the cluster that serves there and lists a broker at ``advertised_port``; "" when none does (yet)."""
    try:
        answer = _ask(host, port, _METADATA, _METADATA_VERSION, struct.pack(">i", 0))
        return _cluster_of(answer, advertised_port)
    except (OSError, struct.error, ValueError):
        return ""


def unregister_broker(host: str, port: int, node: int) -> bool:
    """Ask a controller to forget a broker; whether it is forgotten. False: ask again, it is not in office yet."""
    try:
        # A flexible version: tagged fields, of which there are none, follow the header and the body.
        answer = _ask(host, port, _UNREGISTER, _UNREGISTER_VERSION, struct.pack(">bib", 0, node, 0))
        (code,) = struct.unpack_from(">h", answer, 4 + 1 + 4)  # correlation id, tags, throttle time
    except (OSError, struct.error, ValueError):
        return False
    return code in (0, _NOT_REGISTERED)


def _ask(host: str, port: int, kind: int, version: int, body: bytes) -> bytes:
    with socket.create_connection((host, port), timeout=ANSWER_SECONDS_MAX) as connection:
        client = b"keylanes"
        request = struct.pack(">hhih", kind, version, 1, len(client)) + client + body
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _receive(connection, 4))
        if not 4 <= size <= ANSWER_BYTES_MAX:
            raise ValueError(f"an answer of {size} bytes")
        return _receive(connection, size)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("closed in the middle of an answer")
        data += part
    return data


def _cluster_of(answer: bytes, advertised_port: int) -> str:
    """Parse correlation id, brokers (node, host, port, rack), cluster id; the rest is not needed."""
    (count,) = struct.unpack_from(">i", answer, 4)
    at, ports = 8, []
    for _ in range(count):
        (host_size,) = struct.unpack_from(">h", answer, at + 4)
        at += 6 + host_size
        (port, rack_size) = struct.unpack_from(">ih", answer, at)
        at += 6 + max(rack_size, 0)
        ports.append(port)
    (cluster_size,) = struct.unpack_from(">h", answer, at)
    if advertised_port not in ports or cluster_size <= 0:
        return ""
    return answer[at + 2 : at + 2 + cluster_size].decode("utf-8")
