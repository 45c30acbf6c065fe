"""The broker's disk fills up on a small disk of its own; that of the application's state is in test_state_faults.py."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..tiers.marks import tier

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300), tier("proof", "brokers")]

MOUNT = 'mount -t tmpfs -o size=120m keylanes "$0" || exit 77; exec "$@"'


def test_the_brokers_disk_is_full(tmp_path: Path) -> None:
    """Kafka ends of it; the application waits, goes on when Kafka is back with room, and every record counts once."""
    disk, other = tmp_path / "disk", tmp_path / "other"
    disk.mkdir()
    other.mkdir()
    if shutil.which("unshare") is None:
        pytest.skip("no small disk can be made here: there is no `unshare`")
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", MOUNT, str(disk)]
    command += [sys.executable, "-m", "tests.stage.full_disk", str(disk), str(other)]
    answer = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=280, check=False
    )
    if answer.returncode == 77 or answer.stderr.startswith("unshare:"):
        pytest.skip(f"no small disk can be made here: {answer.stderr.strip()}")
    assert answer.returncode == 0, answer.stderr
    assert "the broker does not answer, trying for 80000 ms" in answer.stderr
    assert answer.stdout.splitlines() == ["the broker ended", "level", "True"]
