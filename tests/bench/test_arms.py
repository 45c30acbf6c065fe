"""An arm that cannot run here is skipped, with a reason that a person can act on."""

import shutil
from pathlib import Path

import pytest

from comparison import arms
from comparison.arms import ARMS, command, find_python, java_command, ready, run_step
from comparison.workloads import WORKLOADS
from keylanes.devkafka.jars import KafkaServerError
from keylanes.devkafka.java import JavaHome
from rig.errors import Skipped


@pytest.fixture
def java_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project for Maven and a Java, neither of which is used."""
    source = tmp_path / "peers" / "java"
    source.mkdir(parents=True)
    (source / "pom.xml").write_text("<project/>")
    monkeypatch.setattr(arms, "PEERS", tmp_path / "peers")
    monkeypatch.setattr(arms, "JAVA_BUILD", tmp_path / "build")
    monkeypatch.setattr(arms, "java_home", lambda: JavaHome(tmp_path, 17, "a test"))
    java_command.cache_clear()
    return source


def test_without_maven_the_java_arms_are_skipped(java_source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names what is missing; arms in Python stay."""
    monkeypatch.setenv("PATH", str(java_source))
    found = dict(ready(["streams-eos", "keylanes"]))
    assert found == {"streams-eos": "Maven (mvn) is not on the path", "keylanes": ""}


def test_without_java_the_java_arms_are_skipped(java_source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is the package's own."""

    def fail() -> JavaHome:
        raise KafkaServerError("none is 17 or newer")

    monkeypatch.setattr(arms, "java_home", fail)
    with pytest.raises(Skipped, match="no Java: none is 17 or newer"):
        java_command()


def test_java_drivers_are_built_once(java_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again only when their sources have changed."""
    built: list[list[str]] = []
    monkeypatch.setattr(arms, "run_step", lambda what, call: built.append(call))
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    for content in ("<project/>", "<project/>", "<project></project>"):
        (java_source / "pom.xml").write_text(content)
        java_command.cache_clear()
        assert java_command()[-1] == "keylanes.bench.Main"
    assert len(built) == 2
    assert built[0][-1] == "package"
    java_command.cache_clear()


def test_without_a_python_that_is_new_enough_an_arm_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the path nor pyenv nor uv has one."""
    monkeypatch.setattr(arms, "find_uv", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(Skipped, match=r"needs Python 3\.99 or newer"):
        find_python((3, 99))


def test_a_step_that_fails_says_how(tmp_path: Path) -> None:
    """The end of what it said is the reason."""
    with pytest.raises(Skipped, match=r"setting up quix failed: ls: .*missing"):
        run_step("quix", ["ls", str(tmp_path / "missing")])


def test_every_arm_of_a_workload_is_known() -> None:
    """And ours needs no environment of its own."""
    assert {arm for workload in WORKLOADS for arm in workload.arms} == set(ARMS)
    assert command(ARMS["keylanes"])[1].endswith("keylanes_app.py")
