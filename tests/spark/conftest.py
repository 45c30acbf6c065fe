"""What a run of an application left is audited."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .honest import APP, DEAD, Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from keylanes.spark.report import Report


@pytest.fixture
def audited(spark: "SparkSession", tmp_path: Path) -> "Callable[..., Report]":
    """Stores a run in a folder and audits it."""

    def audit_run(run: Run, **spec: Any) -> "Report":
        from keylanes.spark.audit import AuditSpec, audit

        url = run.store(tmp_path / "topics")
        return audit(spark, AuditSpec(**{"app": APP, "broker": url, "dead_letters": [DEAD], "level": True, **spec}))

    return audit_run
