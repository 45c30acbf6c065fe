"""The audit as a program: ``python -m keylanes.spark.job --broker embedded:./data --app flights``.

Exit codes: 0 proven, 1 some statement does not hold, 2 wrong usage, or the logs can't be read or understood. The Java
comes from ``JAVA_HOME``, else from the path.
"""

import argparse
import atexit
import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .access import Access, address_without_login, parse_security
from .brokers import AuditError
from .kafka_clients import API_TIMEOUT_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .audit import AuditSpec
    from .judge_outputs import Expected
    from .judge_state import ExpectedState

FAST_START = (
    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmn600m", "-XX:MetaspaceSize=256m"),
    *("-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr"),
)
"""A job of seconds gains nothing from the optimising compiler and a parallel collector. Room for young objects and for
classes saves a tenth of the time: fewer collections.
"""

LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{1}: %m%n
"""
"""Spark's own logging: lines below the level error would hide the report."""
ARCHIVE_S_MAX = 120.0


def session(
    master: str = "local[*]", *, shuffle_partitions: int | None = None, class_archive: Path | None = None
) -> "SparkSession":
    """A quiet session on this machine, or the running session.

    ``class_archive`` (an AppCDS file of this JVM and Spark) makes the start some seconds faster. The JVM writes a
    missing archive at its end; ``stop`` waits for the archive.
    """
    from pyspark.sql import SparkSession

    settings_file = Path(tempfile.mkdtemp(prefix="keylanes-spark-")) / "log4j2.properties"
    settings_file.write_text(LOGGING)
    atexit.register(shutil.rmtree, settings_file.parent, ignore_errors=True)
    java = [*FAST_START, f"-Dlog4j2.configurationFile={settings_file}"]
    if class_archive is not None and class_archive.is_file():
        java.append(f"-XX:SharedArchiveFile={class_archive}")
    elif class_archive is not None:
        class_archive.parent.mkdir(parents=True, exist_ok=True)
        java.append(f"-XX:ArchiveClassesAtExit={_temporary_path(class_archive)}")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    partitions = shuffle_partitions or max(2, min(16, os.cpu_count() or 2))
    builder = SparkSession.builder.master(master).appName("keylanes audit")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": " ".join(java),
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.adaptive.enabled": "false",  # extra stages cost more than they save at this size
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",  # an overflow must be an error, never a wrong sum
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def stop(spark: "SparkSession", class_archive: Path | None = None) -> None:
    """Stop the session. If the class archive is missing, also end the JVM and wait for the JVM to write the archive."""
    from pyspark import SparkContext

    spark.stop()
    if class_archive is None or class_archive.is_file():
        return
    gateway = SparkContext._gateway
    if gateway is None:
        return
    java = gateway.proc
    gateway.shutdown()
    java.stdin.close()  # the JVM ends with its stdin
    SparkContext._gateway = SparkContext._jvm = None  # a later session starts another JVM
    try:
        java.wait(ARCHIVE_S_MAX)
        os.replace(_temporary_path(class_archive), class_archive)
    except (OSError, subprocess.TimeoutExpired):
        _temporary_path(class_archive).unlink(missing_ok=True)


def _temporary_path(class_archive: Path) -> Path:
    return class_archive.with_name(class_archive.name + ".new")


def allow_all(_access: Access) -> None:
    """Allow connections to every address that the brokers advertise."""


def main(
    argv: Sequence[str] | None = None,
    security: Mapping[str, str] | None = None,
    look: Callable[[Access], None] = allow_all,
) -> int:
    """Run the audit and print its report; returns the exit code.

    ``security``: client settings for Kafka where ``--client-settings`` gives none. The settings do not come on the
    command line, because everybody on the machine may read a command line. ``look`` is called before the first
    connection, and raises AuditError to forbid connections.
    """
    args = _parser().parse_args(argv)
    try:
        spec = _spec(args, security or {})
        look(spec.access)
        return _run(spec, args)
    except AuditError as error:
        if args.json:
            print(json.dumps({"app": args.app, "broker": address_without_login(args.broker), "error": str(error)}))
        print(f"audit: {error}", file=sys.stderr)
        return 2


