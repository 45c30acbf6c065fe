"""Drops a member's connection to its transaction coordinator between AddPartitions and EndTxn. Runs in its namespace.

    python deposed_drop.py HOST OTHER

HOST is where brokers 2 and 3 stand, OTHER is broker 1, which was deposed and coordinated so far. The program hears the
packets of the member, sets routes, and destroys connections (SOCK_DESTROY, as ``ss -K`` does):

    1  connections to OTHER are destroyed, and no new one can be made: the member finds its coordinator at HOST
    2  AddPartitionsToTxn is sent there: from here on no new connection to HOST can be made, but to OTHER again
    3  AddPartitionsToTxn was answered without an error, and Produce is sent: the coordinator's connection is destroyed
    4  the member looks for its coordinator anew, and only OTHER can be reached: EndTxn goes there, or nowhere. Once
       Produce is answered, all connections to HOST are destroyed, or brokers 2 and 3 would name their coordinator
    5  after ``HOLD_S``, or when EndTxn was answered, all connections can be made

This is done once: OTHER knows the member's producer only while no transaction was open before. INIT at HOST gives a new
epoch, and OTHER then says that this producer is fenced. Between Produce and EndTxn lie some milliseconds, so this
process comes before all others (SCHED_FIFO) and does little. Only the standard library is used. Each deed is a line on
standard output. SIGTERM ends the program.
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

PRODUCE, ADD_PARTITIONS, END = 0, 24, 26
"""Kinds of requests."""
ETH_P_ALL: Final = 3
SOCK_DIAG, SOCK_DESTROY = 4, 21
NLM_F_REQUEST_ACK: Final = 5
ESTABLISHED: Final = "01"
HOLD_S: Final = 4.0
"""So long step 4 lasts at most."""
PRODUCED_S: Final = 0.3
"""So long after the drop Produce is answered."""
ARMED_S: Final = 30.0
"""So long steps 2 and 3 are waited for."""
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
    """Requests of one kind without an answer yet, by port of the member and number of the request."""

    def __init__(self, kind: int) -> None:
        self._kind = kind
        self._asked: set[tuple[int, int]] = set()

    def asks(self, segment: Segment) -> bool:
        """Hear a segment; whether a request of the kind begins in it."""
        if not segment.is_sent or len(segment.payload) < 12:
            return False
        _, kind, _, number = struct.unpack_from(">ihhi", segment.payload)
        if kind != self._kind:
            return False
        self._asked.add((segment.ours, number))
        return True

    def code(self, segment: Segment) -> int | None:
        """Hear a segment; the error code when it answers a request of the kind, else None.

        The code stands last in the answers to AddPartitionsToTxn and EndTxn below their flexible versions.
        """
        if segment.is_sent or len(segment.payload) < 10:
            return None
        asked = (segment.ours, struct.unpack_from(">i", segment.payload, 4)[0])
        if asked not in self._asked:
            return None
        self._asked.discard(asked)
        (code,) = struct.unpack(">h", segment.payload[-2:])
        return int(code)


class Dropper:
    """Connections to ``host`` are dropped; ``other`` can be reached."""

    def __init__(self, host: str, other: str) -> None:
        self._host, self._other = host, other
        self._heard = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
        self._heard.settimeout(0.05)

    def run(self) -> None:
        """Drop one connection."""
        try:
            self._leave_other()
            if self._drop():
                self._watch()
        finally:
            self._permit()

    def _leave_other(self) -> None:
        """Step 1."""
        _ip([f"rule add priority {REFUSED} to {self._other}/32 unreachable"])
        for segment in _connections(self._other):
            _destroy(segment)

    def _drop(self) -> bool:
        """Steps 2 and 3; whether a connection was dropped."""
        adding, producing, until = Dialogue(ADD_PARTITIONS), Dialogue(PRODUCE), time.monotonic() + ARMED_S
        is_swapped, answered = False, None
        while time.monotonic() < until:
            segment = self._next()
            if segment is None or segment.host != self._host:
                continue
            if adding.asks(segment) and not is_swapped:
                self._leave_host()
                is_swapped = True
            if adding.code(segment) == 0:
                answered = segment
            if answered is not None and producing.asks(segment):
                _destroy(answered)
                tell("dropped")
                return True
        tell("no AddPartitions was answered")
        return False

    def _leave_host(self) -> None:
        """Let connections to ``host`` go on and refuse new ones; permit new connections to ``other``."""
        ports = {one.ours for one in _connections(self._host)}
        kept = [f"rule add priority {KEPT} ipproto tcp sport {port} lookup main" for port in ports]
        refused = f"rule add priority {REFUSED} to {self._host}/32 unreachable"
        _ip([f"rule del priority {REFUSED}", *kept, refused])

    def _watch(self) -> None:
        """Step 4: tell the fate of EndTxn."""
        ending, began, is_cut = Dialogue(END), time.monotonic(), False
        while time.monotonic() < began + HOLD_S:
            if time.monotonic() > began + PRODUCED_S and not is_cut:
                for one in _connections(self._host):
                    _destroy(one)
                is_cut = True
            if (segment := self._next()) is None or ending.asks(segment):
                continue
            if (code := ending.code(segment)) is not None:
                who = "broker 1, which was deposed," if segment.host == self._other else "another broker"
                tell(f"EndTxn: {who} answered {code}")
                return
        tell("EndTxn had no answer")

    def _next(self) -> Segment | None:
        try:
            packet, address = self._heard.recvfrom(65_535)
        except TimeoutError:
            return None
        return parse(packet, address[2] == socket.PACKET_OUTGOING)

    def _permit(self) -> None:
        _ip([f"rule del priority {REFUSED}", *[f"rule del priority {KEPT}"] * _rules_kept()])


def _connections(host: str) -> list[Segment]:
    """Established connections to a host, each as a segment without a payload."""
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, ours, theirs, state, *_ = line.split()
            other, port = _endpoint(theirs)
            if state == ESTABLISHED and other == host:
                found.append(Segment(True, *_endpoint(ours), other, port, b""))
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
