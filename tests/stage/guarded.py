"""Applications on a Kafka that asks who they are: how they end, and what they say."""

import asyncio
import logging
import re
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from keylanes import App, DeadLetter, Retry, Security, Settings, State
from keylanes.brokers.kafka.broker import KafkaBroker
from keylanes.brokers.protocol import Outgoing, TopicPartition, TopicSpec
from keylanes.devkafka.admin import Acl
from keylanes.devkafka.properties import CLIENTS
from keylanes.devkafka.security import ADMIN, MUTUAL

from ..tiers.brokers import SharedKafka
from ..tiers.names import fresh
from . import limited
from .appending import append

LIMITS = {
    "request_timeout_ms": 2_500,
    "default_api_timeout_ms": 8_000,
    "start_timeout_ms": 40_000,
    "broker_retry_ms": 10_000,
    "commit_interval_ms": 50,
}


def security_of(given: dict[str, str], **changed: str | None) -> Security:
    """The settings of a client, some of them changed."""
    values = {name: value for name, value in {**given, **changed}.items() if value is not None}
    return Security(**values)  # type: ignore[arg-type]  # it makes secrets of text


def settings_of(security: Security, **more: object) -> Settings:
    """With short limits."""
    return limited.settings_of(**{**LIMITS, "security": security, **more})


class Ended(NamedTuple):
    """How a run ended. ``last``: the last line of the log, which is CRITICAL unless all is well."""

    code: int
    last: str
    cause: BaseException | None


def run(app: App, caplog: pytest.LogCaptureFixture) -> Ended:
    """Run an application as its users do, to the end of its sources."""
    caplog.clear()
    try:
        app.run(until="level")
    except SystemExit as end:
        said = [r for r in caplog.records if r.name == "keylanes" and r.levelno == logging.CRITICAL]
        return Ended(int(end.code or 0), said[-1].getMessage() if said else "", end.__cause__)
    return Ended(0, "", None)


class Place:
    """One application's names, which nobody else uses, for the user ``shop`` of the Kafka that asks who is there.

    ``folder``: for the state. ``by_certificate``: a certificate says who it is, and no password.
    """

    def __init__(self, cluster: SharedKafka, folder: Path, *, by_certificate: bool = False) -> None:
        self.cluster, self.folder, self.user = cluster, folder, "shop"
        self.name, self.source, self.out, self.dead = fresh("app"), fresh("in"), fresh("out"), fresh("dead")
        self.listener, self.given = CLIENTS, cluster.access.client(self.user)
        if by_certificate:
            certificate = str(cluster.access.certificate(self.user))
            self.listener, self.given = (
                MUTUAL,
                {
                    "security_protocol": "SSL",
                    "ssl_cafile": str(cluster.access.ca),
                    "ssl_certfile": certificate,
                },
            )

    def app(self, security: Security | None = None, bootstrap: str = "", **more: object) -> App:
        """It counts by key, and what it can't read is a dead letter."""
        settings = settings_of(security or security_of(self.given), state_folder=str(self.folder), **more)
        address = bootstrap or self.cluster.bootstrap_at(self.listener)
        app = App(self.name, broker=f"kafka://{address}", settings=settings)

        @app.handler(self.source, to=self.out, on_failure=DeadLetter(self.dead), retry=Retry(attempts=1))
        async def count(value: int, seen: State[int]) -> int:
            now = (seen.get() or 0) + 1
            seen.put(now)
            return now

        return app

    def fill(self, values: Iterable[bytes], *, make: Sequence[str] = ()) -> None:
        """Write to the source, as the administrator does; it is made when it is missing, and so are others."""

        async def fill(broker: KafkaBroker) -> None:
            await broker.create([TopicSpec(name, 1, {}) for name in (self.source, *make)])
            await append(broker, [Outgoing(self.source, 0, b"k", value) for value in values])

        self.as_admin(fill)

    def read(self, topic: str) -> list[bytes]:
        """The values of partition 0, as the administrator sees them."""
        found: list[bytes] = []

        async def read(broker: KafkaBroker) -> None:
            place = TopicPartition(topic, 0)
            high = (await broker.watermarks([place]))[place].high
            reader = await broker.reader({place: 0})
            async with asyncio.timeout(30):
                while reader.position(place) < high:
                    for batch in await reader.fetch([place], records_max=1_000, wait_ms=100):
                        found.extend(bytes(record.value or b"") for record in batch.records)
            await reader.close()

        self.as_admin(read)
        return found

    def made(self) -> set[str]:
        """Those of its topics but the source that exist."""
        logs = [f"{self.name}.{log}" for log in ("control", "offsets", "signals", f"changelog.{self.source}")]
        found: set[str] = set()

        async def look(broker: KafkaBroker) -> None:
            found.update(await broker.describe([*logs, self.out, self.dead]))

        self.as_admin(look)
        return found

    def as_admin(self, work: Callable[[KafkaBroker], Awaitable[None]]) -> None:
        """Do something with all rights there are."""

        async def all_of_it() -> None:
            broker = KafkaBroker(self.cluster.bootstrap, security=security_of(self.cluster.access.client(ADMIN)))
            await broker.open()
            try:
                await work(broker)
            finally:
                await broker.close()

        asyncio.run(all_of_it())

    def rights(self, *, creates: bool = True) -> list[Acl]:
        """The table of docs/security.md, for this application."""
        create = ["create"] if creates else []
        return [
            *self.acls("topic", self.source, ["read", "describe_configs"]),
            *self.acls("topic", self.out, ["write", "describe_configs", *create]),
            *self.acls("topic", self.dead, ["write", "describe_configs", *create]),
            *self.acls("topic", f"{self.name}.", ["read", "write", "describe_configs", "delete", *create], "prefixed"),
            *self.acls("transactional_id", f"{self.name}.", ["write"], "prefixed"),
        ]

    def acls(self, resource: str, name: str, operations: Sequence[str], pattern: str = "literal") -> list[Acl]:
        """Of this user."""
        return [Acl(self.user, operation, resource, name, pattern) for operation in operations]


NAMED = re.compile(
    r"--allow-principal 'User:(\w+)'((?: --operation \w+)+) --(topic|transactional-id|group) '([^']+)'"
    r"( --resource-pattern-type prefixed)?`"
)


def acls_named(said: str) -> list[Acl]:
    """The entries that the commands in a text put on the access list, in order."""
    return sorted(
        Acl(user, operation.lower(), resource.replace("-", "_"), name, "prefixed" if is_prefix else "literal")
        for user, operations, resource, name, is_prefix in NAMED.findall(said)
        for operation in re.findall(r"--operation (\w+)", operations)
    )


def everything_said(caplog: pytest.LogCaptureFixture, ended: Ended) -> str:
    """All that a run has written or raised, as text."""
    lines = [record.getMessage() for record in caplog.records]
    lines += [str(record.exc_text or "") for record in caplog.records]
    raised = "".join(traceback.format_exception(ended.cause)) if ended.cause else ""
    return "\n".join([*lines, raised, ended.last])
