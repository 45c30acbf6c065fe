"""Pages of docs/ that list what the code has: settings, exit codes, commands."""

import ast
import re
from pathlib import Path

import keylanes
from keylanes import KeylanesError, Security, Settings

from . import reference_page, settings_page
from .tiers.marks import tier

pytestmark = tier("check")

ROOT = Path(__file__).resolve().parents[1]


def errors() -> dict[str, int]:
    """The errors that end a process, each with its exit code."""
    kinds = [kind for kind in vars(keylanes).values() if isinstance(kind, type) and issubclass(kind, KeylanesError)]
    codes = {kind.__name__: vars(kind).get("exit_code", 1) for kind in kinds}
    return {name: code for name, code in codes.items() if code != 1}


def test_the_page_of_settings_is_up_to_date() -> None:
    """It says what the fields say; the command in it writes it anew."""
    written = settings_page.PAGE.read_text(encoding="utf-8")
    assert written == settings_page.page(), f"run {settings_page.COMMAND}"
    assert settings_page.COMMAND in written


def test_every_setting_says_what_it_is() -> None:
    """In some words behind its field, or below it, under a heading."""
    fields = [*settings_page.described(Settings), *settings_page.described(Security)]
    assert [f.name for f in fields] == [*Settings.__struct_fields__, *Security.__struct_fields__]
    assert [f.name for f in fields if len(f.words) < 10 and f.name != "security"] == []
    assert [f.name for f in fields if not f.group and f.name in Settings.__struct_fields__] == []


def test_the_reference_is_up_to_date() -> None:
    """It says what the sources say; the command in it writes it anew."""
    written = reference_page.PAGE.read_text(encoding="utf-8")
    assert written == reference_page.page(), f"run {reference_page.COMMAND}"
    assert reference_page.COMMAND in written


def test_what_the_compiler_drops_stands_in_the_reference() -> None:
    """All that is exported, once; each class and each of its public methods with a signature and a docstring."""
    named = [name for names in reference_page.GROUPS.values() for name in names]
    short = [name for name in reference_page.ALIASES if name in keylanes.__all__]
    assert sorted([*named, *short]) == sorted(keylanes.__all__)
    written = reference_page.PAGE.read_text(encoding="utf-8")
    assert "- `get() -> T | None`: The value; None when there is none.\n" in written
    assert "- `encode(value: Any) -> bytes`: The bytes of a value.\n" in written
    headings = re.findall(r"^#### \w+\.\w+\n\n```python\n[^`]+```\n\n[A-Z`]", written, re.MULTILINE)
    assert len(headings) == written.count("\n#### ") > 8
    for kind in ("App", "Context", "State", "MapState", "StoreView", "SimulatedApp", "Codec"):
        section = written.split(f"\n### {kind}\n")[1].split("\n### ")[0]
        calls = re.findall(r"^- `(?:await )?\w+\(.*\).*`: [A-Z`]|^#### ", section, re.MULTILINE)
        assert calls, section
    rows = re.findall(r"^\| `(\w+)` \| .+ \| .{20,} \|$", written, re.MULTILINE)
    assert {*re.findall(r"^### (\w+)\n", written, re.MULTILINE), *rows} >= {*named, *short}


def test_the_page_of_exit_codes_lists_all_of_them() -> None:
    """Each error with its code, and its name in errors.py with the same."""
    page = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE)
    assert {name: int(code) for code, name in rows} == errors()
    assert len(rows) == len(set(rows)) >= 9
    tree = ast.get_docstring(ast.parse((ROOT / "errors.py").read_text(encoding="utf-8"))) or ""
    assert {name: int(code) for name, code in re.findall(r"(\w+) +(\d+)  ", tree)} == errors()


def test_no_link_between_the_pages_ends_nowhere() -> None:
    """Files and headings exist."""
    for path in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *ROOT.glob("*/README.md")]:
        for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
            if "://" in link:
                continue
            name, _, heading = link.partition("#")
            target = path if not name else (path.parent / name).resolve()
            assert target.exists(), f"{path.name}: {link}"
            if heading:
                headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
                slugs = [re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings]
                assert heading in slugs, f"{path.name}: {link}"


def test_the_page_of_deployment_names_the_defaults() -> None:
    """The times that it gives are those of the settings."""
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    settings = Settings()
    for name in ("leave_ms", "drain_timeout_ms", "close_timeout_ms", "start_timeout_ms", "session_timeout_ms"):
        assert f"`{name}` ({getattr(settings, name) // 1000} s)" in page
