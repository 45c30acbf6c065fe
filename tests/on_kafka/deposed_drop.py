"""Drops a member's connection to its transaction coordinator between AddPartitions and EndTxn. Runs in its namespace.

    python deposed_drop.py HOST OTHER

HOST is where brokers 2 and 3 stand, OTHER is broker 1. The program reads along what the member sends and receives:

    1  routes are set so that connections to HOST which are there go on, and no new one can be made
    2  AddPartitionsToTxn was answered without an error: its connection is destroyed (SOCK_DESTROY, as ``ss -K`` does)
    3  the member looks for its coordinator anew, and only broker 1 can be reached: EndTxn goes there, or nowhere
    4  after ``HOLD_S``, or when EndTxn was answered, the routes are as before

Between 2 and EndTxn lie some milliseconds, so this process comes before all others (SCHED_FIFO) and does little. Only
the standard library is used, and nothing of keylanes. Each step is a line on standard output. SIGTERM ends the program.
"""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

ADD_PARTITIONS, END = 24, 26
ETH_P_ALL: Final = 3
SOCK_DIAG, SOCK_DESTROY = 4, 21
NLM_F_REQUEST_ACK: Final = 5
ESTABLISHED: Final = "01"
HOLD_S, REST_S = 1.5, 1.5
"""So long no new connection can be made at most; and so long all is well before the next attempt."""
ARMED_S: Final = 5.0
"""So long an AddPartitions is waited for while no new connection can be made."""
KEPT, REFUSED = "100", "200"
"""Priorities of the routing rules: connections that go on, and all others."""


class Segment(NamedTuple):
    """A TCP segment with a payload; ``own`` and ``ours``: the member's address and port, ``host`` and ``theirs``: those
    of the other end.
    """

    is_sent: bool
    own: str
    ours: int
    host: str
    theirs: int
    payload: bytes


def parse(packet: bytes, is_sent: bool) -> Segment | None:
    """The segment in an IPv4 packet; None: no TCP, or no payload."""
    if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
        return None
    start, (total,) = (packet[0] & 15) * 4, struct.unpack_from(">H", packet, 2)
    source, target = struct.unpack_from(">HH", packet, start)
    payload = packet[start + (packet[start + 12] >> 4) * 4 : total]
    if not payload:
        return None
    ends = [(socket.inet_ntoa(packet[12:16]), source), (socket.inet_ntoa(packet[16:20]), target)]
    (own, ours), (host, theirs) = ends if is_sent else reversed(ends)
    return Segment(is_sent, own, ours, host, theirs, payload)


class Dialogue:
    """The requests of a kind that wait for their answers, by port of the member and the request's number."""

    def __init__(self, kind: int) -> None:
        self._kind = kind
        self._asked: set[tuple[int, int]] = set()

    def answered(self, segment: Segment) -> bool:
        """Hear a segment; whether a request of the kind is answered by it without an error.

        The error code stands last in the answers to AddPartitionsToTxn and EndTxn below their flexible versions.
        """
        payload = segment.payload
        if segment.is_sent:
            if len(payload) >= 12:
                _, kind, _, number = struct.unpack_from(">ihhi", payload)
                if kind == self._kind:
                    self._asked.add((segment.ours, number))
            return False
        if len(payload) < 10:
            return False
        asked = (segment.ours, struct.unpack_from(">i", payload, 4)[0])
        if asked not in self._asked:
            return False
        self._asked.discard(asked)
        return payload[-2:] == b"\0\0"


