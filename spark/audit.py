"""The audit of one application: ``audit(spark, AuditSpec(app="flights", broker="embedded:./data"))``.

Everything is derived from the logs, the sources and the visible outputs, never from the runtime's ledger. Records and
ends come from the source topics: a truncated log would prove itself. The statements are in checks.py, the stages in
judge_*.py.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from .access import Access
from .brokers import AuditError
from .folders import copies_in
from .group_report import GroupFigures
from .history import ranges_of
from .judge_copies import judge_copies
from .judge_group import judge_group
from .judge_logs import LogFold, judge_logs
from .judge_outputs import Expected, Outputs, judge_outputs
from .judge_plane import Plane, Tiles, judge_commits, judge_plane
from .judge_records import judge_records, read_places
from .judge_state import ExpectedState, judge_state
from .kafka_clients import API_TIMEOUT_MS
from .pins import Pins, pin
from .plane_tiles import NO_PLANE, PlaneLog, PlaneTile, plane_log
from .report import COPYING, OWNERSHIP, Report
from .run import AuditContext
from .source import register

CHECKS = (
    "log-whole",
    "control",
    *OWNERSHIP,
    *COPYING,
    "tile-shape",
    "stale-commit",
    "transaction-parts",
    "tile-cover",
    "tile-order",
    "tile-worker",
    "record-tile",
    "record-worker",
    "level",
    "output-source",
    "output-once",
    "output-complete",
    "commit-outputs",
    "commit-digest",
    "key-order",
    "expected",
    "state-key",
    "state-partition",
    "state-beacon",
    "state",
    "copy-state",
)
"""The names of all statements, in the order of the report."""

MISSING = frozenset(("commit-outputs", "commit-digest", "output-complete"))
"""The statements that fail when outputs lie in topics that were not read."""
TOPICS_SHOWN = 5
SEARCHED = " (every topic of the broker is searched for outputs unless they are named: --outputs)"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSpec:
    """The settings of an audit.

    ``outputs``: topics to read, beside the dead-letter topics; None: every topic is searched for outputs of the
    application. ``or_elsewhere``: search every topic, too, if the named topics hold less than the commits say.
    ``dead_letters`` None: outputs and dead letters are counted together. ``level``: demand that no record waits.
    ``state``: computes the state that the sources give. The audit compares the state key by key, while the application
    rests, but for the stores named in ``without_stores``.
    ``accept_moved_keys``: sources with keys of state that may lie in several partitions.
    ``copies``: folders of copies of state on this machine, compared with the changelogs; also at work.
    ``plane``: put the counted tiles into the report; ``group``: put the figures of the group into the report.
    ``security``: client settings for Kafka. ``default_api_timeout_ms``: how long a question to Kafka is asked again,
    and how long a read may bring nothing.
    """

    app: str
    broker: str
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    default_api_timeout_ms: int = API_TIMEOUT_MS
    outputs: Sequence[str] | None = None
    or_elsewhere: bool = False
    dead_letters: Sequence[str] | None = None
    expected: Expected | None = None
    state: ExpectedState | None = None
    without_stores: Sequence[str] = ()
    accept_moved_keys: Sequence[str] = ()
    copies: Sequence[str] = ()
    level: bool = False
    plane: bool = False
    group: bool = False
    examples_max: int = 10

    @property
    def access(self) -> Access:
        """How the broker is reached."""
        return Access(self.broker, self.security, self.default_api_timeout_ms)


def audit(spark: SparkSession, spec: AuditSpec, pins: Pins | None = None) -> Report:
    """Audit an application, as of now or of ``pins``; raises AuditError when the audit can't be made."""
    register(spark)
    report = _audit_pinned(spark, spec, pins or pin_now(spec))
    if spec.outputs is None or not spec.or_elsewhere or not MISSING & set(report.violated_checks()):
        return report
    everywhere = replace(spec, outputs=None)
    report = _audit_pinned(spark, everywhere, pin_now(everywhere))
    elsewhere = sorted(report.destinations.keys() - {*spec.outputs, *(spec.dead_letters or ())})
    note = f"every topic was searched; outputs in topics that were not named: {', '.join(elsewhere) or 'none'}"
    return replace(report, notes=(*report.notes, note))


def _audit_pinned(spark: SparkSession, spec: AuditSpec, pins: Pins) -> Report:
    run = AuditContext(spark, spec.access, pins, spec.examples_max)
    try:
        return _report(run, spec)
    except PySparkException as error:
        raise AuditError(_cause(error) + (SEARCHED if spec.outputs is None else "")) from error
    finally:
        run.unpersist()


def pin_now(spec: AuditSpec) -> Pins:
    """Pin the logs, outputs and sources of the audit as of now; needs no Spark.

    Raises AuditError when logs, topics or folders of copies are missing or can't be read, or a named store is missing.
    """
    outputs = spec.outputs
    if outputs is not None:
        outputs = tuple(dict.fromkeys([*outputs, *(spec.dead_letters or ())]))
    broker = spec.access.open()
    try:
        pins = pin(broker, spec.app, outputs)
    finally:
        broker.close()
    _refuse_stores(spec, sorted(pins.grants.stores))
    copies_in(spec.copies, spec.app, pins.grants)
    return pins


def _refuse_stores(spec: AuditSpec, declared: Sequence[str]) -> None:
    if spec.state is not None and not declared:
        raise AuditError(f"state: the application {spec.app!r} has declared no store")
    if spec.without_stores and spec.state is None:
        raise AuditError("--without-store names a store that --state does not compare: give --state MODULE:FUNCTION")
    if unknown := [name for name in spec.without_stores if name not in declared]:
        raise AuditError(f"--without-store: {spec.app!r} has no store {unknown[0]!r}; it has {', '.join(declared)}")