def _run(spec: "AuditSpec", args: argparse.Namespace) -> int:
    from .audit import audit, pin_now

    if args.group_plot:
        from .group_picture import draw_group  # here: a missing extra `plot` fails before Spark is started
    if args.plane_plot:
        from .plane_picture import draw_report

    pins = pin_now(spec)  # first: the start of Spark takes seconds
    archive = Path(args.class_archive) if args.class_archive else None
    spark = session(args.master, class_archive=archive)
    try:
        report = audit(spark, spec, pins)
    finally:
        stop(spark, archive)
    if args.group_plot and report.group is not None:
        draw_group(report.group, args.group_plot, title=f"Who owned what: {spec.app}")
    if args.plane_plot:
        draw_report(report, args.plane_plot)
    print(report.to_json() if args.json else report.to_text())
    return report.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="keylanes audit",
        description="Prove from the logs what an application did.",
        epilog="Exit codes: 0 proven; 1 a statement does not hold; 2 wrong usage, or the logs can't be read or "
        "understood. See docs/exit-codes.md.",
    )
    parser.add_argument("--broker", required=True, help="kafka://host:port or embedded:folder")
    parser.add_argument("--app", required=True, help="the application's name")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--level", action="store_true", help="demand that no record waits")
    parser.add_argument("--group", action="store_true", help="report who took part, what moved, who owned how much")
    parser.add_argument("--group-plot", metavar="FILE", help="draw who owned what over the time; needs the extra plot")
    parser.add_argument("--plane-plot", metavar="FILE", help="draw the plane with its tiles; needs the extra plot")
    parser.add_argument("--outputs", action="append", metavar="TOPIC", help="read these topics (repeat); else all")
    parser.add_argument(
        "--or-elsewhere",
        action="store_true",
        help="search every topic if the named ones hold less than the commits say; MODULE:APP names what it declares",
    )
    parser.add_argument("--dead-letters", action="append", metavar="TOPIC", help="a dead-letter topic (repeat)")
    parser.add_argument("--expected", metavar="MODULE:FUNCTION", help="computes the expected outputs from the sources")
    parser.add_argument("--state", metavar="MODULE:FUNCTION", help="computes the expected state from the sources")
    parser.add_argument(
        "--without-store", action="append", metavar="NAME", help="a store that --state does not compare (repeat)"
    )
    parser.add_argument(
        "--accept-moved-keys",
        action="append",
        metavar="TOPIC",
        help="a source of which it is not looked at that each key of state lies in one partition (repeat); MODULE:APP "
        "names what it accepts",
    )
    parser.add_argument(
        "--copies",
        action="append",
        default=[],
        metavar="FOLDER",
        help="compare the copies of state in a state folder, or in a subfolder of it (repeat), with the changelogs",
    )
    parser.add_argument("--client-settings", metavar="FILE", help="settings of the Kafka client: JSON or name=value")
    parser.add_argument(
        "--default-api-timeout-ms",
        type=int,
        default=API_TIMEOUT_MS,
        metavar="MS",
        help=f"how long a question to Kafka is asked again, and how long a read may stand still ({API_TIMEOUT_MS})",
    )
    parser.add_argument("--examples", type=int, default=10, metavar="N", help="examples of each violation")
    parser.add_argument("--master", default="local[*]", help="where Spark runs")
    parser.add_argument("--class-archive", metavar="FILE", help="an AppCDS archive for a faster start; made if missing")
    return parser


def _spec(args: argparse.Namespace, security: Mapping[str, str]) -> "AuditSpec":
    try:
        from .audit import AuditSpec
    except ImportError as error:
        raise AuditError(f"the audit needs the extra keylanes[spark]: {error}") from None
    if args.default_api_timeout_ms < 1:
        raise AuditError(f"--default-api-timeout-ms is 1 or more; seen {args.default_api_timeout_ms}")
    if args.client_settings:
        try:
            security = parse_security(Path(args.client_settings).read_text())
        except OSError as error:
            raise AuditError(f"client settings: {error}") from None
    return AuditSpec(
        app=args.app,
        broker=args.broker,
        security=security,
        default_api_timeout_ms=args.default_api_timeout_ms,
        outputs=args.outputs,
        or_elsewhere=args.or_elsewhere,
        dead_letters=args.dead_letters,
        expected=_hook("expected", args.expected) if args.expected else None,
        state=_hook("state", args.state) if args.state else None,
        without_stores=args.without_store or (),
        accept_moved_keys=args.accept_moved_keys or (),
        copies=args.copies,
        level=args.level,
        plane=bool(args.plane_plot),
        group=args.group or bool(args.group_plot or args.plane_plot),
        examples_max=args.examples,
    )


def _hook(option: str, name: str) -> "Expected | ExpectedState":
    """The function of an option, with the arguments session and records; raises AuditError.

    Modules of the working directory are found.
    """
    module, _, function = name.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Expected = getattr(importlib.import_module(module), function)
    except Exception as error:  # an imported module may raise anything
        raise AuditError(f"{option}: module:function; seen {name!r}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise AuditError(f"{option}: module:function; seen {name!r}, which is no function but {type(found).__name__}")
    try:
        signature = inspect.signature(found)
    except ValueError:  # a built-in function tells no signature
        return found
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise AuditError(
            f"{option}: module:function; seen {name!r}, which takes {signature}: {error}. It is called with two "
            "arguments, the SparkSession and a DataFrame of the source records that are done: docs/state.md"
        ) from None
    return found


if __name__ == "__main__":
    sys.exit(main())
