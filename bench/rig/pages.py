"""Pages of docs/ of which a part is written by a bench, between two markers."""

from pathlib import Path


def write_between(path: Path, name: str, text: str) -> None:
    """Put a text between the lines ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->`` of a page. Raises ValueError
    when they are missing.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    page = path.read_text()
    before, found, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"{path.name} has no {begin} … {end}")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")