def _report(run: AuditContext, spec: AuditSpec) -> Report:
    with run.phase("logs"):
        history = judge_logs(run, spec.app)
    with run.phase("commits"):
        tiles = judge_commits(run, history)

    def tiling() -> Plane:
        with run.phase("plane"):
            return judge_plane(run, history, tiles)

    def owning() -> GroupFigures | None:
        with run.phase("ownership"):
            return judge_group(run, history, tiles, has_figures=spec.group)

    # Plane, owners and records need the tiles only. Their jobs may overlap: planning a job keeps one core busy.
    with ThreadPoolExecutor(1, "plane") as beside:
        planned, owned = beside.submit(tiling), beside.submit(owning)
        with run.phase("records"):
            has_hooks = spec.expected is not None or spec.state is not None
            records = read_places(run, history, tiles, for_hooks=has_hooks)
        with run.phase("outputs"):
            outputs = judge_outputs(run, tiles, records, spec.dead_letters, spec.expected)
        with run.phase("state"):
            without, moved = sorted({*spec.without_stores}), spec.accept_moved_keys
            keys = judge_state(run, history, records, app=spec.app, expected=spec.state, without=without, moved=moved)
        with run.phase("copies"):
            copied = judge_copies(run, app=spec.app, folders=spec.copies) if spec.copies else 0
        plane = planned.result()
        group = owned.result()
    _check_heads(run, spec, outputs.destinations)
    sources = judge_records(run, records, plane, level=spec.level)
    figures = {
        "records": sum(source.records for source in sources),
        "records_done": sum(source.done for source in sources),
        "records_waiting": sum(source.waiting for source in sources),
        "outputs": sum(outputs.destinations.values()) - outputs.dead_letters,
        "dead_letters": outputs.dead_letters,
        "commits": tiles.commits,
        "tiles": plane.tiles_counted,
    }
    figures |= _count_not_judged(run, outputs)
    if run.pins.grants.stores:
        figures["state_keys"] = keys
    if spec.copies:
        figures["keys_of_copies"] = copied
    return Report(
        app=spec.app,
        broker=spec.broker,
        checks=tuple(sorted(run.found, key=lambda check: CHECKS.index(check.name))),
        sources=sources,
        figures=figures,
        destinations=outputs.destinations,
        notes=tuple(run.notes),
        not_looked_at=tuple(run.not_looked_at),
        seconds=run.seconds,
        plane=_plane_log(run, history, tiles) if spec.plane else NO_PLANE,
        group=group,
    )


def _check_heads(run: AuditContext, spec: AuditSpec, destinations: Iterable[str]) -> None:
    """Refuse outputs deleted during the audit: deleted outputs look missing. Note outputs deleted before the audit."""
    ours = {*destinations, *(spec.outputs or ()), *(spec.dead_letters or ())}
    pinned = {place: span for place, span in run.pins.outputs.items() if place[0] in ours}
    broker = spec.access.open()
    try:
        now = broker.spans(pinned)
    finally:
        broker.close()
    if lost := sorted(place for place in pinned if now[place].start > pinned[place].start):
        raise AuditError(f"outputs were deleted from the head of {lost} while they were judged: run it again")
    for topic, partition in sorted(place for place in pinned if pinned[place].start > 0):
        run.notes.append(
            f"{topic}[{partition}] begins at offset {pinned[topic, partition].start}: outputs below it are gone, and "
            "the commits that made them can't be recomputed"
        )


def _count_not_judged(run: AuditContext, outputs: Outputs) -> dict[str, int]:
    """Figures of records with a header that are no outputs of the application; the notes name their topics."""
    figures = {}
    if outputs.of_others:
        figures["outputs_of_others"] = sum(outputs.of_others.values())
        _note_others(run, outputs.of_others)
    if outputs.replays:
        figures["replays"] = sum(n for n, _, _ in outputs.replays.values())
        _note_replays(run, outputs.replays)
    return figures


def _note_others(run: AuditContext, of_others: Mapping[str, int]) -> None:
    shown = ", ".join(f"{topic} {n:,}" for topic, n in list(of_others.items())[:TOPICS_SHOWN])
    more = len(of_others) - TOPICS_SHOWN
    shown += f" and {more:,} topics more" if more > 0 else ""
    run.notes.append(f"outputs of other applications are counted and not judged: {shown}")


def _note_replays(run: AuditContext, replays: Mapping[str, tuple[int, int, int]]) -> None:
    first = "the first in partition {} at offset {}"
    shown = ", ".join(f"{topic} {n:,} ({first.format(*place)})" for topic, (n, *place) in replays.items())
    run.notes.append(f"dead letters that were written back to their source are no outputs, but its records: {shown}")


def _plane_log(run: AuditContext, history: LogFold, tiles: Tiles) -> PlaneLog:
    order = ("log_partition", "position", "item")
    names = ("source", "incarnation", "transaction", "worker", "count", "first", "end", "offset_from", "offset_to")
    table = tiles.tiles.select(*order, *names).orderBy(*order).toArrow()
    columns = [table[i].to_pylist() for i in range(len(order), len(order) + len(names))]
    found = [PlaneTile(*run.sources[number], *rest) for number, *rest in zip(*columns, strict=True)]
    places = list(zip(table[0].to_pylist(), table[1].to_pylist(), strict=True))
    rare = [
        (bisect_left(places, (log, position)), event)
        for log, events in history.rare.items()
        for position, event in events
    ]
    return plane_log(found, rare, ranges_of(history.workers))


def _cause(error: PySparkException) -> str:
    """The sentence of a reader's error, without Spark's stack."""
    for line in str(error).splitlines():
        for name in ("AuditError: ", "EventError: ", "RocksError: "):
            if name in line:
                return line.partition(name)[2]
    return str(error)
