"""The demo in several processes on a real Kafka: some are killed or paused, others join; Spark proves the run."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..tiers.marks import tier

FLIGHTS = 12_000
HANDLER_MS_OF_MANY, FLIGHTS_PER_S_OF_MANY = 100, 80
"""Six processes would have all flights in 25 s; each step that is late slows them down until it is taken."""
UNOWNED_S_MAX = 60.0
MOVES_MIN = 10
HANDLER_MS_OF_SCALED, FLIGHTS_PER_S_OF_SCALED = 25, 120
"""One process has 8 % of them in 8 s, and the last one 22 % in 22 s: so each step has time to be settled."""
SESSION_S, STEPS_OF_MANY = 10.0, 6
DEMO = Path(__file__).resolve().parents[2] / "examples" / "flights" / "demo.py"

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1_800)]


def proven(folder: Path, **options: int) -> dict[str, Any]:
    """The report of a demo that came out right, is proven, and had all that was to happen."""
    command = [sys.executable, str(DEMO), "--broker=kafka", f"--folder={folder}", f"--rows={FLIGHTS}"]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    assert report["is_right"]
    assert report["verdict"] == "exactly once: proven"
    assert report["group"]["missed"] == [], answer.stdout
    return report


@tier("proof", "demo-kills")
def test_kills_pauses_joins_and_moves(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Who was killed lost its ranges to others and did not come back, who was paused for longer than a session did, who
    joined worked, and ranges went from one to another because somebody asked for it.
    """
    folder = tmp_path / "demo"
    report = proven(folder, members=6, handler_ms=HANDLER_MS_OF_MANY, flights_per_s=FLIGHTS_PER_S_OF_MANY)
    group = report["group"]
    record_property("group", group)
    assert len(group["killed"]) + len(group["paused"]) + len(group["joined"]) == STEPS_OF_MANY
    coordinator, member = group["killed"]
    assert (coordinator["role"], member["role"]) == ("coordinator", "member")
    least, most = coordinator["unowned_s"]
    assert SESSION_S / 2 < least <= most < UNOWNED_S_MAX
    assert coordinator["last_commit_s"] < coordinator["expelled_s"]
    below, beyond = group["paused"]
    assert below["expelled_s"] is None
    assert beyond["expelled_s"] < beyond["joined_s"]
    assert [joined["name"] for joined in group["joined"]] == ["demo-7", "demo-8"]
    shares = {one["name"]: one["share"] for one in group["members"]}
    assert shares.keys() >= {f"demo-{number}" for number in range(1, 8)}
    assert sum(shares.values()) == pytest.approx(1, abs=0.001)
    assert report["audit"]["group"]["moves"]["request"] >= MOVES_MIN
    assert group["elections"] >= 2
    log = (folder / "demo.log").read_text()
    assert log.count(f" {coordinator['name']} INFO flights-demo: joined") == 1


@tier("proof", "demo-scaling")
def test_scaling_up_and_down(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """From one process to four and back to one. After each step the group comes to rest, ranges have moved to who came
    and from who left, with their state, and nobody went but those who were told to.
    """
    slowed = {"handler_ms": HANDLER_MS_OF_SCALED, "flights_per_s": FLIGHTS_PER_S_OF_SCALED}
    report = proven(tmp_path / "demo", members=4, **slowed)
    group = report["group"]
    record_property("group", group)
    assert report["audit"]["figures"]["keys_of_copies"] > 0
    assert [one["processes"] for one in group["scaled"]] == [2, 4, 2, 1]
    for one in group["scaled"]:
        assert one["settled_s"] is not None
        assert one["moves"] > 0
        assert one["copies"] > 0
        assert one["unowned_s"] < UNOWNED_S_MAX
    assert group["expelled"].keys() == {"left"}
    assert [one["name"] for one in group["members"]] == ["demo-1", "demo-2", "demo-3", "demo-4"]
    assert group["killed"] == group["paused"] == group["joined"] == []
