"""The name of a process, ``group_instance_id``: what Kafka allows, and nothing else."""

from typing import Any

import pytest

from keylanes import Settings, SettingsError


@pytest.mark.parametrize("name", ["a", "shop-0", "10.0.0.1", "_", "a" * 249])
def test_a_process_may_have_a_name(name: str) -> None:
    """Given in code or by the environment, where nothing is none; there is none by default."""
    assert Settings(group_instance_id=name).group_instance_id == name
    assert Settings.from_env({"KEYLANES_GROUP_INSTANCE_ID": name}).group_instance_id == name
    assert Settings.from_env({"KEYLANES_GROUP_INSTANCE_ID": ""}).group_instance_id is None
    assert Settings().group_instance_id is None


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "a=b", "a\n", "ä", "a" * 250, 7])
def test_another_name_is_refused(name: Any) -> None:
    """The error says what was seen, what is allowed, and what to do."""
    with pytest.raises(SettingsError, match="group_instance_id") as refused:
        Settings(group_instance_id=name)
    assert f"seen {name!r}" in str(refused.value)
    if isinstance(name, str):
        assert "has 1 to 249 of a-z A-Z 0-9 . _ -, and is not . or .." in str(refused.value)
        assert "give each process a name of its own, or leave it out" in str(refused.value)
