"""The demo with six processes on a real Kafka: some are killed, paused and join, ranges move, Spark proves the run."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from keylanes.demo.course import OF_MANY, SESSION_S

FLIGHTS = 12_000
HANDLER_MS = 1_100
"""An aircraft has up to 36 of these flights, one after the other: 40 s, enough time for all that happens."""
UNOWNED_S_MAX = 60.0
MOVES_MIN = 10
RUN_SECONDS_MAX = 300
SCRIPT = """
import sys
from pathlib import Path
from keylanes.demo.main import DemoOptions, run_demo
folder, rows, handler_ms = sys.argv[1:]
options = DemoOptions(broker="kafka", members=6, folder=Path(folder), rows=int(rows), handler_ms=float(handler_ms))
sys.exit(run_demo(options))
"""


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(RUN_SECONDS_MAX)
def test_kills_pauses_joins_and_moves(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """The run is proven; who was killed lost its ranges to others and did not come back, who was paused for longer than
    a session did, who joined worked, and ranges went from one to another because somebody asked for it.
    """
    folder = tmp_path / "demo"
    command = [sys.executable, "-P", "-c", SCRIPT, str(folder), str(FLIGHTS), str(HANDLER_MS)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    report = json.loads((folder / "report.json").read_text())
    group = report["group"]
    record_property("group", group)
    assert report["verdict"] == "exactly once: proven"
    assert group["missed"] == [], answer.stdout
    assert len(group["killed"]) + len(group["paused"]) + len(group["joined"]) == len(OF_MANY)
    coordinator, member = group["killed"]
    assert (coordinator["role"], member["role"]) == ("coordinator", "member")
    least, most = coordinator["unowned_s"]
    assert SESSION_S / 2 < least <= most < UNOWNED_S_MAX
    assert coordinator["last_commit_s"] < coordinator["expelled_s"]
    below, beyond = group["paused"]
    assert below["expelled_s"] is None
    assert beyond["expelled_s"] < beyond["again_s"]
    assert [joined["name"] for joined in group["joined"]] == ["demo-7", "demo-8"]
    shares = {one["name"]: one["share"] for one in group["members"]}
    assert shares.keys() >= {f"demo-{number}" for number in range(1, 8)}
    assert sum(shares.values()) == pytest.approx(1, abs=0.001)
    assert report["audit"]["group"]["moves"]["request"] >= MOVES_MIN
    assert group["elections"] >= 2
    log = (folder / "demo.log").read_text()
    assert log.count(f" {coordinator['name']} INFO flights-demo: joined") == 1
