"""A real Apache Kafka of one node: a cluster of one, and how a program serves a cluster until told to stop."""

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from .cluster import KafkaCluster
from .jars import KafkaServerError, Progress
from .java import JavaHome
from .node import SMALL

_Served = TypeVar("_Served", bound=KafkaCluster)


class KafkaServer(KafkaCluster):
    """One broker in one folder.

    ``port`` 0 means the port of the last time, else a free port. With ``proxied_port`` the broker has a second
    listener, at ``proxied_listener_port``, for a proxy: the listener tells clients to come back to ``proxied_port``.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        port: int = 0,
        *,
        properties: Mapping[str, str] | None = None,
        proxied_port: int = 0,
        progress: Progress | None = None,
        java: JavaHome | None = None,
        java_options: Sequence[str] = SMALL,
    ) -> None:
        super().__init__(
            folder, 1, port=port, properties=properties, proxied_ports={1: proxied_port}, progress=progress, java=java,
            java_options=java_options,
        )  # fmt: skip

    @property
    def port(self) -> int:
        """The port of the listener; 0 before the first start without a chosen port."""
        return self.nodes[0].port

    @property
    def proxied_port(self) -> int:
        """The port of a proxy."""
        return self.nodes[0].proxied_port

    @property
    def proxied_listener_port(self) -> int:
        """The port for the proxy to connect to."""
        return self.nodes[0].proxied_listener_port

    @property
    def pid(self) -> int:
        """The broker's process id; 0 when the broker does not run."""
        return self.nodes[0].pid


def serve(cluster: _Served, on_ready: Callable[[_Served], None] | None = None) -> None:
    """Run a cluster until SIGTERM or SIGINT, then stop the cluster. For the main thread of a program of its own.

    Raises the errors of ``KafkaCluster.start``, and ``KafkaServerError`` when a broker ends by itself.
    """
    asked = threading.Event()
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        cluster.start()
        if on_ready is not None and not asked.is_set():
            on_ready(cluster)
        while not asked.wait(1.0):
            if not cluster.is_running():
                raise KafkaServerError(f"Apache Kafka ended by itself:\n{cluster.log_tail()}")
    finally:
        cluster.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
