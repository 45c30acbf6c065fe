"""The audit of one application: ``audit(spark, AuditSpec(app="flights", broker="embedded:./data"))``.

Everything is derived from the logs, the sources and the visible outputs, never from the runtime's ledger. Records and
ends come from the source topics: a truncated log would prove itself. The statements are in checks.py, the stages in
judge_*.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from .brokers import AuditError, absolute_url, open_broker
from .judge_logs import judge_logs
from .judge_outputs import Expected, judge_outputs
from .judge_plane import Plane, judge_plane
from .judge_records import judge_records
from .pins import Pins, pin
from .report import Report, TileRow
from .run import Run
from .source import register


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSpec:
    """What to audit. ``outputs`` None: every topic is searched for outputs of this application.

    ``dead_letters`` None: outputs and dead letters are counted together. ``level``: demand that no record waits.
    ``tiles``: put the counted tiles into the report. ``security``: client settings for Kafka.
    """

    app: str
    broker: str
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    outputs: Sequence[str] | None = None
    dead_letters: Sequence[str] | None = None
    expected: Expected | None = None
    level: bool = False
    tiles: bool = False
    examples_max: int = 10


def audit(spark: SparkSession, spec: AuditSpec) -> Report:
    """Audit an application; raises AuditError when the audit can't be made."""
    register(spark)
    url = absolute_url(spec.broker)
    run = Run(spark, url, spec.security, _pins(spec, url), spec.examples_max)
    try:
        return _report(run, spec)
    except PySparkException as error:
        raise AuditError(_cause(error)) from error
    finally:
        run.release()


def _pins(spec: AuditSpec, url: str) -> Pins:
    outputs = spec.outputs
    if outputs is not None:
        outputs = tuple(dict.fromkeys([*outputs, *(spec.dead_letters or ())]))
    broker = open_broker(url, spec.security)
    try:
        return pin(broker, spec.app, outputs)
    finally:
        broker.close()


def _report(run: Run, spec: AuditSpec) -> Report:
    with run.phase("logs"):
        history = judge_logs(run, spec.app)
    with run.phase("plane"):
        plane = judge_plane(run, history)
    with run.phase("records"):
        records = judge_records(run, history, plane, level=spec.level)
    with run.phase("outputs"):
        outputs = judge_outputs(run, plane, records, spec.dead_letters, spec.expected)
    figures = {
        "records": sum(source.records for source in records.figures),
        "records_done": sum(source.done for source in records.figures),
        "records_waiting": sum(source.waiting for source in records.figures),
        "outputs": sum(outputs.destinations.values()) - outputs.dead_letters,
        "dead_letters": outputs.dead_letters,
        "commits": plane.commits,
        "tiles": plane.tiles_counted,
    }
    return Report(
        app=spec.app,
        broker=spec.broker,
        checks=tuple(run.found),
        sources=records.figures,
        figures=figures,
        destinations=outputs.destinations,
        notes=tuple(run.notes),
        seconds=run.seconds,
        tiles=_tile_rows(run, plane) if spec.tiles else (),
    )


def _tile_rows(run: Run, plane: Plane) -> tuple[TileRow, ...]:
    names = ("source", "incarnation", "worker", "count", "first", "end", "offset_from", "offset_to")
    table = plane.tiles.select(*names).toArrow()
    columns = [table[i].to_pylist() for i in range(len(names))]
    return tuple((*run.sources[number], *rest) for number, *rest in zip(*columns, strict=True))


def _cause(error: PySparkException) -> str:
    """The sentence of a reader's error, without Spark's stack."""
    for line in str(error).splitlines():
        for name in ("AuditError: ", "EventError: ", "RocksError: "):
            if name in line:
                return line.partition(name)[2]
    return str(error)
