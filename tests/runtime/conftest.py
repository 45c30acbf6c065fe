"""What tests of a running application stand on."""

from pathlib import Path

import pytest

from ..stage.ground import Ground


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """A folder of its own for each test."""
    return Ground(f"embedded:{tmp_path / 'data'}")
