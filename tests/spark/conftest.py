"""One Spark session for all tests of a run."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .honest import APP, DEAD, Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from keylanes.spark.report import Report


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """A local session, or a loud skip where there is no Java."""
    pytest.importorskip("pyspark")
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        pytest.skip("no Java: set JAVA_HOME")
    from keylanes.spark.job import session

    running = session("local[2]", shuffle_partitions=1)
    # Plans of some hundred rows: compiling code for each costs more than it saves. test_job.py runs with the defaults.
    running.conf.set("spark.sql.codegen.wholeStage", "false")
    running.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    yield running
    running.stop()


@pytest.fixture
def audited(spark: "SparkSession", tmp_path: Path) -> "Callable[..., Report]":
    """Stores a run in a folder and audits it."""

    def audit_run(run: Run, **spec: Any) -> "Report":
        from keylanes.spark.audit import AuditSpec, audit

        url = run.store(tmp_path / "topics")
        return audit(spark, AuditSpec(**{"app": APP, "broker": url, "dead_letters": [DEAD], "level": True, **spec}))

    return audit_run
