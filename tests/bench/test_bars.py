"""The bars of the bench: ratios are of runs of one round, and a bar counts only when every arm ran, three times, at
full size.
"""

from comparison.bars import BARS, against, best, judge, own_failures, ratios, worst
from comparison.workloads import WORKLOADS, chosen

from ..tiers.marks import tier
from .books import W5, book, run, thrice

pytestmark = tier("check")

W5_ONLY = chosen(["W5"])


def test_ratios_are_of_runs_of_the_same_round() -> None:
    """A machine that gets twice as fast changes both arms, and no ratio; a round that one arm lacks gives none."""
    content = book(
        run("W1-2ms", "keylanes", 0, per_second=60.0),
        run("W1-2ms", "bare-lanes", 0, per_second=80.0),
        run("W1-2ms", "bare-lanes", 1, per_second=160.0),
        run("W1-2ms", "keylanes", 1, per_second=120.0),
        run("W1-2ms", "keylanes", 2, per_second=999.0),
    )
    assert ratios(content, "W1-2ms", "bare-lanes") == [0.75, 0.75]


def test_a_bar_against_several_arms_takes_the_best_of_them() -> None:
    """The engine with the highest rate is the one to beat; for latencies the one with the lowest."""
    arms = ("parallel-consumer-core", "parallel-consumer-reactor")
    assert best(book(*W5), "W5", arms) == "parallel-consumer-reactor"
    assert best(book(*W5), "W5", arms, least=True) == "parallel-consumer-core"
    assert against(arms)(book(*W5), "W5") == 950 / 900


def test_a_bar_counts_when_all_arms_ran_at_full_size() -> None:
    """With everything there, what is reached holds and what is missed fails."""
    bound, peer = judge(book(*thrice(*W5)), W5_ONLY)
    assert (bound.value, bound.holds, bound.reaches_goal, bound.why_not) == (0.95, True, True, "")
    assert peer.holds
    slow = run("W5", "keylanes", per_second=700.0, bound_per_second=1_000.0)
    slower = judge(book(*thrice(slow, *W5[1:])), W5_ONLY)
    assert [(verdict.holds, verdict.why_not) for verdict in slower] == [(False, ""), (False, "")]


def test_a_bar_does_not_count_without_an_arm() -> None:
    """Skipped, failed, not run, or run in another round only: the verdict says which arm it was. Nor does one at quick
    sizes, or in too few rounds.
    """
    core = "parallel-consumer-core"
    failed = {"workload": "W5", "arm": core, "round": 0, "failed": "out of memory"}
    rest = [W5[0], W5[2]]
    for content, reason in (
        (book(*rest, skipped={core: "no Java"}), f"{core} was skipped"),
        (book(*rest, failed), f"{core} failed in some round"),
        (book(*rest), f"{core} did not run in some round"),
        (book(*W5, run("W5", "keylanes", 1, per_second=1.0)), f"{core} did not run in some round"),
        (book(*W5, size="quick"), "quick sizes"),
        (book(*W5), "1 of 3 rounds"),
    ):
        assert {verdict.why_not for verdict in judge(content, W5_ONLY)} == {reason}


def test_a_limit_holds_from_below() -> None:
    """The worst round counts: one committed record that ran again is too many."""
    content = book(run("W6", "keylanes", 0, committed_again=0), run("W6", "keylanes", 1, committed_again=1))
    assert worst("committed_again")(content, "W6") == 1
    again = next(verdict for verdict in judge(content, chosen(["W6"])) if "committed" in verdict.bar.text)
    assert not again.holds
    shares = book(run("W6", "keylanes", again=30, bound=100.0), run("W6", "keylanes", 1, again=90, bound=120.0))
    assert worst("again", of="bound")(shares, "W6") == 0.75


def test_two_processes_of_ours_are_compared_with_two_threads() -> None:
    """Of the workloads for that; a failure of either arm of ours is ours."""
    rates = {"keylanes": 300.0, "keylanes-2": 450.0, "streams-eos": 100.0, "streams-eos-2": 180.0}
    content = book(*thrice(*(run("W3-4p", arm, per_second=rate) for arm, rate in rates.items())))
    (verdict,) = judge(content, [w for w in WORKLOADS if w.name == "W3-4p"])
    assert (verdict.value, verdict.holds) == (2.5, True)
    assert ratios(content, "W3-4p", "keylanes") == [1.5] * 3
    content["failures"] = [f"W3-4p, round 1, {arm}: why, so" for arm in rates]
    assert [failure.split(":")[0].split(", ")[2] for failure in own_failures(content)] == ["keylanes", "keylanes-2"]


def test_every_bar_is_about_a_workload_and_reads_well() -> None:
    """Without any run a verdict has no figure, does not count, and says so."""
    assert {bar.workload for bar in BARS} <= {workload.name for workload in WORKLOADS}
    verdict = judge(book(), W5_ONLY)[0]
    assert str(verdict) == (
        "does not count (keylanes did not run in some round): W5 of the hottest key's bound: no figure (≥ 0.9, goal "
        "0.95 missed)"
    )
