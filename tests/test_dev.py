"""The set-up script: when it mends the environment, and what it leaves alone. Making one is how every run begins."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from . import pythons
from .tiers.marks import tier

pytestmark = tier("check")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def dev(tmp_path: Path) -> ModuleType:
    """The script, loaded from a small checkout of its own (it finds its checkout by its place)."""
    for name in ("dev.py", "pyproject.toml", "setup.py", "__init__.py", "errors.py"):
        shutil.copy(ROOT / name, tmp_path)
    for room in ("keyrange", "runtime"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    spec = importlib.util.spec_from_file_location("dev_under_test", tmp_path / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pretend_environment(dev: ModuleType, names: list[str]) -> None:
    """An environment whose stamp says that it holds some pinned files and the checkout as it is."""
    python = dev.python_of(dev.VENV)
    python.parent.mkdir(parents=True)
    python.touch()
    held = {name: dev.digest((dev.ROOT / "requirements" / name).read_bytes()) for name in names}
    dev.write_stamp(dev.VENV, {"place": str(dev.ROOT), "files": held, "modules": dev.modules()})


def test_a_new_module_is_noticed_and_a_changed_one_is_not(dev: ModuleType) -> None:
    """The links are made anew when a module or a folder of data comes or goes, not when a file is edited."""
    before = dev.modules()
    (dev.ROOT / "keyrange" / "ranges.py").write_text("edited = True\n")
    assert dev.modules() == before
    (dev.ROOT / "keyrange" / "fresh.py").write_text("")
    after = dev.modules()
    assert after != before
    (dev.ROOT / "keyrange" / "fresh.py").unlink()
    assert dev.modules() == before
    (dev.ROOT / "pyproject.toml").write_text((dev.ROOT / "pyproject.toml").read_text() + "\n")
    assert dev.modules() != before


def test_an_environment_that_is_up_to_date_is_used_as_it_is(dev: ModuleType) -> None:
    """With the wanted files installed, nothing is done; a full environment serves the small set too."""
    pretend_environment(dev, [dev.SMALL, dev.FULL])
    for wanted in ([dev.SMALL], [dev.SMALL, dev.FULL]):
        assert dev.environment(wanted) == str(dev.python_of(dev.VENV))


def test_a_small_environment_grows_into_the_full_one(dev: ModuleType) -> None:
    """What is installed stays, only what is missing is fetched."""
    held = {"place": str(dev.ROOT), "files": {"a": "1"}}
    assert dev.plan(held, {"a": "1", "b": "2"}) == (True, ["b"])


@pytest.mark.parametrize("cause", ["lock", "moved", "python", "interrupted"])
def test_an_environment_that_is_out_of_date_is_built_anew(dev: ModuleType, cause: str) -> None:
    """A changed lock, a moved checkout, a Python that is gone and an interrupted installation all mean: build anew."""
    pretend_environment(dev, ["java.txt"])
    wanted = dict(dev.read_stamp()["files"])
    assert dev.plan(dev.read_stamp(), wanted) == (True, [])
    if cause == "lock":
        wanted["java.txt"] = "changed"
    elif cause == "moved":
        dev.write_stamp(dev.VENV, {**dev.read_stamp(), "place": "elsewhere"})
    elif cause == "python":
        dev.python_of(dev.VENV).unlink()
    else:
        dev.write_stamp(dev.VENV, {})
    assert dev.plan(dev.read_stamp(), wanted) == (False, ["java.txt"])


def test_somebody_elses_environment_is_left_alone(dev: ModuleType) -> None:
    """A .venv without our stamp is never replaced: the script stops and says which command helps."""
    (dev.VENV / "bin").mkdir(parents=True)
    with pytest.raises(SystemExit, match=r"not made by this script(.|\n)*This helps:  mv "):
        dev.environment([dev.SMALL])
    assert (dev.VENV / "bin").is_dir()


def test_scripts_name_the_place_they_will_have(dev: ModuleType) -> None:
    """What an installation wrote about its temporary folder is rewritten before the folder gets its name."""
    partial = dev.ROOT / ".venv.1"
    scripts = partial / ("Scripts" if dev.WINDOWS else "bin")
    scripts.mkdir(parents=True)
    (scripts / "tool").write_text(f"#!{scripts}/python\nprint(1)\n")
    (scripts / "binary").write_bytes(b"\x7fELF\0" + bytes(partial))
    dev.rewrite_paths(partial)
    assert (scripts / "tool").read_text() == f"#!{dev.VENV}/{scripts.name}/python\nprint(1)\n"
    assert (scripts / "binary").read_bytes() == b"\x7fELF\0" + bytes(partial)


def test_all_steps_run_and_the_first_failure_is_the_answer(dev: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    """One run shows every failure; after success nothing follows the last step's own output."""
    step = [sys.executable, "-c"]
    failing = [("a", [*step, "exit(3)"]), ("b", [*step, "exit(4)"]), ("c", [*step, "print('last')"])]
    assert dev.steps(failing, {}) == 3
    assert capfd.readouterr().out.splitlines()[-2:] == ["last", "failed: a, b"]
    assert dev.steps(failing[2:], {}) == 0
    assert capfd.readouterr().out.splitlines() == ["== c", "last"]


