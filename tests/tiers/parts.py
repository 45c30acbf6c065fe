"""The parts of the proof: what each proves, the rooms whose change it concerns, and how it is run.

A part takes six minutes at most on two cores. Most are tests with the mark ``tier("proof", NAME)``; the others are
programs beside the tests.
"""

from dataclasses import dataclass
from typing import Final

MINUTES_MAX: Final = 6
ALL: Final = ("",)
"""In place of rooms: whatever has changed."""
ON_BROKERS: Final = ("brokers", "offsets", "runtime", "state")


@dataclass(frozen=True)
class Part:
    """One part. ``rooms``: folders of the package; ``minutes``: its usual time on two cores; ``words``: what Python is
    called with.
    """

    name: str
    proves: str
    rooms: tuple[str, ...]
    minutes: float
    words: tuple[str, ...]
    on_sources: bool = False

    def concerns(self, changed: set[str]) -> bool:
        """Whether one of its rooms is among those that changed."""
        return bool(changed) and (self.rooms == ALL or not changed.isdisjoint(self.rooms))


def of_tests(name: str, proves: str, rooms: tuple[str, ...], minutes: float, *, on_sources: bool = False) -> Part:
    """A part that is all tests with its mark. ``on_sources``: they use Spark, or change source that is compiled."""
    words = ("-P", "-m", "pytest", "-q", "--tier=proof", f"--part={name}", "-n", "2", "--dist", "loadfile")
    return Part(name, proves, rooms, minutes, words, on_sources)


def of_plants(share: str) -> Part:
    """A share of the planted defects, such as 1/3."""
    words = ("-P", "-m", "pytest", "-q", "tests/simulation/test_planted.py", "-k", "find or trips", "-n", "2")
    proves = f"tests and seeds find planted defects, share {share} of them"
    return Part(f"planted-{share[0]}", proves, ALL, 5.5, (*words, f"--plants={share}"), on_sources=True)


def of_deposed(led: str, version: int) -> Part:
    """Runs in which broker 1 leads a log, is cut off from its peers, and goes on answering clients."""
    words = ("-P", "-m", "tests.on_kafka.deposed", "--led", led, "--version", str(version), "--runs", "1")
    proves = f"nothing is doubled or lost when a deposed leader of {led} answers, transaction.version {version}"
    rooms = ("brokers", "group", "offsets", "runtime")
    return Part(f"deposed-{led}-{version}", proves, rooms, 4.5, words, on_sources=True)


def of_python(version: str) -> Part:
    """The tests of `check` and the long ones on another Python."""
    words = ("tests/pythons.py", "--python", version)
    return Part(f"python-{version}", f"keylanes works on Python {version}", ALL, 6, words, on_sources=True)


PARTS: Final = (
    *(of_deposed(led, 2) for led in ("control", "offsets", "changelog", "signals", "sources", "outputs")),
    of_deposed("transactions", 2),
    of_deposed("control-offsets", 2),
    of_deposed("transactions", 1),
    of_deposed("offsets", 1),
    of_tests(
        "chaos", "each record counts once while processes, brokers and connections fail", ON_BROKERS, 3, on_sources=True
    ),
    of_tests(
        "chaos-planted",
        "an audit names what planted defects break on a real broker",
        ("runtime", "spark"),
        1.5,
        on_sources=True,
    ),
    of_tests(
        "cluster-chaos",
        "no fault of a node, a leader or the network stops progress for long",
        ON_BROKERS,
        4,
        on_sources=True,
    ),
    of_tests(
        "group-chaos",
        "eight members of one partition fail in turn while ranges move",
        (*ON_BROKERS, "group"),
        3.5,
        on_sources=True,
    ),
    of_tests(
        "demo-kills",
        "the main job is right when its processes fail and ranges move",
        ("examples", "group"),
        3.5,
        on_sources=True,
    ),
    of_tests("demo-scaling", "the main job scales up and down under load", ("examples", "group"), 4, on_sources=True),
    of_tests("hung-broker", "commits go on while a broker hangs", ("brokers",), 2),
    of_tests("hung-leaders", "a group goes on, whatever the broker that hangs led", ("brokers", "runtime"), 5),
    of_tests("honest-simulation", "the simulated broker shows what a real Kafka shows", ("brokers",), 2),
    of_tests("planted-traps", "the tests on a real Kafka find planted defects", ("brokers",), 1),
    of_tests(
        "moving-leaders", "an audit is right while leaders move and a broker hangs", ("spark",), 2, on_sources=True
    ),
    of_tests(
        "brokers", "keylanes goes on with late, full, restarted and forgetful brokers", ("brokers", "devkafka"), 2.5
    ),
    of_tests(
        "starting-brokers",
        "a broker starts, keeps its data and ends with its program; who uses it waits while it is away",
        ("brokers", "cli", "devkafka", "runtime"),
        4.5,
    ),
    of_tests(
        "bad-input-logs", "what does not belong in our logs is refused on a real Kafka", ("offsets", "runtime"), 4
    ),
    of_tests("refusals", "refused connections and rights are named", ("brokers", "devkafka", "runtime"), 2.5),
    of_tests("sessions", "log-ins are renewed before they end", ("brokers",), 4.5),
    of_tests("quotas", "throttled brokers are slow, and most of a quota is used", ("brokers", "runtime"), 5.5),
    of_tests("rests", "a test that lets time pass sees the same, with and without rounds", ("runtime",), 5),
    of_tests("many-seeds", "hundreds of simulated groups meet every fault at every step", ALL, 4),
    of_tests(
        "group-model",
        "all worlds of small groups are right, and planted defects are found",
        ("group",),
        4.5,
        on_sources=True,
    ),
    *(of_plants(share) for share in ("1/3", "2/3", "3/3")),
    of_tests("protocol-models", "all worlds of the protocol are right", ("offsets",), 4),
    of_python("3.12"),
    of_python("3.13"),
)
"""In the order in which the proof runs them."""
