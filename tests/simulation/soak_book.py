"""What the soak has done so far: slices that add up in one file, each with the code and the machine it belongs to."""

import contextlib
import hashlib
import os
import platform
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ..tiers.processes import git

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("brokers", "devkafka", "group", "keyrange", "offsets", "runtime", "state", "spark")
BOOK = ROOT / ".keylanes" / "soak.json"
SIMULATION, BROKER, CLUSTER, GROUP = PARTS = ("simulation", "broker", "cluster", "group")
"""The parts of the soak; a cluster is one of three brokers, a group several processes, on one broker or three."""
TEXT_MAX = 4_000
"""Characters of a failure's text that are kept."""


class SoakError(Exception):
    """The soak can't begin; the message says why."""


class Found(msgspec.Struct, frozen=True):
    """A seed that failed, and how. ``plan``: as JSON, what was left of it when it had been made smaller."""

    seed: int
    kind: str
    text: str
    plan: str = ""


class Surroundings(msgspec.Struct, frozen=True):
    """What a figure belongs to. ``code``: a digest of the sources of the package and of what tests it."""

    commit: str
    has_changes: bool
    code: str
    python: str
    system: str
    processor: str
    cores: int
    kafka: str = ""


class Slice(msgspec.Struct):
    """One run of one part, of an hour at most. ``seeds``: which it ran, in ranges [first, end)."""

    part: str
    began: str
    where: Surroundings
    seconds: float = 0.0
    seeds: list[tuple[int, int]] = []
    again: list[int] = []
    """Seeds that had failed earlier, and did not now."""
    counts: dict[str, int] = {}
    faults: dict[str, int] = {}
    """By kind."""
    failures: list[Found] = []

    def add(self, seed: int, counts: dict[str, int], faults: dict[str, int] | None = None) -> None:
        """A seed that was run, what it came across, and the faults that it met."""
        self.seeds = list(_joined([*self.seeds, (seed, seed + 1)]))
        self.counts = dict(Counter(self.counts) + Counter(counts))
        self.faults = dict(Counter(self.faults) + Counter(faults))


class Book(msgspec.Struct):
    """All slices, oldest first."""

    slices: list[Slice] = []

    def of(self, part: str) -> list[Slice]:
        """The slices of one part."""
        return [piece for piece in self.slices if piece.part == part]

    def seeds(self, part: str) -> list[tuple[int, int]]:
        """All seeds that were run, in ranges."""
        return list(_joined(seeds for piece in self.of(part) for seeds in piece.seeds))

    def left(self, part: str) -> Iterator[int]:
        """Seeds that were not run yet, upwards without end."""
        next_seed = 0
        for first, end in self.seeds(part):
            yield from range(next_seed, first)
            next_seed = end
        while True:
            yield next_seed
            next_seed += 1

    def total(self, part: str) -> Counter[str]:
        """The counts of a part together; ``seeds`` and ``faults`` are among them."""
        total: Counter[str] = Counter(seeds=sum(end - first for first, end in self.seeds(part)))
        for piece in self.of(part):
            total.update(piece.counts)
        total["faults"] = self.faults(part).total()
        return total

    def faults(self, part: str) -> Counter[str]:
        """The faults that a part met, by kind."""
        total: Counter[str] = Counter()
        for piece in self.of(part):
            total.update(piece.faults)
        return total

    def failing(self, part: str) -> list[Found]:
        """Failures whose seed has not been run since without failing."""
        failing: dict[int, Found] = {}
        for piece in self.of(part):
            for seed in piece.again:
                failing.pop(seed, None)
            failing.update((found.seed, found) for found in piece.failures)
        return list(failing.values())


def read(path: Path = BOOK) -> Book:
    """What was done so far; nothing, when there is no file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Book)
    except FileNotFoundError:
        return Book()
    except msgspec.DecodeError as error:
        raise SoakError(f"{path} is damaged ({error}); mv it away to begin anew") from error


def write(book: Book, path: Path = BOOK) -> None:
    """In one step: the file is the old one or the new one, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(book), indent=1))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


@contextlib.contextmanager
def alone(path: Path = BOOK) -> Iterator[None]:
    """Nobody else writes this file meanwhile: a second soak would lose what the first one did."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as file:
        try:
            import fcntl  # here: where there is none, nobody looks
        except ImportError:
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SoakError(f"another soak is writing {path}; wait for it, or end it") from error
        yield


def code_digest(part: str) -> str:
    """A fingerprint of the sources that a part's figures depend on."""
    beside = ("test_", "chosen", "conftest", "corpus", "plants", "shrink", "soak")
    own = ROOT / "tests" / part
    files = [ROOT / "__init__.py", *(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))]
    files += [path for path in own.glob("*.py") if not path.name.startswith(beside)]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def surroundings(part: str, kafka: str = "") -> Surroundings:
    """The machine, the commit and the code, as they are now."""
    return Surroundings(
        commit=git("rev-parse", "--short=12", "HEAD"),
        has_changes=bool(git("status", "--porcelain", "--untracked-files=no")),
        code=code_digest(part),
        python=platform.python_version(),
        system=platform.platform(),
        processor=_processor(),
        cores=os.cpu_count() or 1,
        kafka=kafka,
    )


def now() -> str:
    """The time, as slices tell it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _joined(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges that touch as one, in order."""
    first, end = 0, 0
    for low, high in sorted(ranges):
        if low <= end:
            end = max(end, high)
            continue
        if end > first:
            yield first, end
        first, end = low, high
    if end > first:
        yield first, end


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
