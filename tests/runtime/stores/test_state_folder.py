"""The subfolder of a running application: taken once, and held until it is closed."""

from pathlib import Path

import pytest

from keylanes import FencedError, Settings
from keylanes.runtime.stores.folder import StateFolder, open_state_folder
from keylanes.state.rocks import RocksError

from ...tiers.marks import tier

pytestmark = tier("check")


def of(folder: Path, name: str | None = None) -> StateFolder:
    """What a process with these settings has."""
    found = open_state_folder("shop", Settings(state_folder=str(folder), group_instance_id=name), "born")
    assert found is not None
    return found


def test_without_a_state_folder_there_is_none() -> None:
    """A name alone keeps no state."""
    assert open_state_folder("shop", Settings(group_instance_id="a"), "born") is None


def test_what_was_checked_is_what_is_opened(tmp_path: Path) -> None:
    """From the check on the subfolder is this process's, also while its copies are closed; then it is free."""
    first, second = of(tmp_path), of(tmp_path)
    first.check()
    second.check()
    copies = [one("b") for one in (first, second)]
    for one in copies:
        one.close()
    assert [(tmp_path / "shop" / name / "CURRENT").exists() for name in ("0", "1", "2")] == [True, True, False]
    first.close()
    first.close()
    third = of(tmp_path)
    third.check()
    third.close()
    second.close()
    assert not (tmp_path / "shop" / "2").exists()


def test_the_name_of_the_settings_is_taken(tmp_path: Path) -> None:
    """By one at a time."""
    first, second = of(tmp_path, "a"), of(tmp_path, "a")
    first.check()
    with pytest.raises(FencedError, match="which has the name 'a', too"):
        second.check()
    first.close()
    second.check()
    second.close()
    assert (tmp_path / "shop" / "a").is_dir()


def test_who_stops_while_it_looks_takes_nothing(tmp_path: Path) -> None:
    """A start that is given up leaves a thread that still looks for a subfolder; what it finds stays free."""
    given_up, other = of(tmp_path, "a"), of(tmp_path, "a")
    given_up.close()
    with pytest.raises(RocksError, match="is not wanted any more: the application stops"):
        given_up.check()
    other.check()
    other.close()
