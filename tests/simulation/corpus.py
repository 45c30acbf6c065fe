"""Plans that once failed, kept to be run first. Each says what it found; the files are in ``corpus/``."""

import re
from pathlib import Path

import msgspec

from .plan import Plan

FOLDER = Path(__file__).parent / "corpus"
NAME_WORDS = 8


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """A plan, and what it found: one line. ``defect``: the planted defect that it finds."""

    found: str
    plan: Plan
    defect: str = ""


def paths(folder: Path = FOLDER) -> list[Path]:
    """All cases, in order of their names."""
    return sorted(folder.glob("*.json"))


def load(path: Path) -> Case:
    """A case, or a plan alone, as the soak writes it for a failure."""
    content = path.read_bytes()
    fields = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    if "plan" in fields:
        return msgspec.json.decode(content, type=Case)
    return Case("", msgspec.json.decode(content, type=Plan))


def add(case: Case, folder: Path = FOLDER) -> Path:
    """Keep a case, under a name made of what it found; its file."""
    if not case.found.strip() or "\n" in case.found:
        raise ValueError(f"what the plan found is to be said in one line, not {case.found!r}")
    folder.mkdir(exist_ok=True)
    words = re.findall(r"[a-z0-9]+", case.found.lower())[:NAME_WORDS]
    path = folder / f"{'-'.join(words)}.json"
    path.write_bytes(as_json(case) + b"\n")
    return path


def as_json(value: msgspec.Struct) -> bytes:
    """JSON for people: a record, a happening on each line."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=1).decode()
    # What is innermost fits in a line.
    for innermost in (r"\{[^{}\[\]]*\}", r"\[[^{}\[\]]*\]"):
        text = re.sub(innermost, lambda found: " ".join(found[0].split()), text)
    return text.encode()
