"""``make soak``: many seeds of the simulation and many kills on a real broker, in slices that add up in one file.

    python3 dev.py soak                      the next slice, of 60 minutes at most
    python3 dev.py soak --report             what was done so far, as Markdown
    python3 dev.py soak --seed 4711          one seed again, with its story
    python3 dev.py soak --plan plan.json     one plan again; with --keep "what it found" it goes to the corpus

Interrupted, it ends the slice in order and keeps what is done. Exit code 1: something failed.
"""

import argparse
import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from rich.console import Console

from keylanes.devkafka.jars import KAFKA_VERSION

from . import corpus, soak_book, soak_broker
from .plan import Plan, draw_plan
from .shrink import RUNS_MAX, parts_of
from .soak_book import BOOK, BROKER, CLUSTER, GROUP, SIMULATION, Book, Found, Slice, SoakError
from .soak_pool import LIMIT_S, Pool
from .soak_progress import Progress
from .soak_report import WANTED, missing, report
from .soak_worker import Answer, Failure, Task, decode, encode

SAVE_EVERY_S = 10.0
SHRUNK_MAX = 3
"""So many failures of a slice are made smaller, each of another kind; of the others the seed is enough."""
FAILURES = BOOK.parent / "failures"
FAILED, INTERRUPTED = 1, 130


def main(arguments: list[str]) -> int:
    """Run the command; its exit code."""
    options = parse(arguments)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    try:
        if options.report:
            console.print(report(soak_book.read(options.book)))
            return 0
        if options.seed is not None or options.plan is not None:
            return asyncio.run(again(options, console))
        with soak_book.alone(options.book):
            return asyncio.run(slice_of_all(options, console))
    except (asyncio.CancelledError, KeyboardInterrupt):  # told twice; what was done is in the file
        return INTERRUPTED
    except (SoakError, ValueError, OSError) as error:
        console.print(f"soak: {error}")
        return FAILED


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="dev.py soak", allow_abbrev=False, description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    wanted = WANTED[SIMULATION] | WANTED[BROKER]
    rounds = WANTED[CLUSTER]["seeds"]
    parser.add_argument("--minutes", type=float, default=60.0, help="how long this slice may take (60)")
    parser.add_argument("--seeds", type=int, default=wanted["seeds"], help="how many in all (20,000)")
    parser.add_argument("--kills", type=int, default=wanted["kills"], help="how many SIGKILLs in all (200)")
    parser.add_argument("--records", type=int, default=wanted["records"], help="how many on a real broker (2,000,000)")
    parser.add_argument("--rounds", type=int, default=rounds, help="how many rounds on a cluster, and in a group (20)")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--simulation-only", action="store_true", help="no real broker")
    only.add_argument("--broker-only", action="store_true", help="the real broker of one node alone")
    only.add_argument("--cluster-only", action="store_true", help="the real cluster of three nodes alone")
    only.add_argument("--group-only", action="store_true", help="the groups of several processes alone")
    only.add_argument("--report", action="store_true", help="print what was done so far, and run nothing")
    only.add_argument("--seed", type=int, help="run one seed and tell its story")
    only.add_argument("--plan", type=Path, help="run one plan and tell its story")
    parser.add_argument("--keep", metavar="LINE", help="put the plan into the corpus: what it found, in one line")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (as many as cores)")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="how long one seed may take before it hangs")
    parser.add_argument("--shrink-runs", type=int, default=RUNS_MAX, help="how often a failing plan is run at most")
    parser.add_argument("--book", type=Path, default=BOOK, help="the file that slices add up in")
    options = parser.parse_args(arguments)
    options.book = options.book.absolute()  # rounds work beside it, in folders of their own
    return options


# --- a slice ---------------------------------------------------------------------------------------------------------


async def slice_of_all(options: argparse.Namespace, console: Console) -> int:
    """As much of what is left as the time allows."""
    book = soak_book.read(options.book)
    is_told = stop_when_told()
    until_s = time.monotonic() + options.minutes * 60
    only = {
        SIMULATION: options.simulation_only,
        BROKER: options.broker_only,
        CLUSTER: options.cluster_only,
        GROUP: options.group_only,
    }
    parts = [part for part, is_alone in only.items() if is_alone] or list(only)
    for number, part in enumerate(parts):
        share_s = (until_s - time.monotonic()) / (len(parts) - number)
        run = Run(options, console, book, part, time.monotonic() + share_s, is_told)
        try:
            await (run.simulate() if part == SIMULATION else run.kill())
        finally:
            run.close()
        if is_told():
            break
    console.print(report(book, parts))
    failing = [found for part in parts for found in book.failing(part)]
    if failing:
        console.print(f"failing: {', '.join(str(found.seed) for found in failing)}")
        return FAILED
    if left := missing(book, {part: wanted_of(part, options) for part in parts}):
        console.print(f"not all is done: {left} are missing; the same command goes on from here")
    return INTERRUPTED if is_told() else 0


