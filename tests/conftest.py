"""What all tests share: how Hypothesis searches, one real Kafka, one Spark session. Marks, time limits and warnings are
set in ``pyproject.toml``.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from keylanes import IS_COMPILED

from .stage.notes import NOTES, note
from .tiers.brokers import KEEPER, OPEN, SECURED, Keeper, SharedKafka, shared
from .tiers.marks import CHECK, TIERS, tier_of
from .tiers.parts import MINUTES_MAX, PARTS
from .tiers.rooms import ROOMS, concerns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A busy machine is no reason to fail: time is bounded per test, not per example. The same is found every time, by
# `make check` in fewer examples; KEYLANES_HYPOTHESIS=search looks further, for an evening.
_quiet = [HealthCheck.too_slow]
settings.register_profile("check", deadline=None, derandomize=True, database=None, suppress_health_check=_quiet)
settings.register_profile("quick", settings.get_profile("check"), max_examples=20)
settings.register_profile("search", deadline=None, max_examples=5_000, suppress_health_check=_quiet)
settings.load_profile(os.environ.get("KEYLANES_HYPOTHESIS", "check"))


TESTS = Path(__file__).parent
PART_NAMES = {part.name for part in PARTS}
MARK_OF = {"spark": "spark", "kafka_server": "broker", "guarded": "broker"}
"""What a test that uses a fixture must be marked with, or `check` would start a JVM for it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which tests are run; without an option all that are named."""
    group = parser.getgroup("tiers")
    group.addoption("--tier", choices=TIERS, help="only tests that this command runs: check, test or proof")
    group.addoption("--part", help="only tests of this part of the proof")
    group.addoption("--room", choices=sorted(ROOMS), help="only tests of this room and of modules that use it")
    group.addoption("--plants", default="due", help="planted defects to look for: due, all, or a share such as 1/3")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the brokers of this run, unless somebody does who has called this process."""
    if KEEPER not in os.environ:
        keeper = Keeper()
        os.environ[KEEPER] = keeper.address
        config.add_cleanup(keeper.close)


@pytest.hookimpl(optionalhook=True)  # pytest-xdist need not be there
def pytest_testnodedown(node: Any) -> None:
    """Take over what a test process has to say."""
    for text in getattr(node, "workeroutput", {}).get("notes", ()):
        note(node.config, text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say it."""
    for text in config.stash.get(NOTES, {}):
        terminalreporter.write_line(text)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that the options rule out: to import all tests takes as long as to run many of them."""
    if not collection_path.name.startswith("test_") or not collection_path.is_file():
        return None
    is_fast, room = config.getoption("tier") == CHECK, config.getoption("room")
    has_none = is_fast and f'tier("{CHECK}")' not in collection_path.read_text(encoding="utf-8")
    return True if has_none or (room and not concerns(collection_path, room)) else None


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse a test that uses a JVM and does not say so; choose by tier; leave out what the compiled package can't do;
    and put the files that may take longest first, or one would be left over when all others are through.
    """
    longest: dict[Path, tuple[float, int]] = {}
    chosen: list[pytest.Item] = []
    for item in items:
        for fixture, mark in MARK_OF.items():
            if fixture in getattr(item, "fixturenames", ()) and not item.get_closest_marker(mark):
                raise pytest.UsageError(f"{item.nodeid} uses {fixture}: mark it with pytest.mark.{mark}")
        if (part := tier_of(item)[1]) and part not in PART_NAMES:
            raise pytest.UsageError(f"{item.nodeid} is of {part!r}, which is no part of the proof: see tiers/parts.py")
        if not is_chosen(config, item):
            continue
        if part and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(MINUTES_MAX * 60))  # as long as its part
        chosen.append(item)
        if IS_COMPILED and item.get_closest_marker("interpreted"):
            item.add_marker(pytest.mark.skip(reason="it changes the source, which does not run here"))
        seconds, marks = longest.get(item.path, (0.0, 0))
        limit = item.get_closest_marker("timeout")
        waits = any(item.get_closest_marker(mark) for mark in ("broker", "spark"))
        longest[item.path] = max(seconds, limit.args[0] if limit else 0.0), marks + waits
    kept = {*chosen}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = sorted(chosen, key=lambda item: (*(-each for each in longest[item.path]), item.path))


def is_chosen(config: pytest.Config, item: pytest.Item) -> bool:
    """Whether the options let a test run."""
    wanted, part = (config.getoption(name) for name in ("tier", "part"))
    name, of_part = tier_of(item)
    return (not wanted or name in TIERS[wanted]) and part in (None, of_part)


@pytest.fixture(scope="session")
def kafka_server() -> SharedKafka:
    """The Kafka of this run, whose address is ``.bootstrap``.

    It also serves clients that come through a proxy at ``.proxied_port`` (nobody listens there until a test does).
    """
    return shared(OPEN)


@pytest.fixture(scope="session")
def guarded() -> SharedKafka:
    """The Kafka of this run that asks who is there; it also listens with certificates that are to be refused."""
    return shared(SECURED)


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """A local session, or a loud skip where there is no Java."""
    pytest.importorskip("pyspark")
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        pytest.skip("no Java: set JAVA_HOME")
    from keylanes.spark.job import session

    running = session("local[2]", shuffle_partitions=1)
    # Most plans have some hundred rows: to compile code for them and to look for better plans costs more than it saves.
    # test_job.py has the defaults.
    running.conf.set("spark.sql.codegen.wholeStage", "false")
    running.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    running.conf.set("spark.sql.constraintPropagation.enabled", "false")
    running.conf.set("spark.sql.optimizer.dynamicPartitionPruning.enabled", "false")
    running.conf.set("spark.sql.optimizer.runtime.bloomFilter.enabled", "false")
    yield running
    running.stop()


@pytest.fixture
def unheard() -> Iterator[None]:
    """Nobody listens for SIGTERM, whatever tests before have left: where somebody does a lifespan ends the process."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)
