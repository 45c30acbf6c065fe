"""The demo with three processes on a real Kafka: who coordinates is killed, one more joins, Spark proves the run."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FLIGHTS = 20_000
HANDLER_MS = 60
"""An aircraft has up to 60 of these flights, one after the other: enough time for all processes to join."""
SESSION_S = 10.0
UNOWNED_S_MAX = 40.0
RUN_SECONDS_MAX = 300
SCRIPT = """
import sys
from pathlib import Path
from keylanes.demo.main import DemoOptions, run_demo
folder, rows, handler_ms = sys.argv[1:]
options = DemoOptions(broker="kafka", members=3, folder=Path(folder), rows=int(rows), handler_ms=float(handler_ms))
sys.exit(run_demo(options))
"""


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(RUN_SECONDS_MAX)
def test_a_kill_and_a_join(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """The run is proven; the killed process lost its ranges to others and did not come back, the new one worked."""
    folder = tmp_path / "demo"
    command = [sys.executable, "-P", "-c", SCRIPT, str(folder), str(FLIGHTS), str(HANDLER_MS)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    report = json.loads((folder / "report.json").read_text())
    record_property("group", report["group"])
    assert report["verdict"] == "exactly once: proven"
    assert report["figures"]["workers"] >= 2048  # more where a hot range was split before it changed hands
    group = report["group"]
    killed, joined = group["killed"], group["joined"]
    assert killed["role"] == "coordinator"
    assert killed["share"] > 1 / 3
    assert joined == "demo-4"
    assert f"killed {killed['name']} (coordinator) at {killed['share']:.0%}" in answer.stdout
    assert "added demo-4 at" in answer.stdout
    least, most = killed["unowned_s"]
    assert SESSION_S / 2 < least <= most < UNOWNED_S_MAX
    assert killed["last_commit_s"] < killed["expelled_s"]
    shares = {member["name"]: member["share"] for member in group["members"]}
    assert shares.keys() == {"demo-1", "demo-2", "demo-3", "demo-4"}
    assert min(shares.values()) > 0
    assert sum(shares.values()) == pytest.approx(1, abs=0.001)
    assert group["moves"] >= 2
    assert group["elections"] >= 2
    log = (folder / "demo.log").read_text()
    assert all(f" {name} INFO flights-demo: joined as incarnation " in log for name in shares)
    assert log.count(f" {killed['name']} INFO flights-demo: joined") == 1
