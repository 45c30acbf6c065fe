"""What does a batch do that the broker refuses? keylanes beside its peers, with one output that its topic won't take.

An application counts the records of 20 keys in two partitions and sends an output for each. While it runs, the limit of
its output topic (max.message.bytes) is lowered, and a record comes whose output is larger. What happens to the process,
to that record, to the others, and to the state is seen by committed readers; then the application is restarted, first
under the same limit, then with the limit raised again. In the arm keylanes-known the limit stands from the start.

    --arms keylanes …   only these
    --docs              no run: the table of the last one goes into docs/benchmarks.md

keylanes must lose and double nothing, and its state must hold nothing that is not visible.
"""

import argparse
import json
import re
import sys
from dataclasses import dataclass
from typing import Any

from comparison.arms import JAVA_BUILD, java_command, python_of
from refusing.run import run_arm
from refusing.table import fate, loses, markdown, standing
from rig.book import alone
from rig.broker import running_broker
from rig.ground import Ground
from rig.machine import surroundings
from rig.pages import write_between
from rig.places import FOLDER, PEERS, ROOT
from rig.results import verdict, write_result
from rig.witness import Skipped, WrongRun

NAME = "refused"
BAR = "keylanes loses and doubles nothing, and its state is not ahead of its outputs"


@dataclass(frozen=True)
class Arm:
    """``environment``: the pinned file of its library, or ``java``; empty for our own."""

    title: str
    environment: str = ""


ARMS = {
    "keylanes": Arm("keylanes, with state"),
    "keylanes-stateless": Arm("keylanes, without state"),
    "keylanes-known": Arm("keylanes, with state, limit known at the start"),
    "flechtwerk": Arm("Flechtwerk, exactly once", "flechtwerk"),
    "streams-eos": Arm("Kafka Streams, exactly once", "java"),
    "streams-alo": Arm("Kafka Streams, at least once", "java"),
    "quix-eos": Arm("Quix Streams, exactly once", "quix"),
    "quix-alo": Arm("Quix Streams, at least once", "quix"),
    "aiokafka-loop": Arm("aiokafka loop, one transaction per poll"),
    "aiokafka-awaited": Arm("the same, each send awaited"),
}
PYTHONS = {"flechtwerk": (3, 12), "quix": (3, 11)}
"""What the libraries need."""
LIBRARIES = {"flechtwerk": ("flechtwerk",), "quix": ("quixstreams", "confluent-kafka")}
"""Whose versions are told."""


def command_of(arm: str) -> list[str]:
    """What runs an arm, before its order. Raises Skipped."""
    environment = ARMS[arm].environment
    if environment == "java":
        return java_command()
    python = python_of(environment, PYTHONS[environment]) if environment else sys.executable
    return [python, str(PEERS / "refused_apps.py")]


def main() -> int:
    """Run the arms, then report; 0 when keylanes' bar holds in each of its arms."""
    parsed = arguments()
    if parsed.docs:
        result = json.loads((FOLDER / f"{NAME}.json").read_text())
        write_between(ROOT / "docs" / "benchmarks.md", NAME, page(result))
        return 0
    with alone():
        result = run(parsed.arms or list(ARMS))
    write_result(NAME, result)
    print(page(result))
    return 0 if verdict(BAR, not own_failures(result)) else 1


def own_failures(result: dict[str, Any]) -> list[str]:
    """The arms of keylanes that lost or doubled something, or whose run is void."""
    lost = [arm for arm, facts in result["facts"].items() if loses(facts)]
    return [arm for arm in [*lost, *result["failed"]] if arm.startswith("keylanes")]


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", default=[], metavar="ARM", choices=sorted(ARMS))
    parser.add_argument("--docs", action="store_true")
    return parser.parse_args()


def run(arms: list[str]) -> dict[str, Any]:
    """The facts of every arm, on one broker."""
    result: dict[str, Any] = {**surroundings(), "facts": {}, "skipped": {}, "failed": {}}
    with running_broker("kafka", NAME) as address:
        ground = Ground(address.removeprefix("kafka://"), FOLDER / f"{NAME}-runs")
        for arm in arms:
            try:
                facts = run_arm(arm, command_of(arm), ground, f"{NAME}-{arm}", is_known=arm == "keylanes-known")
            except Skipped as reason:
                result["skipped"][arm] = str(reason)
                print(f"  {arm}: skipped: {reason}", flush=True)
            except WrongRun as error:
                result["failed"][arm] = str(error)
                print(f"  {arm}: FAILED: {error}", flush=True)
            else:
                result["facts"][arm] = facts
                print(f"  {arm}: {standing(facts['first'])}; {fate(facts)}", flush=True)
    return {**result, "pinned": pinned()}


def page(result: dict[str, Any]) -> str:
    """The table, and where it comes from."""
    titles = {name: arm.title for name, arm in ARMS.items()}
    skipped = {**result["skipped"], **result["failed"]}
    ran = ", ".join(f"{name} {version}" for name, version in versions(result).items())
    return f"One run of each, on {result['when'][:10]}, with {ran}.\n\n{markdown(result['facts'], titles, skipped)}"


def versions(result: dict[str, Any]) -> dict[str, str]:
    """Of the broker, of keylanes and of the libraries that ran."""
    found = {name: str(result["versions"][name]) for name in ("kafka", "keylanes", "python", "aiokafka")}
    for environment in dict.fromkeys(ARMS[arm].environment for arm in result["facts"]):
        found |= result["pinned"].get(environment, {})
    return found


def pinned() -> dict[str, dict[str, str]]:
    """The versions of what each environment was made for."""
    found = {}
    for environment, libraries in LIBRARIES.items():
        text = (PEERS / "requirements" / f"{environment}.txt").read_text()
        found[environment] = {
            library: re.findall(rf"^{library}==(\S+)", text, re.MULTILINE)[0] for library in libraries
        }
    jars = [path.stem for path in (JAVA_BUILD / "lib").glob("kafka-streams-*.jar")]
    return {**found, "java": dict(jar.rsplit("-", 1) for jar in jars)}


if __name__ == "__main__":
    sys.exit(main())
