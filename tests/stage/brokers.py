"""Brokers that know different things: as much of Kafka's protocol as librdkafka needs to ask for offsets.

Each broker answers by its own belief of who leads the one partition of each topic, as a real one does: a broker that
was deposed and is cut off names itself for ever.
"""

import contextlib
import socketserver
import struct
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Self

from keylanes.devkafka.ports import HOST, free_port
from keylanes.devkafka.wire import NO_TAGS, Answer, array, text

LIST_OFFSETS, METADATA, API_VERSIONS, DESCRIBE_CONFIGS = 2, 3, 18, 32
_VERSIONS = {LIST_OFFSETS: 4, METADATA: 9, API_VERSIONS: 0, DESCRIBE_CONFIGS: 1}
_NOT_LEADER, _UNSUPPORTED, _FENCED_EPOCH, _UNKNOWN_EPOCH = 6, 35, 74, 75
_EARLIEST = -2
TOPIC = "late"


@dataclass
class Belief:
    """What a broker knows of the partition. ``stable``: the last stable offset, where it is not ``end``."""

    leader: int
    epoch: int
    end: int
    stable: int | None = None


@dataclass
class Brokers:
    """Brokers 1, 2, … that all keep the partition, by what each believes. ``in_sync_min`` None: it is not shown."""

    beliefs: dict[int, Belief]
    in_sync_min: int | None = 2
    replicas: tuple[int, ...] = ()
    silent: set[int] = field(default_factory=set)
    """Those that close each connection."""

    def __post_init__(self) -> None:
        self.replicas = self.replicas or tuple(self.beliefs)
        self.ports = {node: free_port() for node in self.beliefs}
        self.seen: Counter[int] = Counter()
        """Requests by kind."""
        self._servers: list[socketserver.ThreadingTCPServer] = []

    def server(self, node: int) -> str:
        """The address of one of them."""
        return f"{HOST}:{self.ports[node]}"

    def __enter__(self) -> Self:
        for node, port in self.ports.items():
            server = _Server((HOST, port), type("Handler", (_Handler,), {"brokers": self, "node": node}))
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            self._servers.append(server)
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def answer(self, node: int, kind: int, version: int, body: Answer) -> bytes:
        """The answer of a broker, behind the number of the request."""
        self.seen[kind] += 1
        if kind == API_VERSIONS:
            return _api_versions(version)
        return {METADATA: self._metadata, LIST_OFFSETS: self._offsets, DESCRIBE_CONFIGS: self._configs}[kind](
            node, body
        )

    def _metadata(self, node: int, _body: Answer) -> bytes:
        belief = self.beliefs[node]
        brokers = array(
            struct.pack(">i", number) + text(HOST) + struct.pack(">i", port) + text(None) + NO_TAGS
            for number, port in self.ports.items()
        )
        kept = array(struct.pack(">i", number) for number in self.replicas)
        partition = struct.pack(">hiii", 0, 0, belief.leader, belief.epoch) + kept + kept + array(()) + NO_TAGS
        topic = struct.pack(">h", 0) + text(TOPIC) + b"\0" + array([partition]) + struct.pack(">i", 0) + NO_TAGS
        cluster = text("cluster") + struct.pack(">i", node)
        return NO_TAGS + struct.pack(">i", 0) + brokers + cluster + array([topic]) + struct.pack(">i", 0) + NO_TAGS

    def _offsets(self, node: int, body: Answer) -> bytes:
        belief = self.beliefs[node]
        body.int32()
        is_committed = body.int8() == 1
        assert (body.int32(), body.plain_text(), body.int32(), body.int32()) == (1, TOPIC, 1, 0)
        epoch, time = body.int32(), body.int32() << 32 | body.int32() & 0xFFFFFFFF
        code = _refusal(node, belief, epoch)
        end = belief.end if not is_committed or belief.stable is None else belief.stable
        offset = -1 if code else 0 if time == _EARLIEST else end
        row = struct.pack(">ihqqi", 0, code, -1, offset, -1 if code else belief.epoch)
        return struct.pack(">ii", 0, 1) + _plain(TOPIC) + struct.pack(">i", 1) + row

    def _configs(self, _node: int, _body: Answer) -> bytes:
        head = (
            struct.pack(">iih", 0, 1, 29 if self.in_sync_min is None else 0) + struct.pack(">hb", -1, 2) + _plain(TOPIC)
        )
        if self.in_sync_min is None:
            return head + struct.pack(">i", 0)
        entry = _plain("min.insync.replicas") + _plain(str(self.in_sync_min)) + struct.pack(">bbbi", 0, 1, 0, 0)
        return head + struct.pack(">i", 1) + entry


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True
    block_on_close = False


class _Handler(socketserver.StreamRequestHandler):
    brokers: Brokers
    node: int

    def handle(self) -> None:
        """One connection, to its end."""
        with contextlib.suppress(OSError, struct.error):
            while self.node not in self.brokers.silent:
                (size,) = struct.unpack(">i", self.rfile.read(4))
                frame = self.rfile.read(size)
                kind, version, number, named = struct.unpack_from(">hhih", frame)
                body = Answer(frame[10 + max(named, 0) :])
                answer = self.brokers.answer(self.node, kind, version, body)
                self.wfile.write(struct.pack(">ii", 4 + len(answer), number) + answer)


def _api_versions(version: int) -> bytes:
    """All of version 0: a client that asks in a newer one asks again."""
    rows = b"".join(struct.pack(">hhh", kind, 0 if kind != METADATA else 9, top) for kind, top in _VERSIONS.items())
    return struct.pack(">hi", _UNSUPPORTED if version else 0, len(_VERSIONS)) + rows


def _refusal(node: int, belief: Belief, epoch: int) -> int:
    """Why a broker tells no offset; 0: it does."""
    if belief.leader != node:
        return _NOT_LEADER
    if epoch in (-1, belief.epoch):
        return 0
    return _FENCED_EPOCH if epoch < belief.epoch else _UNKNOWN_EPOCH


def _plain(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()
