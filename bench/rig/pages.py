"""Pages of docs/ of which a part is written by a bench, between two markers."""

from pathlib import Path


def write_between(path: Path, name: str, text: str, *, is_inline: bool = False) -> None:
    """Put a text between the markers ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->`` of a page, on lines of its own
    unless it is ``is_inline``. Raises ValueError when they are missing.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    page = path.read_text()
    before, found, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"{path.name} has no {begin} … {end}")
    around = "" if is_inline else "\n"
    path.write_text(f"{before}{begin}{around}{text}{around}{end}{after}")
