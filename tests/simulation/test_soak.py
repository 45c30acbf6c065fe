"""The soak: workers that die or hang cost their own seed, slices add up in one file, and figures say whose they are.

The workers here are scripts that answer, hang or die as their seed says; real ones run in ``test_seeds``.
"""

import asyncio
import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from . import corpus, soak, soak_book, soak_broker
from .plan import draw_plan
from .soak_book import BROKER, CLUSTER, SIMULATION, Book, Found, Slice, SoakError, Surroundings
from .soak_pool import ROOT, Pool, module_command
from .soak_report import is_complete, missing, report
from .soak_worker import Answer, Failure, Task, decode, encode

LIMIT_S = 10.0
"""Within this a script starts on a machine that is busy."""
SCRIPT = """
import json, os, signal, sys, threading
for line in sys.stdin:
    task = json.loads(line)
    seed = task["seed"]
    if seed % 10 == 3:
        print("about to hang", file=sys.stderr, flush=True)
        threading.Event().wait()
    if seed % 10 == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    if seed % 10 == 7:
        sys.exit("out of luck")
    print(json.dumps({"seed": seed, "seconds": 0.0, "trace": os.environ["PYTHONHASHSEED"]}), flush=True)
"""
HERE = Surroundings("abc", False, "c0de", "3.11.7", "Linux", "a processor", 2)


def run_scripted(seeds: Iterable[int], limit_s: float = LIMIT_S, **options: object) -> dict[int, Answer]:
    """Run seeds by two scripted workers; the answers by seed."""
    answers: dict[int, Answer] = {}

    async def run() -> None:
        async with Pool(2, limit_s, [sys.executable, "-c", SCRIPT]) as pool:
            await pool.run(
                (Task(seed) for seed in seeds),
                lambda answer: answers.update({answer.seed: answer}),
                **options,  # type: ignore[arg-type]  # what the pool takes
            )

    asyncio.run(run())
    return answers


def failures(answers: dict[int, Answer]) -> dict[int, str]:
    """How seeds failed."""
    return {seed: answer.failure.kind for seed, answer in answers.items() if answer.failure}


def test_a_worker_that_dies_is_named_by_its_seed_and_the_others_go_on() -> None:
    """Of eighteen seeds two are killed, two exit: each is told, with what it said, and the rest is done."""
    seeds = [seed for seed in range(20) if seed % 10 != 3]
    answers = run_scripted(seeds)
    assert sorted(answers) == seeds
    killed, ended = "Died: signal SIGKILL", "Died: exit code 1"
    assert failures(answers) == {5: killed, 15: killed, 7: ended, 17: ended}
    texts = [answer.failure.text for answer in answers.values() if answer.failure]
    assert sum("out of luck" in text for text in texts) == 2


