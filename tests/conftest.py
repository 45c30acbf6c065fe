"""What all tests share: how Hypothesis searches, one real Kafka, one Spark session. Marks, time limits and warnings are
set in ``pyproject.toml``.
"""

import os
import shutil
import socket
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from keylanes import IS_COMPILED
from keylanes.devkafka.server import KafkaServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.scheduler import LoadFileScheduling

# A busy machine is no reason to fail: time is bounded per test, not per example. The same is found every time, by
# `make check` in fewer examples; KEYLANES_HYPOTHESIS=search looks further, for an evening.
_quiet = [HealthCheck.too_slow]
settings.register_profile("check", deadline=None, derandomize=True, database=None, suppress_health_check=_quiet)
settings.register_profile("quick", settings.get_profile("check"), max_examples=20)
settings.register_profile("search", deadline=None, max_examples=5_000, suppress_health_check=_quiet)
settings.load_profile(os.environ.get("KEYLANES_HYPOTHESIS", "check"))


TESTS = Path(__file__).parent
ROUNDS = tuple(
    f"on_kafka/test_{name}.py" for name in ("demo_members", "group_chaos", "chaos", "cluster_chaos", "demo_kills")
)
"""Files whose tests are rounds: nodes, processes, faults and an audit, for minutes. One test process has them all."""
ONE_BY_ONE = ("simulation/test_planted.py",)
"""Files of many tests that share nothing: whichever test process is free has the next one. They come last, so that none
is left over.
"""
MARK_OF = {"spark": "spark", "kafka_server": "broker", "guarded": "broker", "mutual": "broker"}
"""What a test that uses a fixture must be marked with, or `check` would start a JVM for it."""

SOURCES = (
    *("bench/*", "cli/*", "demo/*", "devkafka/*", "examples/*", "group/*", "spark/*", "offsets/test_[!p]*.py"),
    *("simulation/test_soak.py", "test_architecture.py", "test_house.py", "test_package.py", "test_pages.py"),
)
"""Tests that reach no compiled module, or only through what other tests look at. ``test_provenance.py`` is the one of
offsets/ that does.
"""

LONG = (
    *("cli/*", "on_kafka/*", "runtime/test_*", "runtime/engine/test_*", "runtime/membership/test_*"),
    *("runtime/stores/test_learner.py", "runtime/stores/test_state_interleavings.py"),
    *("group/test_decide.py", "group/test_halves.py", "group/test_loads.py", "group/test_model.py"),
    *("group/test_target.py", "offsets/test_*_model.py", "offsets/test_decide.py", "offsets/test_snapshots.py"),
    *("bench/*", "brokers/test_conformance.py", "simulation/test_rates.py", "simulation/test_soak.py"),
    *("state/test_beacons.py", "state/test_copies*.py", "test_mistakes.py", "test_readme.py"),
)
"""Files with whole applications, commands in processes of their own, models and long searches: `check` leaves them to
`test`.
"""


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test that uses a JVM and does not say so; mark what runs on the sources; leave out what the compiled
    package can't do; and put the files in their turn: rounds, then those that may take longest, or one would be left
    over when all others are through, and what goes one by one.
    """
    longest: dict[Path, tuple[float, int]] = {}
    for item in items:
        for fixture, mark in MARK_OF.items():
            if fixture in getattr(item, "fixturenames", ()) and not item.get_closest_marker(mark):
                raise pytest.UsageError(f"{item.nodeid} uses {fixture}: mark it with pytest.mark.{mark}")
        if any(fnmatch(str(item.path.relative_to(TESTS)), pattern) for pattern in SOURCES):
            item.add_marker("sources")
        if any(fnmatch(str(item.path.relative_to(TESTS)), pattern) for pattern in LONG):
            item.add_marker("long")
        if IS_COMPILED and item.get_closest_marker("interpreted"):
            item.add_marker(pytest.mark.skip(reason="it changes the source, which does not run here"))
        seconds, marks = longest.get(item.path, (0.0, 0))
        limit = item.get_closest_marker("timeout")
        waits = any(item.get_closest_marker(mark) for mark in ("broker", "spark", "slow"))
        longest[item.path] = max(seconds, limit.args[0] if limit else 0.0), marks + waits
    turn = {TESTS / name: place - len(ROUNDS) for place, name in enumerate(ROUNDS)}
    turn |= {TESTS / name: 1 for name in ONE_BY_ONE}
    items.sort(key=lambda item: (turn.get(item.path, 0), *(-each for each in longest[item.path]), item.path))


@pytest.hookimpl(optionalhook=True)  # pytest-xdist need not be there
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "LoadFileScheduling":
    """File by file, all rounds by one test process, for two at a time would take each other's time, and what shares
    nothing test by test.
    """
    from xdist.scheduler import LoadFileScheduling

    class Units(LoadFileScheduling):  # type: ignore[misc]  # pytest-xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            name = file.removeprefix(f"{TESTS.name}/")
            return "rounds" if name in ROUNDS else nodeid if name in ONE_BY_ONE else file

    return Units(config, log)


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One Apache Kafka for the whole session, on a free port; its address is ``.bootstrap``.

    It also serves clients that come through a proxy at ``.proxied_port`` (nobody listens there until a test does).
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        proxied_port = probe.getsockname()[1]
    with KafkaServer(tmp_path_factory.mktemp("kafka"), proxied_port=proxied_port) as server:
        yield server


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
