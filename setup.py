"""What the metadata can't say: the wheel holds the rooms alone, and its hot modules are compiled.

Scripts beside the root package's modules stay out of the wheel. The modules that ``[tool.keylanes] compiled``
names are compiled by mypyc as they are, so the source stays the truth and runs without it, some times slower. That is
what becomes of the wheel where there is no mypyc or no C compiler, with a warning, or with ``KEYLANES_INTERPRETED=1``.
A linked checkout (``pip install -e``) is never compiled: it would go on running what the source said before.
"""

import os
import shutil
import sys
import tomllib
import warnings
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
DESCRIBED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
PACKAGES = DESCRIBED["setuptools"]["packages"]
AT_THE_TOP = ("__init__.py", "errors.py")
"""The modules of the root package; what else lies there are scripts."""
COMPILING = ("bdist_wheel", "build", "build_ext")
"""The commands that compile; metadata, source archives and links need none of it."""


class Rooms(build_py):
    """Copies the listed packages; of the checkout's top folder only the modules of the root package."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """The modules of one package as (package, module, file)."""
        found = super().find_package_modules(package, package_dir)
        return [entry for entry in found if package != "keylanes" or f"{entry[1]}.py" in AT_THE_TOP]


class Compiled(build_ext):
    """Compiles all or nothing: a module beside one that is missing could not be imported."""

    def run(self) -> None:
        """Build all extensions, or leave them out."""
        try:
            super().run()
        except Exception as error:  # noqa: BLE001  # a compiler may fail in any way
            for built in self.get_outputs():
                Path(built).unlink(missing_ok=True)
            self.extensions = []
            stays_interpreted(error)


def stays_interpreted(why: object) -> None:
    """Say so: it is no failure, and nobody should have to guess."""
    warnings.warn(f"keylanes is not compiled, the hot path is slower: {why}", stacklevel=2)


def extensions() -> list[Extension]:
    """The hot modules as C, from a copy in a folder that is named like the package; none where there is no mypyc."""
    if os.environ.get("KEYLANES_INTERPRETED", "0") not in ("", "0") or not set(COMPILING) & set(sys.argv):
        return []
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        stays_interpreted(error)
        return []
    folder = ROOT / "build" / "mypyc"
    shutil.rmtree(folder, ignore_errors=True)
    for package in PACKAGES:
        source, copy = ROOT.joinpath(*package.split(".")[1:]), folder.joinpath(*package.split("."))
        copy.mkdir(parents=True)
        for path in source.glob("*.py"):
            if package != "keylanes" or path.name in AT_THE_TOP:
                shutil.copy(path, copy)
    # Without namespace packages: else the folders above would be part of the modules' names.
    options = ["--strict", "--ignore-missing-imports", "--follow-imports=silent", "--no-namespace-packages"]
    options.append("--config-file=")
    files = [f"keylanes/{path}" for path in DESCRIBED["keylanes"]["compiled"]]
    here = Path.cwd()
    os.chdir(folder)
    try:
        built: list[Extension] = mypycify([*options, *files], opt_level="3", debug_level="0", group_name="keylanes")
    except SystemExit as error:  # its way to say that types are wrong, which newer versions may find
        stays_interpreted(error)
        return []
    finally:
        os.chdir(here)
    for extension in built:
        extension.sources = [os.path.relpath(folder / path, ROOT) for path in extension.sources]
        extension.include_dirs = [str(folder / path) for path in extension.include_dirs]
        extension.extra_compile_args = [word for word in extension.extra_compile_args if word != "-Werror"]
    return built


setup(cmdclass={"build_py": Rooms, "build_ext": Compiled}, ext_modules=extensions())