def test_a_worker_that_hangs_is_named_by_its_seed_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told with what it said; the next seed has a new worker."""
    monkeypatch.setattr("tests.simulation.soak_pool.GRACE_S", 0.2)
    answers = run_scripted((3, 13, 4, 6), limit_s=3.0)
    assert sorted(answers) == [3, 4, 6, 13]
    assert failures(answers) == {3: "Hung: no end", 13: "Hung: no end"}
    assert all("about to hang" in answer.failure.text for answer in answers.values() if answer.failure)


def test_workers_walk_sets_in_different_orders() -> None:
    """Each has a PYTHONHASHSEED of its own, so that a trace that depends on it is noticed."""

    async def run() -> list[Answer]:
        async with Pool(2, LIMIT_S, [sys.executable, "-c", SCRIPT]) as pool:
            return await asyncio.gather(*(worker.run(Task(0)) for worker in pool.workers))

    assert [answer.trace for answer in asyncio.run(run())] == ["1", "2"]


def test_when_it_is_over_nothing_new_begins_and_what_is_under_way_ends() -> None:
    """Told to end, the pool hands out no more; every seed that was begun has its answer."""
    asked = iter([False, False, False, True])
    answers = run_scripted(range(100, 103), is_over=lambda: next(asked, True))
    assert set(answers) <= {100, 101, 102}
    assert len(answers) == 3


# --- slices ----------------------------------------------------------------------------------------------------------


def piece(part: str, first: int, end: int, **fields: object) -> Slice:
    """A slice that ran these seeds."""
    made = Slice(part, "2026-11-21T19:00:00+00:00", HERE, 60.0, [(first, end)])
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_slices_add_up_and_the_next_one_goes_on_with_what_is_left(tmp_path: Path) -> None:
    """Seeds that were left out come first; the file that is read is the one that was written."""
    path = tmp_path / "below" / "soak.json"
    assert soak_book.read(path) == Book()
    book = Book([piece(SIMULATION, 0, 10, faults={"crash": 5}), piece(SIMULATION, 12, 20, faults={"cut": 7})])
    soak_book.write(book, path)
    book = soak_book.read(path)
    assert book.total(SIMULATION) == {"seeds": 18, "faults": 12}
    left = book.left(SIMULATION)
    assert [next(left) for _ in range(4)] == [10, 11, 20, 21]
    book.slices.append(piece(SIMULATION, 10, 11))
    book.slices[-1].add(11, {"split as hot": 1}, {"cut": 2})
    assert book.faults(SIMULATION) == {"crash": 5, "cut": 9}
    assert book.seeds(SIMULATION) == [(0, 20)]
    assert not book.total(BROKER)["seeds"]


def test_a_seed_that_failed_is_failing_until_it_was_run_again(tmp_path: Path) -> None:
    """What is mended stays in the book, and is no longer counted as failing."""
    book = Book([piece(SIMULATION, 0, 10, failures=[Found(4, "E: x", "x"), Found(6, "E: y", "y")])])
    assert [found.seed for found in book.failing(SIMULATION)] == [4, 6]
    assert not is_complete(book, {SIMULATION: {"seeds": 10}})
    book.slices.append(piece(SIMULATION, 10, 10, again=[4, 6]))
    assert not book.failing(SIMULATION)
    assert is_complete(book, {SIMULATION: {"seeds": 10}})
    assert not is_complete(book, {SIMULATION: {"seeds": 11}})
    wanted = {SIMULATION: {"seeds": 1_011}, BROKER: {"kills": 200, "records": 2_000_000}}
    assert missing(book, wanted) == "1,001 seeds, 200 kills, 2,000,000 records"
    assert "| failures of earlier versions, mended and run again | 2 |  |" in report(book)


def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path) -> None:
    """Half a file is no file of slices: nothing is run over it."""
    path = tmp_path / "soak.json"
    path.write_text('{"slices": [')
    with pytest.raises(SoakError, match=r"soak\.json is damaged"):
        soak_book.read(path)


def test_two_soaks_do_not_write_one_file(tmp_path: Path) -> None:
    """The second one is told so."""
    path = tmp_path / "soak.json"
    with soak_book.alone(path), pytest.raises(SoakError, match="another soak"), soak_book.alone(path):
        pass
    with soak_book.alone(path):
        pass


def test_the_report_says_which_code_its_figures_belong_to() -> None:
    """Figures of two versions of the code are figures of two versions of the code."""
    book = Book([piece(SIMULATION, 0, 1_000, faults={"crash": 12_345}, counts={"split as hot": 2})])
    text = report(book)
    assert "| seeds | 1,000 | 20,000 |" in text
    assert "| faults | 12,345 |  |" in text
    assert "| crash | 12,345 |" in text
    assert "Came across: split as hot 2." in text
    assert "| failures | 0 | 0 |" in text
    assert "one version of the code (c0de), commit abc; 2 cores of a processor, Linux; Python 3.11.7." in text
    assert "**Broker**: not run yet." in text
    changed = msgspec.structs.replace(HERE, code="c0de2", has_changes=True, kafka="4.3.1")
    book.slices.append(piece(SIMULATION, 1_000, 2_000, where=changed))
    text = report(book)
    assert "2 versions of the code, commit abc, abc with changes" in text
    assert "Apache Kafka 4.3.1" in text


def test_the_digest_is_of_the_package_and_of_what_tests_it() -> None:
    """Both parts share the package and differ in their tests; the same code has the same digest."""
    assert soak_book.code_digest(SIMULATION) == soak_book.code_digest(SIMULATION)
    assert soak_book.code_digest(SIMULATION) != soak_book.code_digest(BROKER)


# --- rounds on a real broker: here scripts in their place ------------------------------------------------------------

ROUND = """
import json, os, signal, sys, threading
round_ = json.loads(sys.argv[1])
def tell(**told):
    print(json.dumps(told), flush=True)
