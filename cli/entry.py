"""The command ``keylanes``: its entry point. The module needs no extra, to be able to name a missing extra."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: a code of errors.py, or 2 for wrong usage."""
    try:
        from .commands import run_command
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("click", "rich", "typer"):
            raise
        print(f"keylanes: the command line needs {error.name}; run: pip install 'keylanes[cli]'", file=sys.stderr)
        return 2
    return run_command(sys.argv[1:] if arguments is None else list(arguments))


if __name__ == "__main__":
    sys.exit(main())
