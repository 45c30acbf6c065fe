"""One node of a development Kafka: broker and controller in one process, in a folder of its own.

The node never outlives the program that started the node (``guard``), and its folder has one user at a time
(``folder``):

    data/               the broker's logs         server.properties, log4j2.properties   written at each start
    broker.log          log of the broker         broker.out                             output of its JVM
    lock, broker.json   the user of the folder: pids with their start times, port, cluster id
"""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import StoreError
from .folder import read_state, tail
from .guard import process_start
from .jars import KafkaServerError
from .java import JavaHome
from .ports import HOST, free_port, is_free
from .properties import CLIENTS, PROXIED, Listener, write_logging, write_properties

START_SECONDS = 90.0
STOP_SECONDS = 20.0
SMALL = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""A broker that lives for minutes spends more on its second compiler than the result saves: half of all processor time.
"""
_SMALLEST = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class KafkaProgram(NamedTuple):
    """Apache Kafka, ready to run: a Java and the class path."""

    java: JavaHome
    classes: str

    def command(self, options: Sequence[str], *arguments: str) -> list[str]:
        """The command line for a class of Kafka."""
        return [str(self.java.java), *options, "-cp", self.classes, *arguments]


class KafkaNode:
    """One node. The cluster makes the node and decides about its start; all calls block (use a thread in asyncio).

    ``number`` is its node id, from 1 on. ``starter`` starts the node within its cluster. ``port`` 0 means the port of
    the last time, else a free port. ``alone``: stop or kill; the guard obeys this order when this program has ended
    without an order.
    """

    def __init__(
        self,
        number: int,
        folder: Path,
        starter: Callable[["KafkaNode", float], None],
        *,
        port: int,
        proxied_port: int = 0,
        java_options: Sequence[str] = SMALL,
        alone: str,
    ) -> None:
        self.number = number
        self.folder = folder
        self.port = port
        self.proxied_port = proxied_port
        self.ports: dict[str, int] = {}
        """The ports of the other listeners, by name."""
        self._starter = starter
        self._java_options = java_options
        self._alone = alone
        self._guard: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def address(self) -> str:
        """The address for clients, ``host:port``."""
        return f"{HOST}:{self.port}"

    @property
    def proxied_listener_port(self) -> int:
        """The port for a proxy to connect to; 0 without a proxy."""
        return self.ports.get(PROXIED, 0)

    @property
    def pid(self) -> int:
        """The broker's process id; 0 when the broker does not run."""
        return self._pid if self.is_running() else 0

    def is_running(self) -> bool:
        """Whether the broker's process lives, suspended or not."""
        return self._guard is not None and self._guard.poll() is None

    def start(self, seconds_max: float = START_SECONDS) -> None:
        """Start the node again in its cluster; return when the node serves clients. The cluster needs a quorum."""
        self._starter(self, seconds_max)

    def stop(self, seconds_max: float = STOP_SECONDS) -> None:
        """Stop the broker: SIGTERM, then SIGKILL after ``STOP_SECONDS``. A suspended broker is resumed first."""
        self.resume()
        self.order("stop")
        self.wait_for_end(seconds_max + 5)

    def kill(self) -> None:
        """End the broker at once, as a crash would."""
        self.order("kill")
        self.wait_for_end(STOP_SECONDS)

    def suspend(self) -> None:
        """Send SIGSTOP: the broker hangs, its connections stay open. Nothing happens when the broker does not run."""
        if pid := self.pid:
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT: the broker goes on."""
        if pid := self.pid:
            os.kill(pid, signal.SIGCONT)

    def log_tail(self) -> str:
        """The last lines of the broker's log and of its JVM's output."""
        tails = [tail(self.folder / name) for name in ("broker.log", "broker.out")]
        return "\n".join(one for one in tails if one) or "(the broker logged nothing)"

    # --- for its cluster ---------------------------------------------------------------------------------------------

    def order(self, order: str) -> None:
        """Give the guard an order, ``stop`` or ``kill``; ``wait_for_end`` waits."""
        if self._guard is not None:
            _tell(self._guard, order)

    def wait_for_end(self, seconds: float) -> None:
        """Wait for the end of a node after an order."""
        guard, self._guard = self._guard, None
        if guard is not None:
            _wait_end(guard, seconds)

    def choose_ports(self, more: Collection[str], taken: set[int]) -> None:
        """Choose the ports for clients and for the listeners ``more``; adds the ports to ``taken``.

        Raises KafkaServerError when a requested port is in use.
        """
        if self.port and not is_free(self.port):
            raise KafkaServerError(f"port {self.port} is in use on {HOST}: choose another, or 0 for any")
        last = int(read_state(self.folder).get("port", 0))
        self.port = self.port or (last if last and is_free(last) else free_port(taken))
        taken.add(self.port)
        for name in more:
            port = self.ports.get(name, 0)
            self.ports[name] = port if port and is_free(port) else free_port(taken)
            taken.add(self.ports[name])

    def listeners(self, protocols: Mapping[str, str]) -> list[Listener]:
        """The listeners of the node, without the controller's. ``protocols`` by name of the listener."""
        ports = {CLIENTS: self.port, **self.ports}
        shown = {**ports, PROXIED: self.proxied_port or self.proxied_listener_port}
        return [Listener(name, port, shown[name], protocols[name]) for name, port in ports.items()]

    def cluster(self) -> str:
        """The cluster id in the data; "" without data. Raises StoreError for damaged data and for other files."""
        data = self.folder / "data"
        if not (data / "meta.properties").exists():
            if data.exists():
                raise StoreError(f"{data} exists and is no Kafka's: choose another folder")
            return ""
        for line in (data / "meta.properties").read_text(encoding="utf-8").splitlines():
            if line.startswith("cluster.id="):
                return line.removeprefix("cluster.id=")
        raise StoreError(f"{data / 'meta.properties'} names no cluster.id: the folder is damaged")

    def was_started(self) -> bool:
        """Whether the node has ever run with these data."""
        data = self.folder / "data"
        return (data / "bootstrap.checkpoint").exists() and (data / "__cluster_metadata-0").exists()

    def format(
        self, kafka: KafkaProgram, cluster: str, settings: Mapping[str, str], lock: int, deadline: float
    ) -> None:
        """Make ``data`` if missing, whole or not at all: a killed attempt leaves a ``format-`` folder."""
        if self.cluster():
            return
        data = self.folder / "data"
        for left in self.folder.glob("format-*"):
            shutil.rmtree(left, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix="format-", dir=self.folder))
        path = work / "server.properties"
        write_properties(path, {**settings, "log.dirs": str(work / "data")})
        command = kafka.command(_SMALLEST, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(path))
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                timeout=max(deadline - time.monotonic(), 1), pass_fds=[lock],
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise KafkaServerError(f"formatting {data} failed: {error}") from error
        if done.returncode != 0 or not (work / "data" / "meta.properties").exists():
            raise KafkaServerError(f"formatting {data} failed:\n{done.stdout.decode(errors='replace')[-4000:]}")
        os.replace(work / "data", data)
        shutil.rmtree(work, ignore_errors=True)

    def launch(self, kafka: KafkaProgram, settings: Mapping[str, str], lock: int, cluster: str) -> None:
        """Run the node; the cluster finds out when the node serves."""
        path = self.folder / "server.properties"
        write_properties(path, {**settings, "log.dirs": str(self.folder / "data")})
        options = (*self._java_options, f"-Dlog4j2.configurationFile={write_logging(self.folder).as_uri()}")
        self._run_guarded(kafka.command(options, "kafka.Kafka", str(path)), "broker.out", lock, cluster)

    def launch_controller(self, kafka: KafkaProgram, settings: Mapping[str, str], lock: int) -> None:
        """Run the node as a controller alone."""
        path = self.folder / "controller.properties"
        write_properties(path, {**settings, "log.dirs": str(self.folder / "data")})
        self._run_guarded(kafka.command(_SMALLEST, "kafka.Kafka", str(path)), "controller.out", lock, "")

    def _run_guarded(self, command: list[str], out: str, lock: int, cluster: str) -> None:
        """Run a command that never outlives this program (see ``guard``); return when the command runs."""
        owner = os.getpid()
        facts = {"port": self.port, "cluster": cluster, "owner": owner, "owner_start": process_start(owner)}
        order = {
            "command": command,
            "out": str(self.folder / out),
            "state": str(self.folder / "broker.json"),
            "stop_seconds": STOP_SECONDS,
            "lock_fd": lock,
            "alone": self._alone,
            "facts": facts,
        }
        script = Path(__file__).with_name("guard.py")
        # In a session of its own: an interrupt from the keyboard is the program's to handle, not the broker's.
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), json.dumps(order)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[lock], start_new_session=True,
        )  # fmt: skip
        assert guard.stdout is not None
        first = guard.stdout.readline()
        if not first:
            _tell(guard, "stop")
            _wait_end(guard, STOP_SECONDS + 5)
            raise KafkaServerError(f"the process that guards the broker ended with code {guard.returncode}")
        self._pid, self._guard = int(first), guard


def new_cluster_id() -> str:
    """A random id in Kafka's form. Kafka would take an id with a dash in front for an option."""
    while (cluster := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return cluster


def _tell(guard: "subprocess.Popen[bytes]", order: str) -> None:
    assert guard.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        guard.stdin.write(f"{order}\n".encode())
        guard.stdin.flush()


def _wait_end(guard: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Wait for the end of a guard; a guard that does not end in time is killed, and its child too."""
    assert guard.stdin is not None
    assert guard.stdout is not None
    try:
        guard.wait(seconds)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()
    with contextlib.suppress(BrokenPipeError):
        guard.stdin.close()
    guard.stdout.close()
