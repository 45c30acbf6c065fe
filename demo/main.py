"""The demo: load the flights, run the application on them, draw the plane, prove the run from its logs.

It may be killed at any time; the same command goes on where it stopped. Only the last step forgets nothing: a run whose
figures are wrong, or that is not proven, stays as it is and is judged again, until ``--reset``.
"""

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..brokers.protocol import Broker, BrokerError, TopicSpec
from ..devkafka.jars import KAFKA_VERSION, damaged_jars, pinned_jars
from ..devkafka.java import cache_folder, java_home
from ..devkafka.server import KafkaServer
from ..errors import BrokerUnavailable
from ..runtime.connect import connect
from ..runtime.settings import Settings
from ..runtime.watch.progress import ProgressShown
from .application import APP, ARRIVALS, DEAD_TOPIC, LATE_TOPIC, PARALLELISING_FACTOR, make_app
from .figures import Collected, Counts, collect, counts_expected
from .flights import FLIGHTS, PARTITIONS, data_file
from .loader import KEEP, SOURCE, Loader
from .logbook import Logbook, read_logbook
from .place import DemoPlace
from .processing import Processing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HANDLER_MS = 5.0
EXIT_WRONG, EXIT_INTERRUPTED = 1, 130
NAME = "demo"
"""Of the one process: when it was killed, the next one of this name waits but two beats."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """``folder`` None: ``.keylanes/demo-<broker>`` here. ``handler_ms``: how long each record keeps its handler.

    ``steps``: a file that the steps of loading and committing are appended to as they are taken, for tests that kill.
    """

    broker: Literal["embedded", "kafka"] = "embedded"
    folder: Path | None = None
    reset: bool = False
    rows: int = FLIGHTS
    handler_ms: float = HANDLER_MS
    with_audit: bool = True
    steps: Path | None = None
    as_json: bool = False


def run_demo(options: DemoOptions) -> int:
    """Run it, or what is left of it; the exit code. Raises KeylanesError, and SystemExit when the application stops."""
    place = DemoPlace(options.folder or Path(".keylanes") / f"demo-{options.broker}")
    say = _say_to_stderr if options.as_json else _say
    with place.held(), _log_to(place.log):
        try:
            return _Demo(options, place, say).run()
        except KeyboardInterrupt:
            say("Interrupted. The same command goes on where this one stopped.")
            return EXIT_INTERRUPTED
        except BrokerError as error:
            raise BrokerUnavailable(str(error)) from error


class _Demo:
    """One start of the demo."""

    def __init__(self, options: DemoOptions, place: DemoPlace, say: Say) -> None:
        self.options, self.place, self.say = options, place, say
        self.settings = Settings()
        self.seconds: dict[str, float] = {}
        self._spark: Future[SparkSession] | None = None
        self._steps = -1

    def run(self) -> int:
        """All phases that are left."""
        _announce(self.options, self.say)
        if self.options.with_audit or self.options.broker == "kafka":
            os.environ.update(java_home().environment(os.environ))  # missing? then say so now, not after the run
        if self.place.open(self.options.rows, reset=self.options.reset):
            self.say(f"An interrupted demo lies in {self.place.folder}: it goes on ({self.place.state.phase}).")
        with self._broker() as address, self._noting_steps(), self._ending_spark():
            if self.place.state.phase == "load":
                with self._phase("load"):
                    asyncio.run(self._load(address))
                self.place.reached("process")
            if self.place.state.phase == "process":
                collected = self._process_all(address)
                if not collected.figures.is_level:
                    self.say("Stopped before the end. The same command goes on where this one stopped.")
                    return EXIT_INTERRUPTED
                self.place.reached("audit")
            else:
                with self._phase("count"):
                    collected = asyncio.run(_with_broker(address, self.settings, collect))
            return self._judge(address, collected)

    # --- the phases ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _broker(self) -> Iterator[str]:
        """The broker's address. A Kafka of ours stops with this, and dies with this process."""
        if self.options.broker == "embedded":
            yield f"embedded:{self.place.data}"
            return
        with ProgressShown(f"fetching Apache Kafka {KAFKA_VERSION}", 2 * len(pinned_jars())) as shown:
            server = KafkaServer(self.place.data, progress=shown.move)
            with self._phase("start Kafka"):
                server.start()
        self.say(f"Apache Kafka {KAFKA_VERSION} runs at {server.bootstrap} (process {server.pid}).")
        try:
            yield f"kafka://{server.bootstrap}"
        finally:
            server.stop()

    async def _load(self, address: str) -> None:
        with ProgressShown("loading flights", self.options.rows) as shown:

            async def loading(broker: Broker) -> None:
                loader = Loader(
                    broker, self.options.rows, self.settings, on_progress=shown.move, on_step=self._note_step
                )
                await loader.run()

            await _with_broker(address, self.settings, loading)

    def _process_all(self, address: str) -> Collected:
        """Process what there is, or what there is until a signal comes."""
        with self._phase("process"):
            self._process(address)
        with self._phase("count"):
            collected: Collected = asyncio.run(_with_broker(address, self.settings, collect))
            return collected

    def _process(self, address: str) -> None:
        """One run of the application."""
        book: Logbook = asyncio.run(_with_broker(address, self.settings, _prepare))
        settings = self.settings
        if self.options.broker == "kafka":  # the embedded broker keeps state itself, and is alone
            settings = msgspec.structs.replace(settings, state_folder=str(self.place.copies), group_instance_id=NAME)
        expected = 2 * self.options.rows  # about: almost every flight also arrives
        with ProgressShown("processing flights and arrivals", expected) as shown:
            processing = Processing(
                make_app(address, settings, handler_ms=self.options.handler_ms),
                sum(book.areas().values()) >> 32,
                expected,
                on_step=self._note_step,
                on_progress=shown.move,
                on_half=lambda: self._begin_spark(address),
            )
            processing.run()

    def _judge(self, address: str, collected: Collected) -> int:
        expected = counts_expected(self.options.rows)
        with ThreadPoolExecutor(1) as beside:  # the picture is drawn while Spark starts or begins
            drawing = beside.submit(_draw, self.place.picture, collected)
            audit = self._audit(address) if self.options.with_audit else None
            drawing.result()
        wrong = _differences(collected.figures.counts, expected)
        if audit is not None:
            seen = {
                "records_done": expected.records + expected.arrivals,
                "outputs": expected.late + expected.arrivals,
                "dead_letters": expected.dead_letters,
            }
            wrong += [
                f"{name}: the audit counts {audit['figures'][name]:,}, expected are {want:,}"
                for name, want in seen.items()
                if audit["figures"][name] != want
            ]
        is_right = not wrong and (audit is None or bool(audit["proven"]))
        self._report(collected, audit, wrong, is_right=is_right)
        if not is_right:
            return EXIT_WRONG
        self.place.reached("finished")
        return 0

    def _audit(self, address: str) -> dict[str, Any]:
        with self._phase("start Spark"):
            from ..spark.audit import AuditSpec, audit
            from .expectation import expected_outputs, expected_state

            self.say("The audit: Spark reads logs, sources, outputs and state again, and proves the run from them.")
            self._begin_spark(address)
            assert self._spark is not None, "it was begun"
            spark = self._spark.result()
        with self._phase("audit"):
            spec = AuditSpec(
                app=APP,
                broker=address,
                outputs=[LATE_TOPIC, ARRIVALS],
                dead_letters=[DEAD_TOPIC],
                expected=expected_outputs,
                state=expected_state,
                level=True,
            )
            report = audit(spark, spec)
        self.say("\n" + report.to_text() + "\n")
        return report.to_dict()

    def _begin_spark(self, address: str) -> None:
        """Start it beside the processing, which keeps one core busy; a second call does nothing."""
        if self.options.with_audit and self._spark is None:
            beside = ThreadPoolExecutor(1, "spark")
            self._spark = beside.submit(_warm_session, address)
            beside.shutdown(wait=False)

    def _report(self, collected: Collected, audit: dict[str, Any] | None, wrong: list[str], *, is_right: bool) -> None:
        figures = collected.figures
        verdict = "not audited" if audit is None else "exactly once: proven" if audit["proven"] else "NOT proven"
        counts = figures.counts
        lines = [
            ("flights processed", f"{counts.records:,}"),
            ("late, published by aircraft", f"{counts.late:,}"),
            ("left and never arrived: dead letters", f"{counts.dead_letters:,}"),
            ("cancelled, no output", f"{counts.cancelled:,}"),
            ("arrivals, handled by destination", f"{counts.arrivals:,}"),
            ("workers", f"{figures.workers:,} on {PARTITIONS} partitions, {self.options.handler_ms:g} ms a record"),
            ("throughput", f"{figures.records_per_s:,.0f} records/s in {figures.seconds:.1f} s of processing"),
            ("tiles", f"{figures.tiles:,} in {figures.commits:,} commits"),
            ("ranges, while it ran", ", ".join(f"{n} {kind}s" for kind, n in figures.changes.items())),
            ("offset log", f"{figures.log_bytes_per_record:.1f} bytes a record"),
            ("the plane", str(self.place.picture)),
        ]
        if audit is not None:
            lines.append(("state: running totals", _state_verdict(audit)))
        lines.append(("verdict", verdict))
        self.say("\n".join(f"  {name:<38}{value}" for name, value in lines))
        for difference in wrong:
            self.say(f"  WRONG: {difference}")
        if not is_right:
            self.say(f"\nThe data stay in {self.place.folder}; --reset (or RESET=1) starts afresh.")
        document = {
            "broker": self.options.broker,
            "is_right": is_right,
            "verdict": verdict,
            "wrong": wrong,
            "figures": {
                **msgspec.structs.asdict(figures),
                "counts": msgspec.structs.asdict(counts),
                "records_per_s": figures.records_per_s,
                "log_bytes_per_record": figures.log_bytes_per_record,
            },
            "handler_ms": self.options.handler_ms,
            "workers_per_partition": PARALLELISING_FACTOR,
            "seconds": self.seconds,
            "picture": str(self.place.picture),
            "audit": audit,
        }
        encoded = msgspec.json.format(msgspec.json.encode(document), indent=1)
        self.place.report.write_bytes(encoded)
        if self.options.as_json:
            sys.stdout.write(encoded.decode() + "\n")

    # --- what goes on ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0) + time.monotonic() - began, 2)
        if name in ("load", "process", "audit"):
            self.say(f"{name}: {self.seconds[name]:.1f} s")

    @contextlib.contextmanager
    def _ending_spark(self) -> Iterator[None]:
        try:
            yield
        finally:
            if self._spark is not None and self._spark.exception() is None:
                self._spark.result().stop()

    @contextlib.contextmanager
    def _noting_steps(self) -> Iterator[None]:
        if self.options.steps is None:
            yield
            return
        self._steps = os.open(self.options.steps, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            yield
        finally:
            os.close(self._steps)

    def _note_step(self, step: str) -> None:
        if self._steps >= 0:  # straight to the system: what a killed process has noted stays
            os.write(self._steps, f"{time.time():.6f} {step}\n".encode())


def _warm_session(address: str) -> "SparkSession":
    """A session that has read nothing once, so that its processes are there."""
    from ..spark.job import session
    from ..spark.source import register

    spark = session()
    register(spark)
    spark.read.format("keylanes_records").option("broker", address).option("spans", "[]").load().count()
    return spark


async def _with_broker(address: str, settings: Settings, work: Callable[[Broker], Any]) -> Any:
    broker = connect(address, settings, APP)
    await broker.open()
    try:
        return await work(broker)
    finally:
        await broker.close()


def _announce(options: DemoOptions, say: Say) -> None:
    """First of all: what is going to be fetched, and what is going to happen."""
    data_file()
    jars = pinned_jars()
    if options.broker == "kafka" and damaged_jars(cache_folder(os.environ) / f"kafka-{KAFKA_VERSION}", jars):
        say(f"To be fetched: Apache Kafka {KAFKA_VERSION}, {sum(jar.size for jar in jars) / 1e6:.0f} MB.")
    else:
        say("To be fetched: nothing.")
    kind = "a real Apache Kafka" if options.broker == "kafka" else "the embedded broker"
    proof = ", then a proof by Spark" if options.with_audit else ""
    say(f"The demo: {options.rows:,} flights of 2013 on {kind}, {PARALLELISING_FACTOR} workers a partition{proof}.")


def _draw(path: Path, collected: Collected) -> None:
    from .picture import draw_plane

    figures = collected.figures
    book, stretch = collected.book, collected.stretch
    tiles = [tile for tile in book.tiles if tile.topic == SOURCE]
    changes = [change for change in book.changes if change[0].topic == SOURCE]
    title = (
        f"{figures.counts.records:,} flights, {figures.workers:,} workers, {figures.commits:,} commits: "
        f"{len(tiles):,} tiles"
    )
    records = collected.records
    draw_plane(tiles, path, title=title, stretch=stretch, records=records, changes=changes, ranges=book.ranges)


async def _prepare(broker: Broker) -> Logbook:
    await broker.create([TopicSpec(ARRIVALS, PARTITIONS, KEEP)])
    return await read_logbook(broker, APP)


def _state_verdict(audit: dict[str, Any]) -> str:
    keys = audit["figures"].get("state_keys", 0)
    unlike = next((check["violations"] for check in audit["checks"] if check["name"] == "state"), 0)
    if unlike:
        return f"{unlike:,} of {keys:,} keys DIFFER from what Spark computes from the flights"
    return f"{keys:,} keys, each equal to what Spark computes from the flights"


def _differences(seen: Counts, expected: Counts) -> list[str]:
    return [
        f"{name.replace('_', ' ')}: {value:,}, expected are {getattr(expected, name):,}"
        for name, value in msgspec.structs.asdict(seen).items()
        if value != getattr(expected, name)
    ]


@contextlib.contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """The runtime's log goes to a file (a dead letter is a line, and there are more than a thousand); fatal: shown."""
    logger = logging.getLogger("keylanes")
    before = logger.propagate, logger.level
    file = logging.FileHandler(path, encoding="utf-8", delay=True)
    file.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(message)s"))
    shown = logging.StreamHandler()
    shown.setLevel(logging.CRITICAL)
    logger.addHandler(file)
    logger.addHandler(shown)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.propagate, level = before
        logger.setLevel(level)
        logger.removeHandler(file)
        logger.removeHandler(shown)
        file.close()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _say_to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
