"""Pins: the offsets of each topic, taken once, up to which every stage of the audit reads.

``pin`` waits at each pin until every transaction below is decided. The order makes an audit of a running application
right:

1. The logs for the first time.
2. The outputs: every output of a commit below the first pin is in view.
3. The logs again: every output in view has its commit event.
4. The control log: every epoch is known.
5. The sources: every record of a tile exists.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..offsets.codec import EventError, decode
from ..offsets.control_events import AppCreated
from ..offsets.events import Event
from ..state.changelog import changelog_topic
from .brokers import AuditError, Place, Span, Topic, WitnessBroker
from .history import Grants, Source, fold_control
from .report import Example

LOG_SUFFIXES = (".control", ".offsets", ".signals")


@dataclass(frozen=True, slots=True)
class Pins:
    """The pins of an audit.

    ``judged``: by log partition, the end of the events with all outputs in view; ``logs``: the spans of all events to
    be read. ``problems``: what is wrong with the control log as a whole.
    """

    grants: Grants
    offset_log: str
    control: list[tuple[int, Event]]
    judged: dict[int, int]
    logs: dict[Place, Span]
    outputs: dict[Place, Span]
    sources: dict[Source, Span]
    problems: list[Example]
    control_ms: dict[int, int]
    """When each event of the control log was written, by position."""
    doubts: list[str]
    """The assumptions without proof behind the offsets, in sentences."""

    @property
    def not_begun(self) -> list[Source]:
        """The partitions of source topics that the application has never worked on, for example added partitions."""
        return sorted(self.sources.keys() - self.grants.starts.keys() - self.grants.granted)

    def log_partition(self, partition: int) -> int:
        """The partition of the offset log with the events of a source partition."""
        return partition % (self.grants.log_partitions or len(self.logs))


def pin(broker: WitnessBroker, app: str, outputs: tuple[str, ...] | None) -> Pins:
    """Pin all logs, outputs and sources, in the order above. ``outputs`` None: all topics but the logs and changelogs.

    Raises AuditError when logs or topics are missing or can't be understood.
    """
    topics = broker.topics()
    control_log, offset_log = f"{app}.control", f"{app}.offsets"
    broker.refuse_unread(dict.fromkeys(outputs or (), "") | dict.fromkeys((control_log, offset_log), f"{app}."))
    if control_log not in topics or offset_log not in topics:
        apps = sorted(name.removesuffix(".control") for name in topics if name.endswith(".control"))
        raise AuditError(
            f"app: no logs of {app!r} at this broker, or none that it shows to this user; applications seen: "
            f"{', '.join(apps) or 'none'}"
        )
    log_places = [(offset_log, partition) for partition in range(topics[offset_log].partitions)]
    judged = _decided_spans(broker, log_places)
    visible = _decided_spans(broker, _output_places(topics, outputs))
    logs = _decided_spans(broker, log_places)
    control_span = _decided_spans(broker, [(control_log, 0)])[control_log, 0]
    control, control_ms = _control(broker, control_log, control_span)
    grants = fold_control(control)
    names = {topic for topic, _ in grants.starts} | {topic for topic, _ in grants.granted}
    changelogs = (changelog_topic(app, store.topic) for store in grants.stores.values())
    broker.refuse_unread(dict.fromkeys(names, "") | dict.fromkeys(changelogs, f"{app}."))
    missing = sorted(names - topics.keys())
    if missing:
        raise AuditError(
            f"source topics of {app} do not exist at this broker, or it shows them to others only: {', '.join(missing)}"
        )
    sources = _decided_spans(broker, [(name, p) for name in sorted(names) for p in range(topics[name].partitions)])
    lost = sorted({source for source in grants.starts.keys() | grants.granted if source not in sources})
    if lost:
        raise AuditError(f"source partitions of {app} do not exist at this broker: {lost}")
    return Pins(
        grants=grants,
        offset_log=offset_log,
        control=control,
        judged={partition: span.end for (_, partition), span in judged.items()},
        logs=logs,
        outputs=visible,
        sources=sources,
        problems=_control_problems(app, control, control_span, logs),
        control_ms=control_ms,
        doubts=broker.doubts(),
    )


def _decided_spans(broker: WitnessBroker, places: list[Place]) -> dict[Place, Span]:
    spans = broker.spans(places)
    broker.wait_decided(spans)
    return spans


def _output_places(topics: Mapping[str, Topic], outputs: tuple[str, ...] | None) -> list[Place]:
    if outputs is None:
        apps = [name.removesuffix(".control") for name in topics if name.endswith(".control")]
        ours = tuple(changelog_topic(app, "") for app in apps)
        names = [n for n in topics if not n.startswith(("__", *ours)) and not n.endswith(LOG_SUFFIXES)]
    else:
        names = list(outputs)
        missing = [name for name in names if name not in topics]
        if missing:
            raise AuditError(
                f"outputs: no such topic at this broker, or none that it shows to this user: {', '.join(missing)}"
            )
    return [(name, partition) for name in sorted(names) for partition in range(topics[name].partitions)]


def _control(broker: WitnessBroker, log: str, span: Span) -> tuple[list[tuple[int, Event]], dict[int, int]]:
    events: list[tuple[int, Event]] = []
    times: dict[int, int] = {}
    for chunk in broker.read((log, 0), span.start, span.end):
        times.update(zip(chunk.offsets, chunk.timestamps, strict=True))
        for position, value in zip(chunk.offsets, chunk.values, strict=True):
            try:
                events.append((position, decode(value or b"")))
            except EventError as error:
                raise AuditError(f"{log}, position {position}: {error}") from None
    return events, times


def _control_problems(
    app: str, control: list[tuple[int, Event]], span: Span, logs: Mapping[Place, Span]
) -> list[Example]:
    log = f"{app}.control"
    if span.start > 0:
        return [{"log": log, "start": span.start, "problem": "starts above 0"}]
    if not control:
        if any(log_span.end > 0 for log_span in logs.values()):
            return [{"log": log, "problem": "empty although the application has run"}]
        raise AuditError(f"app: the logs of {app!r} are empty: it has not run yet")
    first = control[0][1]
    if not isinstance(first, AppCreated):
        return [{"log": log, "problem": f"does not begin with app_created: {type(first).__name__}"}]
    if first.app != app:
        return [{"log": log, "problem": f"belongs to another application: {first.app}"}]
    if first.log_partitions != len(logs):
        return [{"log": log, "problem": f"names {first.log_partitions} log partitions, seen {len(logs)}"}]
    return []
