"""Applications that are fed what is odd, on a real Kafka: what they published, dead-lettered, or stopped at."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from keylanes import App, Context, DeadLetter, Record, Retry
from keylanes.brokers.protocol import Broker, Outgoing, TopicPartition, Watermarks
from keylanes.errors import KeylanesError

from .appending import append
from .ground import Ground
from .raw import Raw, batch, send

FAIL = b"fail"
"""A value that the handler of ``passing_on`` fails at."""
KEPT = {"retention_ms": "-1"}
"""Of a topic that keeps its records, however old they are."""
FOR_EVER = {**KEPT, "message_timestamp_after_max_ms": str((1 << 63) - 1)}
"""Settings of a topic that takes any timestamp and keeps it."""


def passing_on(ground: Ground, **settings: object) -> App:
    """Passes on values, keys, headers and timestamps as they are; what fails becomes a dead letter."""
    app = ground.app(**settings)

    @app.handler(
        ground.source,
        to=ground.late,
        parallelising_factor=4,
        retry=Retry(attempts=1),
        on_failure=DeadLetter(ground.dead),
    )
    async def pass_on(value: bytes | None, ctx: Context) -> Any:
        if value == FAIL:
            raise RuntimeError("asked to fail")
        return Record(value, headers=ctx.headers)

    return app


def feed(ground: Ground, *records: Raw, **config: str) -> None:
    """Write records as they are, in one batch, to the only partition of the source. What comes of them has timestamps
    as old as theirs, and is kept for ever, too: the broker would delete it while a test looks at it.
    """
    ground.create(ground.source, **{**FOR_EVER, **config})
    for topic in (ground.late, ground.dead):
        ground.create(topic, **KEPT)
    assert send(ground, batch(records)) == 0


def write(ground: Ground, records: Sequence[Outgoing]) -> None:
    """Write records to topics that exist."""
    with_broker(ground, lambda broker: append(broker, records))


def with_broker(ground: Ground, work: Callable[[Broker], Awaitable[Any]]) -> Any:
    """What the work comes to, with a connection of one's own."""
    return ground._with(work)


def marks(ground: Ground, topic: str = "", partition: int = 0) -> Watermarks:
    """The watermarks of a partition; of the source when no topic is named."""
    place = TopicPartition(topic or ground.source, partition)
    found: Watermarks = with_broker(ground, lambda broker: broker.watermarks([place]))[place]
    return found


def trim(ground: Ground, before: int, topic: str = "", partition: int = 0) -> None:
    """Delete the records below an offset, as retention does."""
    with_broker(ground, lambda broker: broker.trim({TopicPartition(topic or ground.source, partition): before}))


def stops_with(kind: type[KeylanesError], app: App, *says: str) -> str:
    """Run the application: it ends with an error of this kind and its exit code, which says all that."""
    with pytest.raises(SystemExit) as ended:
        app.run(until="level")
    error = ended.value.__cause__
    assert isinstance(error, kind), repr(error)
    assert ended.value.code == getattr(kind, "exit_code", None)
    for part in says:
        assert part in str(error)
    return str(error)


def own_headers(headers: Sequence[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """The headers that are not keylanes' own."""
    return [header for header in headers if header[0] not in ("kl", "kl-error", "kl-attempts", "kl-timestamp")]