class Dropper:
    """Where ``host`` are the brokers that connections are dropped to, and ``other`` is the one that is left."""

    def __init__(self, host: str, other: str) -> None:
        self._host, self._other = host, other
        self._heard = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
        self._heard.settimeout(0.05)

    def run(self) -> None:
        """Drop, again and again."""
        while True:
            self._rest(REST_S)
            self._refuse()
            try:
                dropped = self._drop()
                if dropped:
                    self._watch(dropped)
            finally:
                self._permit()

    def _rest(self, seconds: float) -> None:
        """Read past what is heard meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._next()

    def _drop(self) -> float | None:
        """Wait for AddPartitions to be answered, and destroy its connection; when."""
        adding, until = Dialogue(ADD_PARTITIONS), time.monotonic() + ARMED_S
        while time.monotonic() < until:
            segment = self._next()
            if segment is not None and segment.host == self._host and adding.answered(segment):
                _destroy(segment)
                tell("dropped", broker=segment.theirs)
                return time.monotonic()
        tell("no AddPartitions was answered")
        return None

    def _watch(self, began: float) -> None:
        """Tell what becomes of EndTxn."""
        ending = Dialogue(END)
        while time.monotonic() < began + HOLD_S:
            segment = self._next()
            if segment is None:
                continue
            if segment.host == self._other and ending.answered(segment):
                tell("EndTxn was answered by broker 1 without an error", after_ms=_ms_since(began))
                return
            if segment.host == self._host and ending.answered(segment):
                tell("EndTxn was answered by another broker: too late", after_ms=_ms_since(began))
                return
        tell("EndTxn had no good answer")

    def _next(self) -> Segment | None:
        try:
            packet, address = self._heard.recvfrom(65_535)
        except TimeoutError:
            return None
        return parse(packet, address[2] == socket.PACKET_OUTGOING)

    def _refuse(self) -> None:
        """No new connection to ``host`` can be made."""
        rules = [f"rule add priority {KEPT} ipproto tcp sport {port} lookup main"
                 for port in _ports(self._host)]  # fmt: skip
        _ip([*rules, f"rule add priority {REFUSED} to {self._host}/32 unreachable"])

    def _permit(self) -> None:
        _ip([f"rule del priority {REFUSED}", *[f"rule del priority {KEPT}"] * _rules_kept()])


def _ports(host: str) -> list[int]:
    """Our ports of established connections to a host."""
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, ours, theirs, state, *_ = line.split()
            if state == ESTABLISHED and _endpoint(theirs)[0] == host:
                found.append(_endpoint(ours)[1])
    return found


def _endpoint(text: str) -> tuple[str, int]:
    """An address of /proc/net/tcp: the last four bytes are those of IPv4, in the order of the machine."""
    address, port = text.split(":")
    return socket.inet_ntoa(struct.pack("=I", int(address[-8:], 16))), int(port, 16)


def _destroy(segment: Segment) -> None:
    """Destroy a connection: the member has an error at once, and the broker a reset (linux/inet_diag.h)."""
    ends = socket.inet_aton(segment.own).ljust(16, b"\0") + socket.inet_aton(segment.host).ljust(16, b"\0")
    wanted = struct.pack(">HH", segment.ours, segment.theirs) + ends + struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
    body = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + wanted
    head = struct.pack("=IHHII", 16 + len(body), SOCK_DESTROY, NLM_F_REQUEST_ACK, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as kernel:
        kernel.send(head + body)
        (code,) = struct.unpack_from("=i", kernel.recv(4_096), 16)
    if code:
        tell("the connection was not destroyed", error=code)


def _rules_kept() -> int:
    answer = subprocess.run(["ip", "rule", "list", "priority", KEPT], capture_output=True, text=True, check=False)
    return len(answer.stdout.splitlines())


def _ip(commands: list[str]) -> None:
    done = subprocess.run(
        ["ip", "-force", "-batch", "-"], input="\n".join(commands), capture_output=True, text=True, check=False
    )
    if done.returncode:
        tell("routes were not set", error=done.stderr.strip()[-200:])


def _ms_since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


def tell(what: str, **more: object) -> None:
    """A line for the program that started this one."""
    sys.stdout.write(json.dumps({"what": what, **more}) + "\n")
    sys.stdout.flush()


def _end(_number: int, _frame: object) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    Dropper(*sys.argv[1:3]).run()
