"""What a refused batch does: the facts of a run, and what a person reads of them."""

import struct
from typing import Any

import pytest

from refused import ARMS, own_failures, pinned
from refused_apps import LIBRARIES, output_of
from refusing.run import errors_of
from refusing.stage import REFUSED_KEY, REFUSED_NUMBER, visible_of
from refusing.table import COLUMNS, fate, loses, markdown, row
from rig.witness import WrongRun


def facts(**changed: Any) -> dict[str, Any]:
    """Of an arm that stops and keeps the record."""
    goes_on: dict[str, Any] = {"code": None, "errors": []}
    found = {
        "first": {"code": 5, "errors": ["HandlerFailed", "MESSAGE_TOO_LARGE"]},
        "others": 190,
        "others_sent": 570,
        "offset": 15,
        "refused_offset": 150,
        "again": {"code": 5, "errors": [], "more": 0},
        "raised": goes_on,
        "refused_is_visible": True,
        "dead": 0,
        "missing": 0,
        "missing_others": 0,
        "doubled": 0,
        "ahead_at_last": 0,
    }
    return {**found, **changed}


LOST = facts(
    first={"code": None, "errors": []},
    offset=400,
    refused_is_visible=False,
    missing=9,
    missing_others=8,
    ahead_at_last=9,
)
DEAD = facts(first={"code": None, "errors": []}, refused_is_visible=False, dead=1, missing=1)


def test_what_became_of_the_record_is_told() -> None:
    """Kept, a dead letter, or lost; and whether the offset behind it was committed."""
    assert fate(facts()) == "kept, published when the limit is raised"
    assert fate(DEAD) == "a dead letter"
    assert fate(LOST) == "**lost**: its offset was committed"
    assert fate({**LOST, "offset": 150}) == "**lost**"


def test_what_is_lost_is_told_from_what_is_a_dead_letter() -> None:
    """A dead letter is no loss; a missing or doubled output is one, and state that is ahead of the outputs."""
    assert not loses(facts())
    assert not loses(DEAD)
    assert loses(LOST)
    assert loses(facts(doubled=1))
    assert loses(facts(ahead_at_last=1))
    assert row("one", DEAD)[7] == "0"
    assert row("one", LOST)[7] == "9 (8 of other keys)"


def test_the_bench_fails_by_its_own_arms_only() -> None:
    """A peer that loses outputs, or whose run is void, is shown; the command fails when keylanes' is."""
    result: dict[str, Any] = {"facts": {"flechtwerk": LOST, "keylanes": DEAD}, "failed": {"quix-eos": "no output"}}
    assert own_failures(result) == []
    result["facts"]["keylanes"] = LOST
    result["failed"]["keylanes-known"] = "no output"
    assert own_failures(result) == ["keylanes", "keylanes-known"]


def test_a_row_says_how_a_process_stands() -> None:
    """While the limit is low, after a restart under it, and when it is raised; an arm without a store has no state."""
    cells = dict(zip(COLUMNS, row("one", facts(ahead_at_last=None)), strict=True))
    assert cells["process"] == "ends with code 5"
    assert cells["errors it names"] == "`HandlerFailed`, `MESSAGE_TOO_LARGE`"
    assert cells["other keys meanwhile"] == "190 of 570"
    assert cells["restart, same limit"] == "ends with code 5; outputs more: 0"
    assert cells["restart, limit raised"] == "goes on"
    assert cells["changes of state without output"] == "no state"


def test_the_table_has_a_row_for_each_arm_that_was_tried() -> None:
    """Also for one that could not run, with the reason, in as many cells."""
    lines = markdown({"a": facts()}, {"a": "A", "b": "B", "c": "C"}, {"b": "no Java | here"}).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| A", "| B"]
    assert "skipped: no Java / here" in lines[3]
    assert len({line.count("|") for line in lines}) == 1


def test_an_output_says_which_record_it_is_of() -> None:
    """It is as long as the record asks for, and holds the count; one that is there twice is doubled."""
    source = struct.pack("<IIQ", REFUSED_KEY, REFUSED_NUMBER, 100)
    output = output_of(source, 7)
    assert len(output) == 100
    assert struct.unpack_from("<IIQ", output) == (REFUSED_KEY, REFUSED_NUMBER, 7)
    other = output_of(struct.pack("<IIQ", REFUSED_KEY + 1, 0, 100), 1)
    seen = visible_of([output, other, other])
    assert (seen.refused, seen.doubled, seen.of_others()) == (True, 1, 1)
    with pytest.raises(WrongRun, match="no output of the handler"):
        visible_of([b"short"])


def test_the_errors_that_a_process_named_are_found() -> None:
    """Each once, in their order, without the packages in front of them; none where nothing is named one."""
    lines = ("ERROR x: KafkaError{code=MSG_SIZE_TOO_LARGE}", "at y", "Caused by: org.apache.RecordTooLargeException: z")
    assert errors_of("\n".join([*lines, *lines])) == ["KafkaError", "MSG_SIZE_TOO_LARGE", "RecordTooLargeException"]
    assert errors_of("INFO all is well\n") == []


def test_every_arm_has_a_program_and_versions() -> None:
    """In Python by its first word; of each environment in Python the versions are told."""
    assert {arm.partition("-")[0] for arm in ARMS} - {"streams"} == set(LIBRARIES)
    assert set(pinned()) == {arm.environment for arm in ARMS.values()} - {""}
    assert pinned()["flechtwerk"]["flechtwerk"].startswith("0.17.")