tell(line="kills")
if round_["seed"] == 1:
    found = {"lost": 3, "out of order": 1, "doubled": 0}
    tell(failure={"kind": "ChaosError: lost", "text": "one is lost", "story": ["killed"]}, found=found)
elif round_["seed"] == 2:
    sys.exit("no Java")
elif round_["seed"] == 3:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    tell(line="waits")
    threading.Event().wait()
else:
    figures = {"seed": 0, "seconds": 1.5, "kills": round_["kills"], "broker_kills": 2, "records": round_["records"]}
    found = {"lost": 0, "out of order": 0}
    tell(figures={**figures, "faults": {"lose_reply": 3}, "changes": {"splits": 4}, "found": found, "violated": []})
"""


def run_round(seed: int, folder: Path, told: list[str]) -> soak_broker.Counted | None:
    """A round by a script; told to end when it says that it waits."""
    command = [sys.executable, "-c", ROUND]
    return asyncio.run(soak_broker.run_round(seed, folder, told.append, lambda: "waits" in told, command))


def test_the_figures_of_rounds_add_up(tmp_path: Path) -> None:
    """Counts, changes and what the audit found are counted by name; as many rounds are wanted as make both numbers."""
    told: list[str] = []
    found = run_round(0, tmp_path, told)
    assert told == ["kills"]
    assert found is not None
    assert found.failure is None
    kills, records = soak_broker.KILLS, soak_broker.RECORDS
    book = Book([piece(BROKER, 0, 0)])
    for seed in range(2):
        assert soak_broker.wants_round(book, BROKER, {"kills": 2 * kills, "records": 2 * records})
        book.slices[0].add(seed, found.counts, found.faults)
    assert book.total(BROKER) == {
        "seeds": 2,
        "kills": 2 * kills,
        "records": 2 * records,
        "broker kills": 4,
        "splits": 8,
        "faults": 6,
    }
    assert not soak_broker.wants_round(book, BROKER, {"kills": 2 * kills, "records": 2 * records})
    assert soak_broker.wants_round(book, BROKER, {"kills": 2 * kills + 1, "records": 2 * records})
    text = report(book, [BROKER])
    assert "| rounds | 2 |  |" in text
    assert "| lost | 0 | 0 |" in text
    assert "| lose_reply | 6 |" in text


def test_stops_of_a_cluster_are_shown_with_their_mean() -> None:
    """Each fault is counted, with how long it stopped progress; rounds are what is wanted."""
    figures = {"seed": 1, "records": 40, "found": {"lost": 0}, "checked": {}}
    book = Book([piece(CLUSTER, 0, 0)])
    for seed, stops in enumerate(([("kill", 8.0), ("hang", 9.5), ("kill", 6.0)], [("kill", 7.0)])):
        found = soak_broker.counted({**figures, "stops": stops})
        book.slices[0].add(seed, found.counts, found.faults)
    text = report(book, [CLUSTER])
    for row in ("| rounds | 2 | 20 |", "| records | 80 | 1,000,000 |", "| kill | 3 | 7.0 |", "| hang | 1 | 9.5 |"):
        assert row in text
    assert not soak_broker.wants_round(book, CLUSTER, {"seeds": 2})


def test_a_round_that_fails_or_dies_says_why(tmp_path: Path) -> None:
    """What it found is told, and counted; so is what a round said that came to no end."""
    failed, died = run_round(1, tmp_path, []), run_round(2, tmp_path, [])
    assert failed is not None
    assert failed.failure == Failure("ChaosError: lost", "one is lost", ["killed"])
    book = Book([piece(BROKER, 0, 0)])
    book.slices[0].add(1, failed.counts, failed.faults)
    text = report(book, [BROKER])
    for row in ("| lost | 3 | 0 |", "| out of order | 1 | 0 |", "| doubled | 0 | 0 |", "| kills | 0 | 200 |"):
        assert row in text
    assert died is not None
    assert died.failure is not None
    assert died.failure.kind == "Died: exit code 1"
    assert "no Java" in died.failure.text


LOSING = """
import sys
sys.path.append(sys.argv.pop(1))
from tests.on_kafka import chaos, chaos_stage
from tests.simulation import soak_round

class World(chaos_stage.ChaosStage):
    def __init__(self, round_, folder, tell):
        super().__init__((), folder, tell, nodes=1)
        self.story += ["killed"]
        self.figures = chaos.Figures(seed=round_.seed, kills=round_.kills)
    def begin(self): pass
    def happen(self, happening): pass
    def heal(self): pass
    def tails(self): return "the end of its log"
    def end(self): pass
    def judge(self):
        self.figures.found["lost"] += 3
        raise chaos.ChaosError("NOT exactly once: level")

chaos.World = World
sys.exit(soak_round.main())
"""


def test_what_the_audit_of_a_failed_round_found_is_told(tmp_path: Path) -> None:
    """The real program of a round, without a broker: three are lost, and three are counted."""
    command = [sys.executable, "-P", "-c", LOSING, str(ROOT)]
    found = asyncio.run(soak_broker.run_round(1, tmp_path, lambda line: None, bool, command))
    assert found is not None
    assert found.failure is not None
    assert found.failure.kind == "ChaosError: NOT exactly once: level"
    assert "the end of its log" in found.failure.story
    assert found.counts["lost"] == 3
    assert found.counts["doubled"] == 0
    assert "kills" not in found.counts  # what a round that failed did is done again


def test_a_round_is_ended_when_somebody_asks(tmp_path: Path) -> None:
    """It is told to end, so that it can end its broker, and counts for nothing."""
    assert run_round(3, tmp_path, []) is None


# --- a failure -------------------------------------------------------------------------------------------------------

FAILING = """
import json, sys
for line in sys.stdin:
    task = json.loads(line)
    crashes = [happening for happening in json.loads(task["plan"])["happenings"] if happening["kind"] == "crash"]
    answer = {"seed": task["seed"], "seconds": 0.0}
    if crashes:
        story = [f"{len(crashes)} crashed"]
        answer["failure"] = {"kind": "AssertionError: lost", "text": "AssertionError: lost", "story": story}
    print(json.dumps(answer), flush=True)
"""


def explained(kind: str) -> tuple[str, str | None]:
    """What is printed about a seed that failed so, and the plan that is left; its world fails whenever it crashes."""
    plan = next(plan for plan in map(draw_plan, range(100)) if any(h.kind == "crash" for h in plan.happenings))
    answer = Answer(plan.seed, 0.1, plan=encode(plan), failure=Failure(kind, kind))
    console = Console(file=io.StringIO(), soft_wrap=True, highlight=False, markup=False)

    async def run() -> str | None:
        async with Pool(1, LIMIT_S, [sys.executable, "-c", FAILING]) as pool:
            return await soak.explain(pool, answer, 400, console)

    left = asyncio.run(run())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue(), left


def test_a_failure_is_told_with_its_seed_its_small_plan_and_its_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all that happens one crash is left; the commands that run seed and plan again are printed with it."""
    monkeypatch.setattr(soak, "FAILURES", tmp_path)
    told, left = explained("AssertionError: lost")
    assert left is not None
    plan = decode(left)
    assert [happening.kind for happening in plan.happenings] == ["crash"]
    assert plan.bursts == ()
    assert "1 crashed" in told
    assert corpus.as_json(plan).decode() in told
    assert f"python3 dev.py soak --seed {plan.seed}" in told
    (path,) = corpus.paths(tmp_path)
    assert f"python3 dev.py soak --plan {path}" in told
    assert corpus.load(path).plan == plan
    assert "1 crashed" in path.with_suffix(".txt").read_text()


