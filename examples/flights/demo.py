"""The demo: load the flights, run the application on them, draw the plane, prove the run from its logs.

The demo may be killed at any time; the same command goes on where it stopped. A run with wrong figures, and a run that
is not proven, stay as they are: the same command judges such a run again, until ``--reset``.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from application import APP, ARRIVALS, DEAD_TOPIC, LATE_TOPIC, PARALLELISING_FACTOR, make_app
from child import ChildSpec
from course import FLIGHTS_PER_S_OF_MANY, NAME, Course, course_of, is_quiet
from figures import Collected, collect, counts_expected
from flights import FLIGHTS, PARTITIONS, data_file
from keylanes.brokers.protocol import BrokerError, TopicSpec
from keylanes.devkafka.jars import KAFKA_VERSION, damaged_jars, pinned_jars
from keylanes.devkafka.java import cache_folder, java_home
from keylanes.devkafka.server import KafkaServer
from keylanes.errors import KeylanesError
from keylanes.runtime.settings import Settings
from keylanes.runtime.watch.progress import ProgressShown
from loader import KEEP, SOURCE, Loader
from logbook import read_logbook
from members import Members
from place import DemoPlace
from processing import CUTS, Processing
from report import differences, document_of, text_of
from saying import log_to, say
from wishes import Asking, opened

EXIT_WRONG, EXIT_BROKER, EXIT_INTERRUPTED = 1, 6, 130


def main(arguments: Sequence[str]) -> int:
    """Run the demo, or the rest of an interrupted demo; returns the exit code. Raises SystemExit when the application
    stops.
    """
    options = parser().parse_args(arguments)
    try:
        course = course_of(options.members, options.processes, options.broker)
        place = DemoPlace(options.folder or Path(".keylanes") / f"demo-{options.broker}")
        with place.held():
            log_to(place.log, NAME)
            return Demo(options, course, place).run()
    except KeyboardInterrupt:
        say("Interrupted. The same command goes on where this one stopped.")
        return EXIT_INTERRUPTED
    except (KeylanesError, BrokerError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return getattr(error, "exit_code", EXIT_BROKER)


def parser() -> argparse.ArgumentParser:
    """The options. Some options have a variable of `make demo` for a default."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add, given = found.add_argument, os.environ.get
    add("--broker", default=given("BROKER") or "embedded", help="BROKER: embedded or kafka, which starts a real one")
    add("--members", type=int, default=given("MEMBERS") or 1, help="MEMBERS: processes that share the work, 1 to 16")
    add("--processes", type=int, default=given("PROCESSES") or 1, help="PROCESSES: the same, kept by one service")
    is_reset = given("RESET", "0") not in ("", "0")
    add("--reset", action="store_true", default=is_reset, help="RESET=1: start afresh in any case")
    add("--no-audit", dest="audit", action="store_false", help="leave out the proof by Spark")
    add("--folder", type=Path, help="default: .keylanes/demo-BROKER")
    add("--rows", type=int, default=FLIGHTS, help="so many flights")
    add("--handler-ms", type=float, default=5.0, help="how long each flight keeps its handler")
    add("--flights-per-s", type=int, default=FLIGHTS_PER_S_OF_MANY, help="of each process, where the course slows them")
    add("--steps", type=Path, help="append steps of loading and committing to a file as they are taken, for tests")
    return found


