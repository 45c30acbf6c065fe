"""What ``keylanes run`` logs, and where: the module's own logging holds, and without one there are lines for people."""

import json
import textwrap
from pathlib import Path

import pytest

from keylanes import IS_COMPILED

from .test_commands import keylanes

APPLICATION = """
    import logging, sys
    from keylanes import App

    app = App("shop", broker="embedded:data")

    @app.handler("orders")
    async def pack(order: dict) -> None: ...
"""
HANDLER = """
    class Lines(logging.Formatter):
        def format(self, record):
            import json
            return json.dumps([record.name, record.levelname, record.getMessage()])

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
"""
OWN = """
    logging.basicConfig(level=logging.INFO, handlers=[handler])
"""
OF_OURS_ALONE = """
    logging.getLogger("keylanes").addHandler(handler)
    logging.getLogger("keylanes").setLevel(logging.INFO)
"""
QUIET = """
    logging.getLogger("keylanes").setLevel(logging.WARNING)
"""


def run(folder: Path, *parts: str, arguments: tuple[str, ...] = ()) -> list[str]:
    """The lines on standard error of a run to the end of an empty topic; without those of the progress bar."""
    (folder / "shop.py").write_text("".join(textwrap.dedent(part) for part in (APPLICATION, *parts)))
    made = keylanes(folder, "topics", "shop:app", "--partitions", "1", "--create")
    assert made.returncode == 0, made.stderr
    answer = keylanes(folder, "run", "shop:app", "--until", "level", *arguments)
    assert answer.returncode == 0, answer.stderr
    return answer.stderr.splitlines()


def test_without_any_logging_there_are_lines_for_people(tmp_path: Path) -> None:
    """From INFO on: the story of the run."""
    lines = run(tmp_path)
    assert " INFO     keylanes: shop: starting: keylanes " in lines[0]
    assert "on embedded:data" in lines[0]
    assert ("interpreted: a record costs " in lines[1]) == (not IS_COMPILED)
    assert " INFO     keylanes: shop: stopping: it is level with its sources; " in lines[-2]
    assert " INFO     keylanes: shop: stopped in order: 0 records done in " in lines[-1]
    assert not [line for line in lines if "aiokafka" in line]


@pytest.mark.parametrize("own", [OWN, OF_OURS_ALONE], ids=["of-the-root", "of-ours"])
def test_the_logging_of_the_module_holds(tmp_path: Path, own: str) -> None:
    """Its own handler writes each line once, and no other does."""
    lines = [json.loads(line) for line in run(tmp_path, HANDLER, own)]
    stopped = [text for name, level, text in lines if (name, level) == ("keylanes", "INFO") and "stopped in" in text]
    assert len(stopped) == 1


def test_a_level_that_is_asked_for_holds_too(tmp_path: Path) -> None:
    """In place of INFO, and of the level of the module's root logger; not of one that it gave to ours."""
    assert run(tmp_path, arguments=("--log-level", "warning")) == []
    assert run(tmp_path, HANDLER, OWN, arguments=("--log-level", "ERROR")) == []
    assert run(tmp_path, HANDLER, OWN, QUIET, arguments=("--log-level", "INFO")) == []
