"""The network of the deposed leader: broker 1 and each member in a network namespace of its own, and links to cut.

    this namespace   brokers 2 and 3, the loader, the judge
    kldp-1           broker 1: one link to its peers, one to clients here, one to each member
    kldp-a …         a member: one link to brokers 2 and 3, one to broker 1

All addresses are 10.214.*.*, of links between the namespaces: nothing leaves the machine. A cut link drops all packets
at both ends without a word: a queue of length 0 stands before each end.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Final

PREFIX: Final = "kldp"
BROKER: Final = f"{PREFIX}-1"
PEERS: Final = ("10.214.1.1", "10.214.1.2")
"""Where brokers 2 and 3 stand for their peers, and broker 1."""
CLIENTS: Final = ("10.214.2.1", "10.214.2.2")
"""The same for clients. All clients use these addresses, over different links."""
TOOLS: Final = ("ip", "tc", "ss", "setpriv")
END_S: Final = 5.0


class NotPossible(Exception):
    """Network namespaces can't be made here; the message says the reason."""


class Cable:
    """A link between two namespaces; "" is the namespace of this program. Both ends are named after ``name``."""

    def __init__(self, name: str, ends: tuple[str, str], addresses: tuple[str, str]) -> None:
        self.name, self._ends, self._addresses = name, ends, addresses

    def make(self) -> None:
        """Lay the link: both ends have their addresses and are up."""
        devices = self._devices
        run("ip", "link", "add", devices[0], "type", "veth", "peer", "name", devices[1])
        for device, namespace, address in zip(devices, self._ends, self._addresses, strict=True):
            if namespace:
                run("ip", "link", "set", device, "netns", namespace)
            run("ip", "addr", "add", f"{address}/24", "dev", device, inside=namespace)
            run("ip", "link", "set", device, "up", inside=namespace)

    def cut(self) -> None:
        """Let nothing pass from here on. No end is told."""
        for device, namespace in zip(self._devices, self._ends, strict=True):
            run("tc", "qdisc", "replace", "dev", device, "root", "pfifo", "limit", "0", inside=namespace)

    def mend(self) -> None:
        """Let all pass again. Nothing happens to a whole link."""
        for device, namespace in zip(self._devices, self._ends, strict=True):
            command = _inside(namespace, ["tc", "qdisc", "del", "dev", device, "root"])
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    @property
    def _devices(self) -> tuple[str, str]:
        return f"{PREFIX}{self.name}0", f"{PREFIX}{self.name}1"


class Network:
    """All namespaces and links. ``members``: the names of the members, single letters."""

    def __init__(self, members: Sequence[str]) -> None:
        self.members = tuple(members)
        self.peers = Cable("p", ("", BROKER), PEERS)
        self.clients = Cable("c", ("", BROKER), CLIENTS)
        self.to_others: dict[str, Cable] = {}
        """By member, the link to brokers 2 and 3."""
        self.to_broker: dict[str, Cable] = {}
        """By member, the link to broker 1."""
        for number, member in enumerate(self.members, 1):
            others, broker = f"10.214.{10 + number}", f"10.214.{20 + number}"
            room = namespace(member)
            self.to_others[member] = Cable(f"{member}o", ("", room), (f"{others}.1", f"{others}.2"))
            self.to_broker[member] = Cable(f"{member}b", (BROKER, room), (f"{broker}.1", f"{broker}.2"))

    def make(self) -> None:
        """Make all namespaces and links. Raises NotPossible."""
        if reason := why_not():
            raise NotPossible(reason)
        for room in (BROKER, *map(namespace, self.members)):
            run("ip", "netns", "add", room)
            run("ip", "link", "set", "lo", "up", inside=room)
        for link in self._links():
            link.make()
        for number, member in enumerate(self.members, 1):
            for address, gateway in zip(CLIENTS, (f"10.214.{10 + number}.1", f"10.214.{20 + number}.1"), strict=True):
                run("ip", "route", "add", f"{address}/32", "via", gateway, inside=namespace(member))

    def mend(self) -> None:
        """Mend all links."""
        for link in self._links():
            link.mend()

    def _links(self) -> list[Cable]:
        return [self.peers, self.clients, *self.to_others.values(), *self.to_broker.values()]


def namespace(member: str) -> str:
    """The namespace of a member."""
    return f"{PREFIX}-{member}"


def inside_of(member: str, *command: str) -> list[str]:
    """A command in the namespace of a member. The kernel kills the process when this program ends."""
    return ["ip", "netns", "exec", namespace(member), "setpriv", "--pdeathsig", "KILL", *command]


def why_not() -> str:
    """The reason for which network namespaces can't be made here; "": none."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"missing on this machine: {', '.join(missing)} (packages iproute2 and util-linux)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    room = f"{PREFIX}-try"
    try:
        run("ip", "netns", "add", room)
    except NotPossible as error:
        return str(error)
    run("ip", "netns", "del", room)
    return ""


def remove() -> list[str]:
    """Remove all namespaces and links with our prefix, and kill the processes there; a list of the found, in words."""
    answer = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    rooms = [line.split()[0] for line in answer.stdout.splitlines() if line.startswith(f"{PREFIX}-")]
    found = []
    for room in rooms:
        ended = _end_processes(room)
        run("ip", "netns", "del", room)
        found.append(f"namespace {room}" + (f" with {ended} processes" if ended else ""))
    for name in _links_left():
        with contextlib.suppress(NotPossible):  # an end in a namespace that was just removed goes by itself
            run("ip", "link", "del", name)
    return found


def _end_processes(room: str) -> int:
    """Kill the processes of a namespace, each by id; the number of processes."""
    ended, until = set[int](), time.monotonic() + END_S
    while time.monotonic() < until:
        answer = subprocess.run(["ip", "netns", "pids", room], capture_output=True, text=True, check=False)
        if not (pids := [int(word) for word in answer.stdout.split()]):
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended.update(pids)
        time.sleep(0.1)
    return len(ended)


def _links_left() -> list[str]:
    answer = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=False)
    names = [line.split(": ")[1].split("@")[0] for line in answer.stdout.splitlines()]
    return [name for name in names if name.startswith(PREFIX)]


def run(*command: str, inside: str = "") -> str:
    """Run a command, ``inside`` a namespace if not ""; the output. Raises NotPossible with the words of the command."""
    done = subprocess.run(_inside(inside, command), capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPossible(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def _inside(room: str, command: Sequence[str]) -> list[str]:
    return ["ip", "netns", "exec", room, *command] if room else list(command)
