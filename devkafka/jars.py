"""The jars of the development broker: Apache Kafka, pinned by coordinates, size and SHA-256 in ``jars.txt``.

The jars are fetched once into a cache outside the project, by the Ivy that comes with pyspark, each jar without its
dependencies (the list is complete). The target is a temporary folder that is renamed when every hash is right. Every
jar is hashed again at each use (45 MB: a tenth of a second), and only listed jars get onto the class path.
"""

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import BrokerUnavailable
from .java import JavaHome, cache_folder

KAFKA_VERSION = "4.3.0"
PIN_FILE = Path(__file__).with_name("jars.txt")
IVY_SETTINGS_VARIABLE = "KEYLANES_IVY_SETTINGS"
FETCH_SECONDS_MAX = 900.0

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""


class KafkaServerError(BrokerUnavailable):
    """The development broker can't be fetched or started; the message says why and shows the end of its log."""


class Jar(NamedTuple):
    """One pinned jar. ``size`` is in bytes, ``sha256`` in hex."""

    organisation: str
    name: str
    revision: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        """The file name in the cache."""
        return f"{self.name}-{self.revision}.jar"


def pinned_jars() -> list[Jar]:
    """The jars of ``jars.txt``. Its lines are: SHA-256, size in bytes, organisation:name:revision."""
    jars = []
    for line in PIN_FILE.read_text(encoding="utf-8").splitlines():
        sha256, size, coordinates = line.split()
        organisation, name, revision = coordinates.split(":")
        jars.append(Jar(organisation=organisation, name=name, revision=revision, size=int(size), sha256=sha256))
    return jars


def class_path(java: JavaHome, progress: Progress | None = None) -> str:
    """The class path of the broker; fetches missing or damaged jars. Raises ``KafkaServerError``."""
    jars = pinned_jars()
    folder = cache_folder(os.environ) / f"kafka-{KAFKA_VERSION}"
    if damaged_jars(folder, jars):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder.with_name(f"{folder.name}.lock")):
            if damaged_jars(folder, jars):
                _fetch(java, jars, folder, progress)
    return os.pathsep.join(str(folder / jar.file_name) for jar in jars)


def damaged_jars(folder: Path, jars: Sequence[Jar]) -> list[Jar]:
    """The jars that are missing from the folder, or have another size or hash."""
    return [jar for jar in jars if not _is_intact(folder / jar.file_name, jar)]


def _is_intact(path: Path, jar: Jar) -> bool:
    try:
        if path.stat().st_size != jar.size:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
    except OSError:
        return False


def _fetch(java: JavaHome, jars: Sequence[Jar], folder: Path, progress: Progress | None) -> None:
    work = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        fetched = work / "jars"
        output = _run_ivy(_ivy_command(java, jars, work), len(jars), progress)
        damaged = damaged_jars(fetched, jars)
        if damaged:
            names = ", ".join(jar.file_name for jar in damaged)
            raise KafkaServerError(
                f"fetching Apache Kafka {KAFKA_VERSION}: missing, or other than their pinned SHA-256: {names}; it "
                f"needs a network, or {folder} from a machine that has it\n" + "\n".join(output[-15:])
            )
        if folder.exists():
            os.replace(folder, work / "damaged")
        os.replace(fetched, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _ivy_command(java: JavaHome, jars: Sequence[Jar], work: Path) -> list[str]:
    module = work / "ivy.xml"
    dependencies = "\n".join(
        f'<dependency org="{jar.organisation}" name="{jar.name}" rev="{jar.revision}"'
        ' transitive="false" conf="default->master"/>'
        for jar in jars
    )
    module.write_text(
        '<ivy-module version="2.0"><info organisation="keylanes" module="broker"/>\n'
        '<configurations><conf name="default"/></configurations>\n'
        f"<dependencies>\n{dependencies}\n</dependencies></ivy-module>\n",
        encoding="utf-8",
    )
    command = [str(java.java), "-jar", str(_ivy_jar()), "-m2compatible", "-confs", "default", "-types", "jar", "bundle"]
    command += ["-cache", str(work / "cache"), "-ivy", str(module)]
    settings = os.environ.get(IVY_SETTINGS_VARIABLE)
    if settings:
        command += ["-settings", settings]
    return [*command, "-retrieve", f"{work}/jars/[artifact]-[revision].[ext]"]


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise KafkaServerError("fetching Apache Kafka needs pyspark, which brings Ivy: pip install 'keylanes[spark]'")
    jars = sorted(Path(spec.submodule_search_locations[0], "jars").glob("ivy-*.jar"))
    if not jars:
        raise KafkaServerError("the installed pyspark holds no jars/ivy-*.jar: reinstall keylanes[spark]")
    return jars[-1]


def _run_ivy(command: list[str], jar_count: int, progress: Progress | None) -> list[str]:
    """Run Ivy; returns its output. Each jar makes two steps of progress: a line when found, a line when downloaded."""
    output: list[str] = []
    done, total = 0, 2 * jar_count
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        )  # fmt: skip
    except OSError as error:
        raise KafkaServerError(f"can't run Java to fetch Apache Kafka: {error}") from error
    with process, _deadline(process, FETCH_SECONDS_MAX):
        assert process.stdout is not None
        for line in process.stdout:
            if not line.strip(". \n"):
                continue
            output.append(line.rstrip())
            if line.startswith(("\tfound ", "\t[SUCCESSFUL ]")):
                done = min(done + 1, total)
                if progress is not None:
                    progress(done, total)
    return output


@contextlib.contextmanager
def _deadline(process: "subprocess.Popen[str]", seconds: float) -> Iterator[None]:
    """Kill the process after ``seconds``, and also when the block ends with an error."""
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    except BaseException:
        process.kill()
        raise
    finally:
        timer.cancel()


@contextlib.contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Wait for other processes that fetch into the same cache."""
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