def wanted_of(part: str, options: argparse.Namespace) -> dict[str, int]:
    """What is to be done of a part, in all slices."""
    if part == SIMULATION:
        return {"seeds": options.seeds}
    return {"kills": options.kills, "records": options.records} if part == BROKER else {"seeds": options.rounds}


def stop_when_told() -> Callable[[], bool]:
    """Whether somebody asked to end; who asks twice will not wait for what is under way."""
    loop = asyncio.get_running_loop()
    task, told = asyncio.current_task(), []

    def hear() -> None:
        told.append(True)
        if len(told) > 1 and task is not None:
            task.cancel()

    if sys.platform != "win32":  # there Ctrl+C raises KeyboardInterrupt
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, hear)
    return lambda: bool(told)


class Run:
    """One slice of one part."""

    def __init__(
        self,
        options: argparse.Namespace,
        console: Console,
        book: Book,
        part: str,
        until_s: float,
        is_told: Callable[[], bool],
    ) -> None:
        self.options, self.console, self.book = options, console, book
        self.until_s, self.is_told = until_s, is_told
        where = soak_book.surroundings(part, "" if part == SIMULATION else KAFKA_VERSION)
        self.slice = Slice(part, soak_book.now(), where)
        book.slices.append(self.slice)
        self.began_s = self.saved_s = time.monotonic()
        self.has_changed = False
        self.failed: list[Answer] = []
        self.again = {found.seed for found in book.failing(part)}

    def is_over(self) -> bool:
        """Time is up, or somebody asked to end, or the code is no longer the one that the figures shall belong to."""
        return self.is_told() or self.has_changed or time.monotonic() >= self.until_s

    def save(self) -> None:
        """Write what was done to the file."""
        now_s = time.monotonic()
        self.slice.seconds = round(now_s - self.began_s, 1)
        self.saved_s = now_s
        soak_book.write(self.book, self.options.book)
        if not self.has_changed and soak_book.code_digest(self.slice.part) != self.slice.where.code:
            self.has_changed = True
            self.console.print("the code has changed: this slice ends here; the next one is of the new code")

    def close(self) -> None:
        """The last word; a slice in which nothing was done is none."""
        self.save()
        if not (self.slice.seeds or self.slice.again or self.slice.failures):
            self.book.slices.remove(self.slice)
            soak_book.write(self.book, self.options.book)

    async def simulate(self) -> None:
        """Seeds: first the corpus, then those that failed, then those that are new."""
        done = self.book.total(SIMULATION)["seeds"]
        left = max(0, self.options.seeds - done)
        progress = Progress(self.console, "seeds", done, self.options.seeds)
        pool = Pool(self.options.workers, self.options.limit_s)
        self.console.print(f"{done:,} of {self.options.seeds:,} seeds are done; {len(self.again)} failed and run again")

        def hear(answer: Answer) -> None:
            self._note(answer)
            if not answer.name:
                progress.show(self.book.total(SIMULATION)["seeds"], self._state())

        async with pool:
            with progress:
                await pool.run(self._tasks(left), hear, self.is_over)
            self.save()
            await self._explain(pool)

    def _state(self) -> str:
        faults = sum(self.slice.faults.values())
        seeds = sum(end - first for first, end in self.slice.seeds)
        per_minute = seeds / max(1e-9, time.monotonic() - self.began_s) * 60
        return f"{faults:,} faults, {len(self.failed)} failed, {per_minute:,.0f} a minute"

    def _tasks(self, left: int) -> Iterator[Task]:
        for path in corpus.paths():
            plan = corpus.load(path).plan
            yield Task(plan.seed, f"corpus/{path.name}", encode(plan))
        yield from (Task(seed) for seed in sorted(self.again))
        yield from (Task(seed) for seed in itertools.islice(self.book.left(SIMULATION), left))

    def _note(self, answer: Answer) -> None:
        found = None
        if answer.failure is not None:
            self.failed.append(answer)
            text = answer.failure.text[-soak_book.TEXT_MAX :]
            found = Found(answer.seed, answer.failure.kind, text)
            self.console.print(f"{answer.name or f'seed {answer.seed}'} failed: {answer.failure.kind}")
        if answer.name or answer.seed in self.again:  # counted when it was new
            if found is not None:
                self.slice.failures.append(found)
            elif not answer.name:
                self.slice.again.append(answer.seed)
        else:
            self.slice.add(answer.seed, answer.reached, answer.faults)
            self.slice.failures += [found] if found is not None else []
        if time.monotonic() - self.saved_s >= SAVE_EVERY_S:
            self.save()

    async def kill(self) -> None:
        """Rounds on a real Kafka: first those that failed, then new ones."""
        part = self.slice.part
        wanted, total = wanted_of(part, self.options), self.book.total(part)
        name = "records" if part == BROKER else "seeds"
        progress = Progress(self.console, "rounds" if name == "seeds" else name, total[name], wanted[name])
        done = ", ".join(f"{total[one]:,} of {count:,} {one}" for one, count in wanted.items())
        self.console.print(f"{part}: {done} are done")
        longest_s = soak_broker.ROUND_S
        with progress:
            for seed in itertools.chain(sorted(self.again), self.book.left(part)):
                is_wanted = seed in self.again or soak_broker.wants_round(self.book, part, wanted)
                if not is_wanted or self.is_over():
                    return
                if time.monotonic() + longest_s > self.until_s:
                    self.console.print(f"another round takes {longest_s:.0f} s or so: more than is left of this slice")
                    return
                began_s = time.monotonic()
                if not await self._round(seed, progress):
                    return
                longest_s = max(longest_s, time.monotonic() - began_s) if self.slice.seeds else longest_s

    async def _round(self, seed: int, progress: Progress) -> bool:
        """One round; False when somebody asked to end."""
        part = self.slice.part
        done = self.book.total(part)["records" if part == BROKER else "seeds"]
        folder = self.options.book.parent / "soak-rounds" / f"{part}-{seed}"
        found = await soak_broker.run_round(
            seed, folder, lambda line: progress.show(done, f"round {seed}: {line}"), self.is_told, part=part
        )
        if found is None:
            return False
        if found.failure is not None:
            self.console.print("\n".join([f"round {seed} failed:", *found.failure.story, found.failure.text]))
            self.slice.failures.append(Found(seed, found.failure.kind, found.failure.text[-soak_book.TEXT_MAX :]))
        elif seed in self.again:
            self.slice.again.append(seed)
        self.slice.add(seed, found.counts, found.faults)
        self.save()
        return True

    async def _explain(self, pool: Pool) -> None:
        """Make the first failure of each kind smaller, and tell its story."""
        kinds = {answer.failure.kind: answer for answer in reversed(self.failed) if answer.failure}
        for answer in list(kinds.values())[:SHRUNK_MAX]:
            if self.is_told():
                return
            plan = await explain(pool, answer, self.options.shrink_runs, self.console) or ""
            self.slice.failures = [
                msgspec.structs.replace(found, plan=plan) if found.seed == answer.seed else found
                for found in self.slice.failures
            ]