def test_what_runs_beside_other_work_is_told_of_behind_it(dev: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    """All of it runs, and is said in one piece each; a failure counts."""
    step = [sys.executable, "-c"]
    commands = [("a", [*step, "print('one'); exit(3)"]), ("b", [*step, "import sys; sys.stderr.write('two\\n')"])]
    assert dev.beside(commands, {}, lambda: sys.stdout.write("the work\n")) == (["a"], len("the work\n"))
    assert capfd.readouterr().out.splitlines() == ["the work", "== a: failed", "one", "== b: ok", "two"]


def test_an_unknown_command_is_refused_with_the_known_ones() -> None:
    """A wrong command ends with exit code 2 and names those that exist."""
    answer = subprocess.run(
        [sys.executable, str(ROOT / "dev.py"), "deploy"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 2
    assert "demo|test|check|proof|soak|bench|bench-full|lock" in answer.stderr


def test_bench_alone_compares(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name it is the comparison with the peers, quick or at full size; every other script is named. The first
    option and all behind it go to each, and to ``pairs`` all behind its name: BASE may be called like a benchmark.
    """
    ran: list[list[str]] = []

    def steps(commands: list[tuple[str, list[str]]], env: dict[str, str]) -> int:
        ran.extend(command for _, command in commands)
        return 0

    monkeypatch.setattr(dev, "ROOT", ROOT)
    monkeypatch.setattr(dev, "environment", lambda files: "python")
    monkeypatch.setattr(dev, "missing_java", list)
    monkeypatch.setattr(dev, "java_environment", lambda python: {})
    monkeypatch.setattr(dev, "compiled", lambda python, env: env)
    monkeypatch.setattr(dev, "steps", steps)
    for call in (dev.bench, dev.COMMANDS["bench-full"]):
        assert call(["--rounds", "2"]) == 0
    assert dev.bench(["cores", "restore", "--full"]) == 0
    assert dev.bench(["cores"]) == 0
    assert dev.main(["bench", "pairs", "HEAD~1", "--quick", "--pairs", "2"]) == 0
    assert dev.bench(["pairs", "cores"]) == 0
    with pytest.raises(SystemExit, match="no such benchmark: core, HEAD"):
        dev.bench(["cores", "core", "HEAD"])
    assert [command[1:] for command in ran] == [
        ["bench/compare.py", "--rounds", "2"],
        ["bench/compare.py", "--full", "--rounds", "2"],
        ["bench/cores.py", "--full"],
        ["bench/restore.py", "--full"],
        ["bench/cores.py"],
        ["bench/pairs.py", "HEAD~1", "--quick", "--pairs", "2"],
        ["bench/pairs.py", "cores"],
    ]


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ([], True),
        (["--broker-only", "--minutes", "5"], True),
        (["--cluster-only"], True),
        (["--simulation-only"], False),
        (["--seed=3"], False),
        (["--plan", "plan.json"], False),
        (["--report"], False),
    ],
)
def test_a_soak_without_a_broker_needs_no_java(dev: ModuleType, options: list[str], answer: bool) -> None:
    """Seeds, plans and the report run in the small environment."""
    assert dev.soaks_broker(options) is answer


def test_check_with_a_python_that_is_not_there_is_skipped_aloud() -> None:
    """The exit code says that nothing has run; what is no version is refused."""
    command = [sys.executable, str(ROOT / "dev.py"), "check"]
    answer = subprocess.run([*command, "--python", "3.99"], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout.count("\n")) == (77, 1)
    assert answer.stdout.startswith("check with Python 3.99: SKIPPED, there is no such Python here")
    answer = subprocess.run([*command, "--python=new"], capture_output=True, text=True, check=False)
    assert (answer.returncode, "e.g. 3.13; seen 'new'" in answer.stderr) == (2, True)


def test_another_python_is_found_where_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script on the path that runs nothing is passed over; of those of pyenv the newest is taken."""
    for place, code in (("bin/python3.98", 127), ("versions/3.98.9/bin/python", 0), ("versions/3.98.10/bin/python", 0)):
        path = tmp_path / place
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\necho 3.98\nexit {code}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert pythons.find("3.98") == str(tmp_path / "versions/3.98.10/bin/python")
    assert pythons.find("3.97") is None


def test_another_python_has_an_environment_of_its_own(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """``check`` runs with it as with any, in a folder beside the usual one, and what passed is not run again."""
    calls: list[tuple[list[str], str]] = []

    def call(command: list[str], cwd: Path, env: dict[str, str]) -> int:
        calls.append((command, env["CHECK_VENV"]))
        return 0

    monkeypatch.setattr(pythons, "ROOT", dev.ROOT)
    monkeypatch.setattr(pythons, "PASSED", dev.ROOT / ".keylanes" / "pythons.json")
    monkeypatch.setattr(pythons, "find", lambda version: f"python{version}")
    monkeypatch.setattr(subprocess, "call", call)
    for _ in range(2):
        assert pythons.main(["--all"]) == 0
    command = [str(dev.ROOT / "dev.py"), "check", *pythons.WHOLE]
    assert calls == [([f"python{v}", *command], f".venv.{v}") for v in pythons.OTHERS]
    (dev.ROOT / "errors.py").write_text("changed = True\n")
    assert pythons.main(["--all"]) == 0
    assert len(calls) == 2 * len(pythons.OTHERS)
    monkeypatch.setenv("CHECK_VENV", ".venv.3.12")
    code = "import sys; sys.path.insert(0, sys.argv[1]); import dev; print(dev.VENV.name)"
    answer = subprocess.run([sys.executable, "-c", code, str(dev.ROOT)], capture_output=True, text=True, check=True)
    assert answer.stdout == ".venv.3.12\n"


def test_a_checkout_may_be_named_anything(tmp_path: Path) -> None:
    """The style is judged by what the files hold, not by the folder that somebody unpacked them to."""
    checkout = tmp_path / "keylanes-0.1.0"
    checkout.mkdir()
    for name in ("dev.py", "pyproject.toml", "setup.py", "__init__.py", "errors.py"):
        shutil.copy(ROOT / name, checkout)
    command = [sys.executable, "-P", "-m", "ruff", "check", "--no-cache", "--isolated", "--select", "N999", "."]
    wanted = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert "N999" in wanted.stdout, "the rule would complain"
    command = [sys.executable, "-P", "-m", "ruff", "check", "--no-cache", "."]
    answer = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert "N999" not in answer.stdout


def test_a_module_beside_the_package_finds_the_checkout_last(dev: ModuleType) -> None:
    """The package comes from the environment: the checkout's own rooms are not in the way of anything."""
    (dev.ROOT / "beside.py").write_text("import sys; print(sys.path[-1], sys.argv[1:])")
    command = [*dev.module(sys.executable, "beside"), "--seed", "3"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout == f"{dev.ROOT} ['--seed', '3']\n"


def test_the_stamp_is_whole_or_absent(dev: ModuleType) -> None:
    """A stamp that can't be read counts as none."""
    pretend_environment(dev, [dev.SMALL])
    assert dev.read_stamp()["place"] == str(dev.ROOT)
    (dev.VENV / dev.STAMP).write_text(json.dumps({"place": "x"})[:-3])
    assert dev.read_stamp() == {}
