"""The built wheel, as a user gets it: outside the checkout, in an environment that holds nothing of ours."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
AT_THE_TOP = ("__init__.py", "errors.py")
ROOMS = ("asgi", "brokers", "cli", "devkafka", "group", "keyrange", "offsets", "runtime", "spark", "state")
HELLO = ROOT / "examples" / "hello.py"
CAN_COMPILE = bool(shutil.which("cc") and Path(sysconfig.get_path("include"), "Python.h").exists())
"""Without a compiler or Python's headers the same wheel is interpreted."""


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The wheel of the checkout as it is, which `make test` has built before."""
    spec = importlib.util.spec_from_file_location("dev_of_this_checkout", ROOT / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    dev = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dev)
    built: Path = dev.wheel(sys.executable)
    return built


@pytest.fixture(scope="module")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an empty environment with the wheel in it; the dependencies are lent by this environment.

    A path file lends the folder, but the path files inside that folder, where the checkout is linked, don't count.
    """
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    python = folder / ("Scripts" if os.name == "nt" else "bin") / Path(sys.executable).name
    paths = run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder)
    Path(paths.strip(), "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-P", "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps"]
    run([*pip, "--ignore-installed", str(wheel)], folder)
    return python


def run(command: list[str | Path], folder: Path) -> str:
    """Run to the end in a folder outside the checkout; what it printed."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KEYLANES"))}
    answer = subprocess.run(command, cwd=folder, env=plain, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def test_the_wheel_holds_the_rooms_and_nothing_else(wheel: Path) -> None:
    """Every module of the rooms is in it, with the type marker; tests, benchmarks, examples and scripts are not."""
    held = {name.removeprefix("keylanes/") for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert {name for name in held if name.endswith(".py")} == {*modules, *AT_THE_TOP}
    assert "py.typed" in held
    data = {path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.txt")}
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["keylanes"]
    compiled = {f"{path.removesuffix('.py')}{suffix}" for path in described["compiled"]} | {f"keylanes__mypyc{suffix}"}
    assert held - {*modules, *AT_THE_TOP, "py.typed"} == data | (compiled if CAN_COMPILE else set())


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    """Name, version, licence, Python and the extras are in its metadata, the licence text beside them."""
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["Name"] == "keylanes"
    assert metadata["Version"] == "0.1.0"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra", [])) == {"cli", "dev", "java", "plot", "spark", "test"}
    assert any(entry.endswith("licenses/LICENSE") for entry in archive.namelist())


def test_the_installed_package_is_the_wheels(empty: Path, tmp_path: Path) -> None:
    """In the empty environment the import comes from there, not from the checkout, and is compiled where it can be."""
    said = "keylanes.__version__, keylanes.IS_COMPILED, keylanes.__file__"
    version, is_compiled, file = run([empty, "-c", f"import keylanes; print({said})"], tmp_path).split()
    assert (version, is_compiled) == ("0.1.0", str(CAN_COMPILE))
    assert Path(file).is_relative_to(empty.parents[1])


def test_the_installed_command_answers(empty: Path, tmp_path: Path) -> None:
    """The console script ``keylanes`` names its commands."""
    answer = run([empty.with_name("keylanes" + empty.suffix), "--help"], tmp_path)
    assert all(command in answer for command in ("run", "audit", "broker"))


@pytest.mark.skipif(not HELLO.exists(), reason="examples/hello.py is not written yet")
def test_hello_world_runs_from_the_wheel(empty: Path, tmp_path: Path) -> None:
    """The README's first program does its work with the installed wheel, in a folder of its own, and ends."""
    shutil.copy(HELLO, tmp_path)
    assert "hello" in run([empty, "hello.py"], tmp_path).lower()