class Demo:
    """One start of the demo. ``course``: the course of a new run; an interrupted run has its own in ``place``."""

    def __init__(self, options: argparse.Namespace, course: Course, place: DemoPlace) -> None:
        self.options, self.course, self.place = options, course, place
        self.seconds: dict[str, float] = {}
        # Without a buffer: the notes of a killed process stay.
        self._steps = None if options.steps is None else open(options.steps, "ab", buffering=0)  # noqa: SIM115  # to the end

    def run(self) -> int:
        """Run all phases that are left; returns the exit code."""
        options, place = self.options, self.place
        self._announce()
        if options.audit or options.broker == "kafka":
            os.environ.update(java_home().environment(os.environ))  # a missing Java is an error now, not after the run
        if place.open(options.rows, self.course, reset=options.reset):
            say(f"An interrupted demo lies in {place.folder}: it goes on ({place.state.phase}).")
        with self._broker() as address:
            if place.state.phase == "load":
                with self._phase("load"):
                    asyncio.run(self._load(address))
                place.put(phase="process")
            is_new = place.state.phase == "process"
            if is_new:
                with self._phase("process"):
                    self._process(address)
            with self._phase("count"):
                collected = asyncio.run(self._collect(address))
            if is_new and not collected.figures.is_level:
                say("Stopped before the end. The same command goes on where this one stopped.")
                return EXIT_INTERRUPTED
            place.put(phase="audit")
            return self._judge(address, collected)

    def _announce(self) -> None:
        """Print what will be fetched and what will happen. Raises SettingsError without the data file."""
        data_file()
        course, jars, is_kafka = self.course, pinned_jars(), self.options.broker == "kafka"
        if is_kafka and damaged_jars(cache_folder(os.environ) / f"kafka-{KAFKA_VERSION}", jars):
            say(f"To be fetched: Apache Kafka {KAFKA_VERSION}, {sum(jar.size for jar in jars) / 1e6:.0f} MB.")
        else:
            say("To be fetched: nothing.")
        kind = "a real Apache Kafka" if is_kafka else "the embedded broker"
        proof = ", then a proof by Spark" if self.options.audit else ""
        what = f"{self.options.rows:,} flights of 2013 on {kind}, {PARALLELISING_FACTOR} workers a partition"
        say(f"The demo: {what}{proof}.")
        if course.members > 1:
            share = "A process begins with" if course.is_scaled else f"{course.members} processes share"
            say(f"{share} the work. On the way: {', '.join(step.label for step in course.steps)}.")

    @contextlib.contextmanager
    def _broker(self) -> Iterator[str]:
        """The broker's address. A real Kafka is started here, stops with this context, and dies with this process."""
        if self.options.broker == "embedded":
            yield f"embedded:{self.place.data}"
            return
        with ProgressShown(f"fetching Apache Kafka {KAFKA_VERSION}", 2 * len(pinned_jars())) as shown:
            server = KafkaServer(self.place.data, progress=shown.move)
            with self._phase("start Kafka"):
                server.start()
        say(f"Apache Kafka {KAFKA_VERSION} runs at {server.bootstrap} (process {server.pid}).")
        try:
            yield f"kafka://{server.bootstrap}"
        finally:
            server.stop()

    async def _load(self, address: str) -> None:
        rows = self.options.rows
        with ProgressShown("loading flights", rows) as shown:
            async with opened(address) as broker:
                await Loader(broker, rows, on_progress=shown.move, on_step=self._note_step).run()

    def _process(self, address: str) -> None:
        """Process all records, in this process or in several, or stop in order at a signal."""
        before = asyncio.run(_prepare(address))
        expected = 2 * self.options.rows  # about: almost every flight also has an arrival
        with ProgressShown("processing flights and arrivals", expected) as shown:
            work = self._process_here if self.course.members == 1 else self._process_in_several
            work(address, before, expected, shown.move)

    def _process_here(self, address: str, before: int, expected: int, moved: Callable[[int], None]) -> None:
        settings = Settings()
        if self.options.broker == "kafka":  # the embedded broker keeps the state itself, for this process alone
            # After a kill the next process under the same name gets the ranges back after two beats, not a session.
            settings = Settings(state_folder=str(self.place.copies), group_instance_id=NAME)
        app = make_app(address, settings, self.options.handler_ms)

        Processing(
            app,
            before,
            lambda: is_quiet((before + app.statistics().records_done) / expected, self.course),
            on_told=lambda told: moved(before + told.records_done),
            on_step=self._note_step,
        ).run()

    def _process_in_several(self, address: str, before: int, expected: int, moved: Callable[[int], None]) -> None:
        place, options = self.place, self.options
        spec = ChildSpec(
            name="",
            address=address,
            folder=str(place.folder),
            copies=str(place.copies),
            handler_ms=options.handler_ms,
            seed=str(before),
            max_in_flight=self.course.max_in_flight(options.handler_ms, options.flights_per_s),
            processes=self.course.members if self.course.is_kept else 1,
            may_return=self.course.is_kept,
        )
        partitions = [(topic, partition) for topic in CUTS for partition in range(PARTITIONS)]
        members = Members(
            place, spec, Asking(address), partitions=partitions, before=before, expected=expected, on_progress=moved
        )
        asyncio.run(members.run())
        if members.failure is not None:
            say(
                f"{members.failure}; all others were stopped. What it said is in {place.log}, in the lines of its "
                f"name; docs/exit-codes.md says what the code means. The same command goes on where this one stopped."
            )
            raise SystemExit(members.exit_code)

    async def _collect(self, address: str) -> Collected:
        async with opened(address) as broker:
            return await collect(broker, self.place.state.course)

    def _judge(self, address: str, collected: Collected) -> int:
        _draw(self.place.picture, collected)
        audit = self._audit(address) if self.options.audit else None
        expected = counts_expected(self.options.rows)
        wrong = differences(collected.figures.counts, expected, None if audit is None else audit["figures"])
        is_right = not wrong and (audit is None or bool(audit["proven"]))
        run = {
            "broker": self.options.broker,
            "is_right": is_right,
            "wrong": wrong,
            "handler_ms": self.options.handler_ms,
            "seconds": self.seconds,
            "picture": str(self.place.picture),
        }
        self.place.report.write_bytes(document_of(collected, audit, run))
        say(text_of(collected, audit, run))
        if not is_right:
            say(f"\nThe data stay in {self.place.folder}; --reset (or RESET=1) starts afresh.")
            return EXIT_WRONG
        self.place.put(phase="finished")
        return 0

    def _audit(self, address: str) -> dict[str, Any]:
        from expectation import expected_outputs, expected_state
        from keylanes.spark.audit import AuditSpec, audit
        from keylanes.spark.job import session

        say("The audit: Spark reads logs, sources, outputs and state again, and proves the run from them.")
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
        with self._phase("start Spark"):
            spark = session()
        try:
            with self._phase("audit"):
                report = audit(spark, spec)
        finally:
            spark.stop()
        say("\n" + report.to_text() + "\n")
        return report.to_dict()

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - began, 2)
        if name in ("load", "process", "audit"):
            say(f"{name}: {self.seconds[name]:.1f} s")

    def _note_step(self, step: str) -> None:
        if self._steps is not None:
            self._steps.write(f"{time.time():.6f} {step}\n".encode())


def _draw(path: Path, collected: Collected) -> None:
    from keylanes.spark.plane_picture import draw_plane

    figures, plane = collected.figures, collected.book.plane
    tiles = [tile for tile in plane.tiles if tile.topic == SOURCE]
    changes = [change for change in plane.changes if change[0].topic == SOURCE]
    title = (
        f"{figures.counts.records:,} flights, {figures.workers:,} workers, {figures.commits:,} commits: "
        f"{len(tiles):,} tiles"
    )
    draw_plane(
        plane._replace(tiles=tiles, changes=changes),
        path,
        title=title,
        stretch=collected.stretch,
        records=collected.records,
        ownership=collected.ownership,
    )


async def _prepare(address: str) -> int:
    """Make the topic of the arrivals; returns the number of records that are done already."""
    async with opened(address) as broker:
        await broker.create([TopicSpec(ARRIVALS, PARTITIONS, KEEP)])
        # The tiles of n records that are done cover an area of n offsets times 2**32 points.
        return (await read_logbook(broker, APP)).areas().total() >> 32


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
