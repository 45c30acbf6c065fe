"""The README is held to what it shows: each of its snippets runs as it is printed."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = {"keylanes": [sys.executable, "-P", "-m", "keylanes.cli.entry"], "python": [sys.executable]}
"""The commands of an installed keylanes, which are run, and what they are here."""


def snippets(language: str) -> list[str]:
    """What is printed in blocks of a language; without one it is for a shell."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for name, text in blocks if name == language]


def lines_of_shell() -> list[str]:
    """All command lines, without what is said behind them."""
    return [line.partition("#")[0].strip() for block in snippets("") for line in block.strip().splitlines()]


def ran(folder: Path, *words: str) -> str:
    """What a program printed that ended well."""
    answer = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_the_hello_of_the_readme_is_the_example(tmp_path: Path) -> None:
    """What a newcomer copies from the README first is what lies in examples, and does what it says."""
    shown = snippets("python")[0]
    assert shown.strip() in (ROOT / "examples" / "hello.py").read_text(encoding="utf-8")
    (tmp_path / "hello.py").write_text(shown, encoding="utf-8")
    assert ran(tmp_path, sys.executable, "hello.py") == "['Hello, world!']\n"


def test_the_application_in_a_folder_runs_as_it_is_printed(tmp_path: Path) -> None:
    """The README's second program, and its commands, word for word: topics are made, it is fed, it runs, and its group
    is shown.
    """
    (tmp_path / "greet.py").write_text(snippets("python")[1], encoding="utf-8")
    said = ""
    for line in lines_of_shell():
        program, *arguments = line.split()
        if program in COMMANDS:
            said += ran(tmp_path, *COMMANDS[program], *arguments)
    assert "Hello, world!" in said.splitlines()
    assert "greet: EMPTY" in said
    assert "-> ?, left" in said


async def test_the_handler_and_its_test_run_as_they_are_printed() -> None:
    """All other snippets, one behind the other as one module: a handler with state, and its test across a crash."""
    scope: dict[str, Any] = {"__name__": "readme"}
    for number, shown in enumerate(snippets("python")[2:], 3):
        exec(compile(shown, f"snippet {number} of README.md", "exec"), scope)  # noqa: S102  # what people copy
    assert set(scope["app"].handlers) == {"orders"}
    tests = [found for name, found in scope.items() if name.startswith("test_")]
    assert len(tests) == 1
    for test in tests:
        await test()


def test_no_command_of_the_readme_is_left_out() -> None:
    """Each is run here, or is a target of the Makefile; and there is no block in another language that nobody runs."""
    targets = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert targets is not None
    known = {f"make {target}" for target in targets[1].split()}
    others = [line for line in lines_of_shell() if line not in known and line.split()[0] not in COMMANDS]
    assert others == []
    assert len(lines_of_shell()) >= 4
    assert len(snippets("")) + len(snippets("python")) == README.count("\n```") / 2
