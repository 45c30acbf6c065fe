"""Ports of the loopback interface, where a development broker listens."""

import random
import socket
from collections.abc import Collection

HOST = "127.0.0.1"
PORTS = range(15_000, 32_000)
"""Below the ports that the system gives to outgoing connections: a connection may take the port of a node that is down,
and the node could not come back.
"""
TRIES = 200


def is_free(port: int) -> bool:
    """Whether the port has no listener."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(taken: Collection[int] = ()) -> int:
    """A port without a listener now, not in ``taken``; a port of the system's choice when ``PORTS`` has none."""
    chance = random.SystemRandom()
    for _ in range(TRIES):
        port = chance.choice(PORTS)
        if port not in taken and is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        found: int = probe.getsockname()[1]
        return found