def test_a_failure_that_does_not_come_again_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed that fails otherwise the second time depends on more than its seed: nothing is made smaller."""
    monkeypatch.setattr(soak, "FAILURES", tmp_path)
    told, left = explained("AssertionError: doubled")
    assert left is None
    assert "depends on more than its seed" in told
    assert not corpus.paths(tmp_path)


# --- the command -----------------------------------------------------------------------------------------------------


def soak_command(book: Path, *options: str) -> list[str]:
    """The command as ``dev.py`` starts it."""
    return module_command("tests.simulation.soak", "--book", str(book), "--simulation-only", "--workers", "2", *options)


def test_a_slice_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    """Three seeds, then three more: six in the file, over two slices, and a report of them."""
    path = tmp_path / "soak.json"
    for seeds in (3, 6):
        answer = subprocess.run(
            soak_command(path, "--seeds", str(seeds)), cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert f"| seeds | {seeds} |" in answer.stdout
    book = soak_book.read(path)
    assert [piece.seeds for piece in book.slices] == [[(0, 3)], [(3, 6)]]
    assert all(piece.where.code == soak_book.code_digest(SIMULATION) for piece in book.slices)
    assert all(piece.seconds > 0 for piece in book.slices)


def test_an_interrupt_ends_the_slice_in_order(tmp_path: Path) -> None:
    """Exit code 130; what was begun is in the file."""
    path = tmp_path / "soak.json"
    command = soak_command(path, "--seeds", "1000000")
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert "0 of 1,000,000 seeds are done" in child.stdout.readline()
        assert " of 1,000,000 seeds; " in child.stdout.readline()
        child.send_signal(signal.SIGINT)
        last = child.stdout.read().splitlines()[-1]
        assert re.fullmatch(r"not all is done: 999,\d+ seeds are missing; the same command goes on from here", last)
    assert child.returncode == soak.INTERRUPTED
    ((piece),) = soak_book.read(path).slices
    first, end = piece.seeds[0]
    assert len(piece.seeds) == 1
    assert first == 0
    assert end >= 1


def test_one_seed_is_told_as_a_story(tmp_path: Path) -> None:
    """``--seed`` prints what happened and the trace; ``--plan`` of the same plan prints the same."""
    path = tmp_path / "plan.json"
    path.write_bytes(corpus.as_json(draw_plan(2)))
    told = []
    for options in (["--seed", "2"], ["--plan", str(path)]):
        answer = subprocess.run(
            module_command("tests.simulation.soak", *options), cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        told.append([line for line in answer.stdout.splitlines() if "nothing failed" not in line])
    assert told[0] == told[1]
    assert told[0][-1].startswith("trace ")
    assert len(told[0]) > 5


def test_a_plan_is_kept_with_what_it_found(tmp_path: Path) -> None:
    """A kept case is a file named after what it found; what is read back is the same plan."""
    case = corpus.Case("finds a lost record, when seed 5 is cut off", draw_plan(5))
    path = corpus.add(case, tmp_path)
    assert path.name == "finds-a-lost-record-when-seed-5-is.json"
    assert corpus.load(path) == case
    assert corpus.paths(tmp_path) == [path]
    with pytest.raises(ValueError, match="in one line"):
        corpus.add(corpus.Case("", draw_plan(5)), tmp_path)


def test_a_plan_alone_is_read_as_a_case_too(tmp_path: Path) -> None:
    """The file that the soak writes for a failure can be given to ``--plan`` as it is."""
    path = tmp_path / "plan.json"
    path.write_bytes(corpus.as_json(draw_plan(5)))
    assert corpus.load(path).plan == draw_plan(5)
    assert json.loads(path.read_bytes())["seed"] == 5
