"""The demo: load the flights, run the application on them, draw the plane, prove the run from its logs.

It may be killed at any time; the same command goes on where it stopped. Only the last step forgets nothing: a run whose
figures are wrong, or that is not proven, stays as it is and is judged again, until ``--reset``.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..brokers.protocol import Broker, BrokerError, Outgoing, TopicSpec
from ..devkafka.jars import KAFKA_VERSION, damaged_jars, pinned_jars
from ..devkafka.java import cache_folder, java_home
from ..devkafka.server import KafkaServer
from ..errors import BrokerUnavailable
from ..group.heard import partition_of
from ..offsets.codec import encode
from ..offsets.signals import MoveAsked
from ..runtime.connect import connect
from ..runtime.logs.reader import signals_topic
from ..runtime.settings import Settings
from ..runtime.watch.progress import ProgressShown
from .application import APP, ARRIVALS, DEAD_TOPIC, LATE_TOPIC, PARALLELISING_FACTOR, make_app
from .child import NO_STEPS, ChildSpec
from .course import FLIGHTS_PER_S_OF_MANY, NAME, Course, Told, course_of, is_quiet
from .figures import Collected, collect, counts_expected
from .flights import FLIGHTS, PARTITIONS, data_file
from .loader import KEEP, SOURCE, Loader
from .logbook import Logbook, read_at_rest, read_history, read_logbook
from .members import Members
from .place import DemoPlace
from .processing import CUTS, Processing
from .report import differences, document_of, text_of
from .saying import Say, log_to, say, say_to_stderr
from .wishes import BY, Wish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HANDLER_MS = 5.0
EXIT_WRONG, EXIT_INTERRUPTED = 1, 130


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """``folder`` None: ``.keylanes/demo-<broker>`` here. ``handler_ms``: how long each record keeps its handler.

    ``members``: how many processes share the work, each started by the demo; ``processes``: or so many, which one
    service keeps, ``app.run(processes=…)``. More than one need a Kafka, and some are killed (course.py).

    ``flights_per_s``: what each process handles at most, where the course slows them.

    ``steps``: a file that the steps of loading and committing are appended to as they are taken, for tests that kill;
    those of ``processes`` are not.
    """

    broker: Literal["embedded", "kafka"] = "embedded"
    members: int = 1
    processes: int = 1
    folder: Path | None = None
    reset: bool = False
    rows: int = FLIGHTS
    handler_ms: float = HANDLER_MS
    flights_per_s: int = FLIGHTS_PER_S_OF_MANY
    with_audit: bool = True
    steps: Path | None = None
    as_json: bool = False


def run_demo(options: DemoOptions) -> int:
    """Run it, or what is left of it; the exit code. Raises KeylanesError, and SystemExit when the application stops."""
    course = course_of(options.members, options.processes, options.broker)
    place = DemoPlace(options.folder or Path(".keylanes") / f"demo-{options.broker}")
    tell = say_to_stderr if options.as_json else say
    with place.held(), log_to(place.log, NAME):
        try:
            return _Demo(options, course, place, tell).run()
        except KeyboardInterrupt:
            tell("Interrupted. The same command goes on where this one stopped.")
            return EXIT_INTERRUPTED
        except BrokerError as error:
            raise BrokerUnavailable(str(error)) from error


class _Demo:
    """One start of the demo."""

    def __init__(self, options: DemoOptions, course: Course, place: DemoPlace, say: Say) -> None:
        self.options, self.course, self.place, self.say = options, course, place, say
        """``course``: as a new run begins."""
        self.settings = Settings()
        self.seconds: dict[str, float] = {}
        self._spark: Future[SparkSession] | None = None
        self._steps = NO_STEPS

    def run(self) -> int:
        """All phases that are left."""
        _announce(self.options, self.course, self.say)
        if self.options.with_audit or self.options.broker == "kafka":
            os.environ.update(java_home().environment(os.environ))  # missing? then say so now, not after the run
        if self.place.open(self.options.rows, reset=self.options.reset, course=self.course):
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
                    collected = asyncio.run(_with_broker(address, self.settings, self._collect))
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
            collected: Collected = asyncio.run(_with_broker(address, self.settings, self._collect))
            return collected

    async def _collect(self, broker: Broker) -> Collected:
        return await collect(broker, self.place.state.course)

    def _process(self, address: str) -> None:
        """One run of the application: in this process, or in several that are watched by it."""
        book: Logbook = asyncio.run(_with_broker(address, self.settings, _prepare))
        before = sum(book.areas().values()) >> 32
        expected = 2 * self.options.rows  # about: almost every flight also arrives
        with ProgressShown("processing flights and arrivals", expected) as shown:

            def moved(done: int) -> None:
                shown.move(done)
                if done > expected / 2:
                    self._begin_spark(address)

            if self.course.members == 1:
                self._process_here(address, before, expected, moved)
            else:
                self._process_in_several(address, before, expected, moved)

    def _process_here(self, address: str, before: int, expected: int, moved: Callable[[int], None]) -> None:
        settings = self.settings
        if self.options.broker == "kafka":  # the embedded broker keeps state itself, and is alone
            # With a name: when it was killed, the next one of this name waits but two beats.
            settings = msgspec.structs.replace(settings, state_folder=str(self.place.copies), group_instance_id=NAME)
        app = make_app(address, settings, handler_ms=self.options.handler_ms)

        def is_near_end() -> bool:
            done = before + app.statistics().records_done
            return is_quiet(done / expected, self.place.state.course)

        def on_told(told: Told) -> None:
            moved(before + told.records_done)

        Processing(app, before, is_quiet=is_near_end, on_step=self._note_step, on_told=on_told).run()

    def _process_in_several(self, address: str, before: int, expected: int, moved: Callable[[int], None]) -> None:
        def spec_of(name: str) -> ChildSpec:
            return ChildSpec(
                name=name,
                address=address,
                copies=str(self.place.copies),
                log=str(self.place.log),
                loud=str(self.place.loud),
                slow=str(self.place.slow),
                handler_ms=self.options.handler_ms,
                seed=str(before),
                steps=self._steps,
                max_in_flight=self.course.max_in_flight(self.options.handler_ms, self.options.flights_per_s),
                processes=self.course.members if self.course.is_kept else 1,
                may_return=self.course.is_kept,
            )

        async def coordinator() -> str:
            found: str = await _with_broker(address, self.settings, _coordinator)
            return found

        async def at_rest() -> frozenset[str]:
            names: frozenset[str] = await _with_broker(address, self.settings, lambda broker: read_at_rest(broker, APP))
            return names

        async def ask(number: int, wish: Wish) -> None:
            await _with_broker(address, self.settings, lambda broker: _asked(broker, number, wish))

        members = Members(
            self.place.state.course,
            spec_of,
            descriptors=[fd for fd in (self.place.lock, self._steps) if fd not in (None, NO_STEPS)],
            loud=self.place.loud,
            slow=self.place.slow,
            places=[(topic, partition) for topic in CUTS for partition in range(PARTITIONS)],
            before=before,
            expected=expected,
            coordinator=coordinator,
            at_rest=at_rest,
            ask=ask,
            on_progress=moved,
            on_course=self.place.went,
            say=self.say,
        )
        asyncio.run(members.run())
        if members.failure is not None:
            self.say(
                f"{members.failure}; all others were stopped. What it said is in {self.place.log}, in the lines of its "
                f"name; docs/exit-codes.md says what the code means. The same command goes on where this one stopped."
            )
            raise SystemExit(members.exit_code)

    def _judge(self, address: str, collected: Collected) -> int:
        expected = counts_expected(self.options.rows)
        with ThreadPoolExecutor(1) as beside:  # the picture is drawn while Spark starts or begins
            drawing = beside.submit(_draw, self.place.picture, collected)
            audit = self._audit(address) if self.options.with_audit else None
            drawing.result()
        wrong = differences(collected.figures.counts, expected, None if audit is None else audit["figures"])
        is_right = not wrong and (audit is None or bool(audit["proven"]))
        self._report(collected, audit, wrong, is_right=is_right)
        if not is_right:
            return EXIT_WRONG
        self.place.reached("finished")
        return 0

    def _report(self, collected: Collected, audit: dict[str, Any] | None, wrong: list[str], *, is_right: bool) -> None:
        options, picture = self.options, str(self.place.picture)
        self.say(text_of(collected, audit, options.handler_ms, picture))
        for difference in wrong:
            self.say(f"  WRONG: {difference}")
        if not is_right:
            self.say(f"\nThe data stay in {self.place.folder}; --reset (or RESET=1) starts afresh.")
        document = document_of(
            collected,
            audit,
            broker=options.broker,
            handler_ms=options.handler_ms,
            wrong=wrong,
            is_right=is_right,
            seconds=self.seconds,
            picture=picture,
        )
        self.place.report.write_bytes(document)
        if options.as_json:
            sys.stdout.write(document.decode() + "\n")

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
                group=self.course.members > 1,
                copies=[str(self.place.copies)] if self.place.copies.is_dir() else (),
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
        if self._steps != NO_STEPS:  # straight to the system: what a killed process has noted stays
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


def _announce(options: DemoOptions, course: Course, tell: Say) -> None:
    """First of all: what is going to be fetched, and what is going to happen."""
    data_file()
    jars = pinned_jars()
    if options.broker == "kafka" and damaged_jars(cache_folder(os.environ) / f"kafka-{KAFKA_VERSION}", jars):
        tell(f"To be fetched: Apache Kafka {KAFKA_VERSION}, {sum(jar.size for jar in jars) / 1e6:.0f} MB.")
    else:
        tell("To be fetched: nothing.")
    kind = "a real Apache Kafka" if options.broker == "kafka" else "the embedded broker"
    proof = ", then a proof by Spark" if options.with_audit else ""
    tell(f"The demo: {options.rows:,} flights of 2013 on {kind}, {PARALLELISING_FACTOR} workers a partition{proof}.")
    if course.members > 1:
        share = "A process begins with" if course.is_scaled else f"{course.members} processes share"
        tell(f"{share} the work. On the way: {', '.join(step.label for step in course.steps)}.")
        if course.is_kept:
            tell(f"A service keeps them with app.run(processes={course.members}): it starts again who was killed.")


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
    draw_plane(
        tiles,
        path,
        title=title,
        stretch=stretch,
        records=records,
        changes=changes,
        ranges=book.ranges,
        ownership=collected.ownership,
    )


async def _coordinator(broker: Broker) -> str:
    """The name of who was elected last."""
    happened = (await read_history(broker, APP)).happened
    return next((each.name for each in reversed(happened) if each.kind == "elected"), "")


async def _asked(broker: Broker, number: int, wish: Wish) -> None:
    """Ask for a move, as any program may that is no member."""
    names = (await read_history(broker, APP)).names
    asked: MoveAsked = wish.asked(number, {name: incarnation for incarnation, name in sorted(names.items())})
    appender = broker.appender()
    try:
        place = signals_topic(APP), partition_of(BY, asked.request)
        await appender.append([Outgoing(*place, None, encode(asked))])
    finally:
        await appender.close()


async def _prepare(broker: Broker) -> Logbook:
    await broker.create([TopicSpec(ARRIVALS, PARTITIONS, KEEP)])
    return await read_logbook(broker, APP)
