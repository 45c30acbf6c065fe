"""The command ``keylanes``: its entry point, which needs no extra to say which one is missing."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code. Those of errors.py are passed on; 2 is also wrong usage."""
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
