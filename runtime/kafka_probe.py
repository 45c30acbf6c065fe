"""One question to a Kafka broker, without a client library: do you serve yet, and for which cluster.

An open port is not readiness: a broker serves once the controller lists it. The request is Metadata version 2 for no
topics (https://kafka.apache.org/protocol).
"""

import socket
import struct

ANSWER_SECONDS_MAX = 2.0
ANSWER_BYTES_MAX = 1 << 20
_METADATA, _VERSION = 3, 2


def answering_cluster(host: str, port: int, advertised_port: int) -> str:
    """The id of the cluster that serves there and lists a broker at ``advertised_port``; "" when none does (yet)."""
    try:
        with socket.create_connection((host, port), timeout=ANSWER_SECONDS_MAX) as connection:
            client = b"keylanes"
            request = struct.pack(">hhih", _METADATA, _VERSION, 1, len(client)) + client + struct.pack(">i", 0)
            connection.sendall(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", _receive(connection, 4))
            if not 4 <= size <= ANSWER_BYTES_MAX:
                return ""
            return _cluster_of(_receive(connection, size), advertised_port)
    except (OSError, struct.error, ValueError):
        return ""


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