# --- one seed --------------------------------------------------------------------------------------------------------


async def again(options: argparse.Namespace, console: Console) -> int:
    """Run one plan, tell its story, make it smaller when it fails, and keep it when that is asked for."""
    plan = draw_plan(options.seed) if options.plan is None else corpus.load(options.plan).plan
    task = Task(plan.seed, "", encode(plan), tells=True)
    async with Pool(1, options.limit_s) as pool:
        answer = await pool.run_one(task)
        if answer.failure is None:
            console.print("\n".join(answer.story))
            console.print(
                f"seed {plan.seed}: nothing failed; {sum(answer.faults.values())} faults, {answer.seconds:.2f} s"
            )
            console.print(f"trace {answer.trace}")
        elif smaller := await explain(pool, answer, options.shrink_runs, console):
            plan = decode(smaller)
    if options.keep is not None:
        console.print(f"kept: {corpus.add(corpus.Case(options.keep, plan))}")
        console.print("when it is mended, plant the mend, undone, in plants_*.py, and name it as the file's defect")
    return FAILED if answer.failure else 0


async def explain(pool: Pool, answer: Answer, runs_max: int, console: Console) -> str | None:
    """Print a failure: its seed, its reason, the plan made smaller, and the story of that. The smaller plan."""
    assert answer.failure is not None, "it failed"
    raw = answer.plan or encode(draw_plan(answer.seed))
    console.print(f"\nseed {answer.seed} failed: {answer.failure.kind}; making its plan smaller")
    shrunk = await pool.shrink(Task(answer.seed, "", raw), answer.failure.kind, runs_max)
    if shrunk is None:
        console.print(
            f"run again, it did not fail so: its outcome depends on more than its seed\n{answer.failure.text}"
        )
        return None
    smaller = encode(shrunk.plan)
    failure = (await pool.run_one(Task(answer.seed, "", smaller))).failure or answer.failure
    before = parts_of(decode(raw))
    path = keep_failure(answer.seed, shrunk.plan, failure, FAILURES)
    console.print(f"of {before} parts {parts_of(shrunk.plan)} are left, after {shrunk.runs} runs")
    console.print(corpus.as_json(shrunk.plan).decode())
    console.print("\n".join(["the story:", *failure.story, "", failure.text]))
    console.print(f"the seed:  python3 dev.py soak --seed {answer.seed}\nthe plan:  python3 dev.py soak --plan {path}")
    return smaller


def keep_failure(seed: int, plan: Plan, failure: Failure, folder: Path) -> Path:
    """Write the plan and its story beside the slices' file; the plan's file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed-{seed}.json"
    path.write_bytes(corpus.as_json(plan) + b"\n")
    path.with_suffix(".txt").write_text("\n".join([failure.kind, "", *failure.story, "", failure.text]) + "\n")
    return path


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
