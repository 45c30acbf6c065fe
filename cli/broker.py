"""``keylanes broker``: a real Kafka to try things on, of one node or several, with TLS, passwords and access lists."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..devkafka.admin import MECHANISMS, OPERATIONS, RESOURCES, Acl
from ..devkafka.cluster import KafkaCluster
from ..devkafka.jars import KAFKA_VERSION, pinned_jars
from ..devkafka.security import PLAIN, ClusterSecurity
from ..devkafka.server import serve
from ..errors import SettingsError
from ..runtime.watch.progress import ProgressShown
from .messages import set_up_logging

USER = "app"
_MECHANISMS = f"{PLAIN}, {', '.join(MECHANISMS)}"


def broker(
    folder: Annotated[Path, typer.Argument(help="where its data are kept")] = Path(".keylanes/broker"),
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65_535, help="of the first node, the next ones follow; 0: that of the last time, or any"
        ),
    ] = 0,
    nodes: Annotated[int, typer.Option(min=1, max=9, help="brokers; a folder keeps its number of them")] = 1,
    tls: Annotated[
        bool, typer.Option("--tls", help="encrypted, with a certificate of an authority made for it")
    ] = False,
    sasl: Annotated[list[str] | None, typer.Option(metavar="MECHANISM", help=f"passwords: {_MECHANISMS}")] = None,
    mutual: Annotated[bool, typer.Option("--mutual", help="clients show a certificate, too")] = False,
    acl: Annotated[bool, typer.Option("--acl", help="nobody may do anything that --allow does not name")] = False,
    user: Annotated[list[str] | None, typer.Option(help=f"who exists; default: {USER}")] = None,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="USER:OPERATION:RESOURCE:NAME", help="NAME* stands for a prefix")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Run a real Apache Kafka for development, in the foreground, until SIGTERM or SIGINT.

    Users, passwords and certificates are in the folder `security` beside its data, which only you can read.
    """
    set_up_logging("INFO")
    acls = [_acl(given) for given in allow or ()]
    if acls and not acl:
        raise SettingsError("--allow says what an access list allows: give --acl, too")
    security = _security(tls, sasl or [], mutual, acl, user or [USER])

    def on_ready(cluster: KafkaCluster) -> None:
        if acls:
            cluster.access.allow(*acls)
        facts = _facts(cluster, security)
        sys.stdout.write((json.dumps(facts) if as_json else _text_of_cluster(cluster, facts)) + "\n")
        sys.stdout.flush()

    with ProgressShown(f"fetching Apache Kafka {KAFKA_VERSION}", 2 * len(pinned_jars())) as shown:
        serve(KafkaCluster(folder, nodes, port=port, security=security, progress=shown.move), on_ready)


def _security(tls: bool, sasl: list[str], mutual: bool, acl: bool, users: list[str]) -> ClusterSecurity | None:
    """The nodes' demands on clients; None: no demands. Raises SettingsError."""
    if not (tls or sasl or mutual or acl):
        return None
    try:
        return ClusterSecurity(tls=tls, sasl=tuple(sasl), mutual=mutual, acl=acl, users=tuple(users))
    except ValueError as error:
        raise SettingsError(f"broker: {error}") from None


def _acl(given: str) -> Acl:
    """An entry of the access list; raises SettingsError."""
    user, operation, resource, name = (*given.split(":", 3), "", "", "")[:4]
    if not (user and name and operation in OPERATIONS and resource in RESOURCES):
        raise SettingsError(
            f"--allow: seen {given!r}; allowed is USER:OPERATION:RESOURCE:NAME, with OPERATION {', '.join(OPERATIONS)} "
            f"and RESOURCE {', '.join(RESOURCES)}, e.g. app:read:topic:orders"
        )
    if name.endswith("*") and name != "*":
        return Acl(user=user, operation=operation, resource=resource, name=name[:-1], pattern="prefixed")
    return Acl(user, operation, resource, name)


def _facts(cluster: KafkaCluster, security: ClusterSecurity | None) -> dict[str, Any]:
    """The facts that the command prints."""
    pids = [node.pid for node in cluster.nodes]
    facts = {"bootstrap": cluster.bootstrap, "broker": f"kafka://{cluster.bootstrap}", "pid": pids[0], "pids": pids}
    if security is None:
        return facts
    access = cluster.access
    found = {"protocol": security.protocol, "passwords": str(access.passwords)}
    if security.tls:
        found["ca"] = str(access.ca)
    return facts | found | {"environment": {user: str(_environment(cluster, user)) for user in security.users}}


def _environment(cluster: KafkaCluster, user: str) -> Path:
    """A private file for the shell, with the settings of an application under this user."""
    values = {"broker": f"kafka://{cluster.bootstrap}", **cluster.access.client(user)}
    path = cluster.access.folder / f"{user}.env"
    path.touch(mode=0o600)
    lines = (f"export KEYLANES_{name.upper()}={shlex.quote(value)}\n" for name, value in values.items())
    path.write_text("".join(lines), encoding="utf-8")
    return path


def _text_of_cluster(cluster: KafkaCluster, facts: dict[str, Any]) -> str:
    many = f" with {len(cluster.nodes)} nodes" if len(cluster.nodes) > 1 else ""
    lines = [
        f"Apache Kafka {KAFKA_VERSION}{many} is ready: {facts['broker']}, data in {cluster.folder}; Ctrl+C ends it"
    ]
    if "protocol" in facts:
        lines.append(f"  clients need {facts['protocol']}")
        if "ca" in facts:
            lines.append(f"  whom they trust: {facts['ca']}")
        lines.append(f"  passwords of all users, for your eyes only: {facts['passwords']}")
        lines += [f"  for an application as {user}: . {path}" for user, path in facts["environment"].items()]
        lines.append("  which sets KEYLANES_BROKER and what Settings.from_env() reads")
    return "\n".join(lines)
