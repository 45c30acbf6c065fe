"""Where the bench lies, and where it puts what it makes."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
PEERS = BENCH / "peers"
FOLDER = ROOT / ".keylanes" / "bench"
