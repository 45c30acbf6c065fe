"""The wheel holds the rooms alone: scripts beside the root package's ``__init__.py`` stay out of it."""

from setuptools import setup
from setuptools.command.build_py import build_py


class Rooms(build_py):
    """Copies the listed packages; of the checkout's top folder only ``__init__.py``."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """The modules of one package as (package, module, file)."""
        found = super().find_package_modules(package, package_dir)
        return [entry for entry in found if package != "keylanes" or entry[1] == "__init__"]


setup(cmdclass={"build_py": Rooms})
