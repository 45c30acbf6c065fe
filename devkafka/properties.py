"""The settings of a development broker: small, quick to start, and as safe as its number of nodes allows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .ports import HOST

REPLICAS_MAX = 3
SESSION_MS_ALONE = 60_000
"""The session of a single node. A node that was only suspended must not count as dead: all leaders would go with the
node (see ``cluster``).
"""
BROKER_REQUEST_MS = 30_000
"""The time that a broker waits for another broker that hangs, and for the controller: Kafka's default."""

CLIENTS, PROXIED, CONTROLLER = "CLIENTS", "PROXIED", "CONTROLLER"

_COMMON = {
    "process.roles": "broker,controller",
    "controller.listener.names": CONTROLLER,
    "inter.broker.listener.name": CLIENTS,
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # The default is 10 s: a dead client's open transaction would hold committed readers that much longer.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": "16777216",
}
_BROKER_ONLY = ("inter.broker.listener.name",)

# The logging must not end at SIGTERM by a hook of its own: the broker's log then shows the stop.
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
logger.refused.name = org.apache.kafka.common.network.Selector
logger.refused.level = info
"""


class Listener(NamedTuple):
    """A node's listener, and the port that clients are told to come back to (a proxy may listen there)."""

    name: str
    port: int
    advertised_port: int
    protocol: str


def cluster_settings(nodes: int, session_ms: int) -> dict[str, str]:
    """Settings by the number of nodes: replicas of everything, and the time after which a node counts as dead.

    A single node has no controlled shutdown: its stop must not take the leadership away while transactions are being
    committed. One of several nodes may hang, as the controller or in front of a transaction's markers. Then the other
    nodes turn to its successor after a session, not after half a minute.
    """
    replicas, in_sync = str(min(nodes, REPLICAS_MAX)), str(min(2, (nodes + 1) // 2))
    settings = {"default.replication.factor": replicas, "min.insync.replicas": in_sync}
    settings["offsets.topic.replication.factor"] = replicas
    for topic in ("transaction.state.log", "share.coordinator.state.topic"):
        settings |= {f"{topic}.replication.factor": replicas, f"{topic}.min.isr": in_sync}
    request_ms = str(min(session_ms, BROKER_REQUEST_MS))
    return settings | {
        "controlled.shutdown.enable": "true" if nodes > 1 else "false",
        "broker.session.timeout.ms": str(session_ms),
        "broker.heartbeat.interval.ms": str(min(1_000, max(100, session_ms // 6))) if nodes > 1 else "500",
        "controller.socket.timeout.ms": request_ms,
        "request.timeout.ms": request_ms,
    }


def node_settings(
    number: int, controllers: Mapping[int, int], listeners: Sequence[Listener], protocol: str
) -> dict[str, str]:
    """Settings of a node in its cluster. ``controllers``: by number of each node, the port of its controller;
    ``protocol``: the protocol of the controllers.
    """
    every = [*listeners, Listener(CONTROLLER, controllers[number], 0, protocol)]
    return _COMMON | {
        "node.id": str(number),
        "listeners": ",".join(f"{one.name}://{HOST}:{one.port}" for one in every),
        "advertised.listeners": ",".join(f"{one.name}://{HOST}:{one.advertised_port}" for one in listeners),
        "listener.security.protocol.map": ",".join(f"{one.name}:{one.protocol}" for one in every),
        "controller.quorum.voters": _voters(controllers),
    }


def controller_settings(settings: Mapping[str, str], number: int, controllers: Mapping[int, int]) -> dict[str, str]:
    """Settings of the same node as a controller alone, at other ports."""
    own = {name: value for name, value in settings.items() if name not in (*_BROKER_ONLY, "advertised.listeners")}
    return own | {
        "process.roles": "controller",
        "listeners": f"{CONTROLLER}://{HOST}:{controllers[number]}",
        "controller.quorum.voters": _voters(controllers),
    }


def _voters(controllers: Mapping[int, int]) -> str:
    return ",".join(f"{number}@{HOST}:{port}" for number, port in sorted(controllers.items()))


def write_properties(path: Path, settings: Mapping[str, str]) -> None:
    """Write a Java properties file that only its owner may read."""
    lines = (f"{name}={_escape(value)}\n" for name, value in settings.items())
    path.touch(mode=0o600)
    path.write_text("".join(lines), encoding="utf-8")


def write_logging(folder: Path) -> Path:
    """Write the logging settings of a node into its folder."""
    path = folder / "log4j2.properties"
    path.write_text(_LOGGING.format(folder=_escape(str(folder))), encoding="utf-8")
    return path


def _escape(value: str) -> str:
    """A value in a Java properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
