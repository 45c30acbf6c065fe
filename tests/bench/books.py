"""Small books, written by hand, and records of outputs."""

from typing import Any, NamedTuple

from _driver import transform
from rig.records import key_bytes


def run(workload: str, arm: str, number: int = 0, /, **figures: Any) -> dict[str, Any]:
    """One run that ended well."""
    return {"workload": workload, "arm": arm, "round": number, "figures": figures}


def book(*runs: dict[str, Any], size: str = "full", skipped: dict[str, str] | None = None) -> dict[str, Any]:
    """A book of these runs."""
    machine = {"cores": 2, "processor": "a processor", "memory_bytes": 2**34}
    return {
        "when": "2020-02-29T12:00:00+0000",
        "commit": "0123456789abcdef",
        "versions": {"kafka": "4"},
        "peers": {"keylanes": {"keylanes": "1", "python": "3.11"}, "pyrallel": {"pyrallel": "2", "python": "3.13"}},
        "settings": {"size": size},
        "skipped": skipped or {},
        "machine": machine,
        "runs": list(runs),
        "failures": [],
    }


def thrice(*runs: dict[str, Any]) -> list[dict[str, Any]]:
    """The same runs in each of three rounds."""
    return [{**one, "round": number} for number in range(3) for one in runs]


W5 = [
    run("W5", "keylanes", per_second=950.0, bound_per_second=1_000.0, records=50_000),
    run("W5", "parallel-consumer-core", per_second=800.0, records=50_000),
    run("W5", "parallel-consumer-reactor", per_second=900.0, records=50_000),
]
"""All arms of a workload, in one round."""


class Output(NamedTuple):
    """What a reader gets of an output's record."""

    value: bytes
    key: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


def output(value: bytes, *names: str) -> Output:
    """A transformed value under its own key, with headers of these names."""
    return Output(
        transform(value), key_bytes(int.from_bytes(value[:4], "little")), tuple((name, b"") for name in names)
    )
