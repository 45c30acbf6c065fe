"""The README is held to what it shows."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_hello_of_the_readme_is_the_example() -> None:
    """What a newcomer copies from the README is what the tests run."""
    shown = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0].strip()
    example = (ROOT / "examples" / "hello.py").read_text()
    assert shown in example


def test_every_page_that_the_readme_links_to_is_there() -> None:
    """No link of the README ends nowhere."""
    links = re.findall(r"\]\(([^)#h][^)]*)\)", (ROOT / "README.md").read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []
