"""A real Apache Kafka for development and tests: KRaft, one node, loopback only, in a folder of your choice.

It never outlives the program that started it (``guard``), and a folder has one user at a time: a lock is held
until the broker has ended. A start that finds a broker left behind by a dead program waits for its end, then kills it.
The data stay in the folder; the next start goes on with them, on the same port when that is free. The folder:

    data/               the broker's logs         server.properties, log4j2.properties   written at each start
    broker.log          what the broker logs      broker.out                             what its JVM prints
    lock, broker.json   who uses the folder: pids with their start times, port, cluster id

Left out on purpose: TLS, passwords, several nodes. Linux is tested; it needs a system with ``flock``.
"""

import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..errors import StoreError
from .guard import process_start
from .jars import KafkaServerError, Progress, class_path
from .java import JavaHome, java_home
from .probe import answering_cluster, unregister_broker

HOST = "127.0.0.1"
NODE = 1
START_SECONDS = 90.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.05
LOG_LINES_SHOWN = 20

_SETTINGS = {
    "node.id": str(NODE),
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # The default is 10 s: a dead client's open transaction would hold committed readers that much longer.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # A stop must not take the leadership away while transactions are being committed (see ``_forget_broker``).
    "controlled.shutdown.enable": "false",
    # A broker that was only suspended must not be taken for dead: that has the same end.
    "broker.session.timeout.ms": "60000",
    "broker.heartbeat.interval.ms": "500",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": "16777216",
}
SMALL = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""A broker that lives for minutes spends more on its second compiler than that saves: half of all processor time."""
# The logging must not end at SIGTERM by a hook of its own: the broker then says how it stops.
_LOGGING = """\
status = error
shutdownHook = disable
appender.file.type = RollingFile
appender.file.name = FILE
appender.file.fileName = {folder}/broker.log
appender.file.filePattern = {folder}/broker.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 5MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
rootLogger.level = warn
rootLogger.appenderRef.file.ref = FILE
logger.life.name = kafka.server.BrokerServer
logger.life.level = info
logger.start.name = kafka.server.KafkaRaftServer
logger.start.level = info
"""


class KafkaServer:
    """One broker in one folder. The constructor does nothing; ``start`` and ``stop`` block (use a thread in asyncio).

    ``port`` 0 means the port of the last time, else a free one. ``properties`` are added to the broker's own settings.
    ``java_options``: how its Java runs, by default as small as a test needs it.
    With ``proxied_port`` there is a second listener, at ``proxied_listener_port``, which tells clients to come back to
    ``proxied_port``: so a proxy can stand in front of the broker.
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
        self.folder = Path(folder).absolute()
        self.port = port
        self.proxied_port = proxied_port
        self.proxied_listener_port = 0
        self._properties = dict(properties or {})
        self._progress = progress
        self._java, self._java_options = java, java_options
        self._guard: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def bootstrap(self) -> str:
        """The address for clients, ``host:port``."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The broker's process id; 0 when it does not run."""
        return self._pid if self.is_running() else 0

    def is_running(self) -> bool:
        """Whether the broker's process lives."""
        return self._guard is not None and self._guard.poll() is None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, seconds_max: float = START_SECONDS) -> None:
        """Fetch, format and start what is not there yet; return when clients are served.

        The time limit begins after the fetch. Raises ``KafkaServerError`` (with the end of the broker's log) and
        ``StoreError`` when the folder is in use or can't be used.
        """
        if self.is_running():
            return
        java = self._java or java_home()
        classes = class_path(java, self._progress)
        deadline = time.monotonic() + seconds_max
        _make_private(self.folder)
        with _locked(self.folder, min(deadline, time.monotonic() + STOP_SECONDS + 5)) as lock:
            cluster = self._format(java, classes, lock, deadline)
            self._choose_ports()
            self._forget_broker(java, classes, lock, deadline)
            self._write_settings(self.folder / "data", self.folder / "server.properties")
            self._launch(java, classes, lock, cluster)
        try:
            self._wait_ready(cluster, deadline)
        except BaseException:
            self.kill()
            raise

    def stop(self, seconds_max: float = STOP_SECONDS) -> None:
        """Stop the broker: SIGTERM, then SIGKILL after ``STOP_SECONDS``. Nothing happens when it does not run."""
        guard, self._guard = self._guard, None
        if guard is not None:
            _end(guard, b"stop\n", seconds_max + 5)

    def kill(self) -> None:
        """End the broker at once, as a crash would."""
        guard, self._guard = self._guard, None
        if guard is not None:
            _end(guard, b"kill\n", STOP_SECONDS)

    def log_tail(self) -> str:
        """The last lines of the broker's log and of what its JVM printed."""
        tails = [_tail(self.folder / name) for name in ("broker.log", "broker.out")]
        return "\n".join(tail for tail in tails if tail) or "(the broker logged nothing)"

    def _format(self, java: JavaHome, classes: str, lock: int, deadline: float) -> str:
        """Make ``data`` if there is none; give back its cluster id. A killed attempt leaves nothing that counts."""
        data = self.folder / "data"
        if not (data / "meta.properties").exists():
            if data.exists():
                raise StoreError(f"{data} exists and is no Kafka's: choose another folder")
            for left in self.folder.glob("format-*"):
                shutil.rmtree(left, ignore_errors=True)
            work = Path(tempfile.mkdtemp(prefix="format-", dir=self.folder))
            cluster = _new_cluster_id()
            settings = work / "server.properties"
            self._write_settings(work / "data", settings)
            command = [str(java.java), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classes]
            command += ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
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
        for line in (data / "meta.properties").read_text(encoding="utf-8").splitlines():
            if line.startswith("cluster.id="):
                return line.removeprefix("cluster.id=")
        raise StoreError(f"{data / 'meta.properties'} names no cluster.id: the folder is damaged")

    def _forget_broker(self, java: JavaHome, classes: str, lock: int, deadline: float) -> None:
        """Make the controller forget the broker of the last time before it starts again.

        While a partition has no leader, Kafka 4.3 takes it for deleted and drops the markers of transactions that are
        being committed (KAFKA-20734): committed readers wait there for ever, or the next abort takes the records along.
        A controlled shutdown is such a while: the broker still completes commits when the controller has taken the
        leadership away. So there is none. A restart without one is another: the broker first believes its old
        metadata, in which it leads all partitions, and begins to write markers to itself, which does not listen yet;
        then its old session ends and the leaders go. So a controller alone runs first, and no partition has a leader
        when the broker comes.
        """
        data = self.folder / "data"
        if not (data / "bootstrap.checkpoint").exists() or not (data / "__cluster_metadata-0").exists():
            return  # never started
        port, settings = _free_port(), self.folder / "controller.properties"
        listener = {
            "process.roles": "controller",
            "listeners": f"CONTROLLER://{HOST}:{port}",
            "controller.quorum.voters": f"{NODE}@{HOST}:{port}",
        }
        broker_only = ("inter.broker.listener.name",)
        own = {name: value for name, value in _SETTINGS.items() if name not in broker_only}
        _write_properties(settings, {**own, "log.dirs": str(data), **listener})
        command = [str(java.java), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classes]
        controller = self._start_guarded([*command, "kafka.Kafka", str(settings)], "controller.out", lock, "")
        try:
            while not unregister_broker(HOST, port, NODE):
                if controller.poll() is not None or time.monotonic() > deadline:
                    raise KafkaServerError(f"no controller came to office:\n{_tail(self.folder / 'controller.out')}")
                time.sleep(POLL_SECONDS)
        finally:
            _end(controller, b"stop\n", STOP_SECONDS + 5)

    def _choose_ports(self) -> None:
        if not self.port:
            last = int(_read_state(self.folder).get("port", 0))
            self.port = last if last and _is_free(last) else _free_port()
        elif not _is_free(self.port):
            raise KafkaServerError(f"port {self.port} is in use on {HOST}: choose another, or 0 for any")

    def _write_settings(self, data: Path, path: Path) -> None:
        port = self.port or _free_port()
        controller = _free_port()
        listeners, advertised = f"PLAINTEXT://{HOST}:{port}", f"PLAINTEXT://{HOST}:{port}"
        if self.proxied_port:
            self.proxied_listener_port = _free_port()
            listeners += f",PROXIED://{HOST}:{self.proxied_listener_port}"
            advertised += f",PROXIED://{HOST}:{self.proxied_port}"
        settings = {
            **_SETTINGS,
            "log.dirs": str(data),
            "listeners": f"{listeners},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": advertised,
            "controller.quorum.voters": f"{NODE}@{HOST}:{controller}",
            **self._properties,
        }
        _write_properties(path, settings)

    def _launch(self, java: JavaHome, classes: str, lock: int, cluster: str) -> None:
        logging = self.folder / "log4j2.properties"
        logging.write_text(_LOGGING.format(folder=_escaped(str(self.folder))), encoding="utf-8")
        command = [str(java.java), *self._java_options, f"-Dlog4j2.configurationFile={logging.as_uri()}"]
        command += ["-cp", classes, "kafka.Kafka", str(self.folder / "server.properties")]
        self._guard = self._start_guarded(command, "broker.out", lock, cluster)

    def _start_guarded(self, command: list[str], out: str, lock: int, cluster: str) -> "subprocess.Popen[bytes]":
        """Run a command that ends with this program (see ``guard``); the guard, once the command runs."""
        facts = {
            "port": self.port,
            "cluster": cluster,
            "owner": os.getpid(),
            "owner_start": process_start(os.getpid()),
        }
        order = {
            "command": command,
            "out": str(self.folder / out),
            "state": str(self.folder / "broker.json"),
            "stop_seconds": STOP_SECONDS,
            "lock_fd": lock,
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
            _end(guard, b"stop\n", STOP_SECONDS)
            raise KafkaServerError(f"the process that guards the broker ended with code {guard.returncode}")
        self._pid = int(first)
        return guard

    def _wait_ready(self, cluster: str, deadline: float) -> None:
        while True:
            answer = answering_cluster(HOST, self.port, self.port)
            if answer == cluster:
                return
            if answer:
                raise KafkaServerError(f"port {self.port} belongs to another Kafka (cluster {answer})")
            if not self.is_running():
                raise KafkaServerError(f"Apache Kafka ended while it started:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise KafkaServerError(f"Apache Kafka was not ready in time:\n{self.log_tail()}")
            time.sleep(POLL_SECONDS)


def serve(
    folder: str | os.PathLike[str],
    port: int = 0,
    *,
    properties: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    on_ready: Callable[[KafkaServer], None] | None = None,
) -> None:
    """Run a broker until SIGTERM or SIGINT, then stop it. For the main thread of a program of its own.

    Raises what ``KafkaServer.start`` raises, and ``KafkaServerError`` when the broker ends by itself.
    """
    server = KafkaServer(folder, port, properties=properties, progress=progress)
    asked = threading.Event()
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.start()
        if on_ready is not None and not asked.is_set():
            on_ready(server)
        while not asked.wait(1.0):
            if not server.is_running():
                raise KafkaServerError(f"Apache Kafka ended by itself:\n{server.log_tail()}")
    finally:
        server.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(guard: "subprocess.Popen[bytes]", order: bytes, seconds: float) -> None:
    """Give a guard its last order and wait for its end; a guard that does not end is killed, and its child with it."""
    assert guard.stdin is not None
    assert guard.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        guard.stdin.write(order)
        guard.stdin.flush()
    try:
        guard.wait(seconds)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()
    with contextlib.suppress(BrokenPipeError):
        guard.stdin.close()
    guard.stdout.close()


def _new_cluster_id() -> str:
    """A random id as Kafka writes them. One that begins with a dash would be taken for an option."""
    while (cluster := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return cluster


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    except OSError as error:
        raise StoreError(f"can't use the broker's folder {folder}: {error.strerror or error}") from error


@contextlib.contextmanager
def _locked(folder: Path, deadline: float) -> Iterator[int]:
    """Hold the folder's lock while the broker is started; the broker and its guard inherit it and go on holding it."""
    import fcntl

    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        killed = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                killed = _refuse_or_clear(folder, killed, deadline)
            time.sleep(POLL_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


def _refuse_or_clear(folder: Path, killed: bool, deadline: float) -> bool:
    """The lock is taken. A living owner keeps it; what a dead one left behind ends by itself, or is killed once."""
    state = _read_state(folder)
    owner = int(state.get("owner", 0))
    if owner and process_start(owner) == state.get("owner_start") and _is_alive(owner):
        raise StoreError(f"the broker's folder {folder} is in use by process {owner}")
    if time.monotonic() < deadline:
        return killed
    left = int(state.get("pid", 0))
    if killed or not left or process_start(left) != state.get("pid_start") or not _is_ours(left, folder):
        raise StoreError(f"the broker's folder {folder} is locked by a process that is not known")
    os.kill(left, signal.SIGKILL)
    time.sleep(1.0)
    return True


def _is_ours(pid: int, folder: Path) -> bool:
    """Whether a process is a Kafka of this folder, by its command line (Linux only)."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(os.fsencode(folder / name) in arguments for name in ("server.properties", "controller.properties"))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read_state(folder: Path) -> dict[str, Any]:
    try:
        state = json.loads((folder / "broker.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


def _write_properties(path: Path, settings: Mapping[str, str]) -> None:
    lines = (f"{name}={_escaped(value)}\n" for name, value in settings.items())
    path.write_text("".join(lines), encoding="utf-8")


def _escaped(value: str) -> str:
    """A value in a Java properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _tail(path: Path) -> str:
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:])
    except OSError:
        return ""
