"""What people read of a bench: tables that say what is missing, and pages that are written from the book."""

from pathlib import Path

import pytest

from comparison.bars import own_failures
from comparison.markdown import benchmark_tables, summary_table
from comparison.report import latency_rate, notes, report, table
from comparison.workloads import WORKLOADS, chosen
from rig.pages import write_between

from .books import W5, book, run, thrice


def test_a_table_shows_every_arm_and_why_one_has_no_figures() -> None:
    """Skipped and failed arms keep their row; the reason stands below."""
    failed = {"workload": "W5", "arm": "parallel-consumer-reactor", "round": 0, "failed": "ended with code 1"}
    content = book(W5[0], failed, skipped={"parallel-consumer-core": "no Java"})
    content["failures"].append("W5, round 1, parallel-consumer-reactor: ended with code 1")
    workload = chosen(["W5"])[0]
    columns, rows = table(content, workload)
    assert [row[0] for row in rows] == list(workload.arms)
    assert all(len(row) == len(columns) for row in rows)
    reasons = {row[0]: row[1] for row in rows}
    assert (reasons["parallel-consumer-core"], reasons["parallel-consumer-reactor"]) == ("skipped", "failed")
    assert notes(content, workload) == [
        "skipped: parallel-consumer-core: no Java",
        "failed: W5, round 1, parallel-consumer-reactor: ended with code 1",
    ]


def test_a_bench_fails_by_its_own_runs_only() -> None:
    """A peer that lost records, in a round or in a warm-up, is shown; the command fails when keylanes did."""
    content = book(*W5)
    content["failures"] += [
        "W6, round 1, parallel-consumer-core: 998 records were not handled, keylanes: all",
        "W7-handled, a warm-up, parallel-consumer-reactor: ended with code 1",
    ]
    assert own_failures(content) == []
    content["failures"].append("W6, round 2, keylanes: a record was handled twice")
    assert own_failures(content) == ["W6, round 2, keylanes: a record was handled twice"]


def test_what_a_prefix_took_is_said() -> None:
    """An arm that handled a part of the records is marked, and the longest time of such an arm is told."""
    whole = run("W1-2ms", "keylanes", per_second=90.0, records=300, seconds=3.0, is_prefix=False)
    part = run("W1-2ms", "pyrallel", per_second=9.0, records=100, seconds=11.1, is_prefix=True)
    workload = chosen(["W1-2ms"])[0]
    _, rows = table(book(whole, part), workload)
    assert [row[1] for row in rows if row[1] != "-"] == ["300", "100 (prefix)"]
    assert notes(book(whole, part), workload)[-1].endswith("the longest took 11.1 s.")


def test_what_the_host_took_away_is_said() -> None:
    """Of the whole workload, from the least to the most; not where nobody tells."""
    runs = [run("W5", "keylanes", i, per_second=9.0, stolen_share=share) for i, share in enumerate((0.001, 0.021))]
    said = "The machine's host took 0.1% to 2.1% of the processors' time away."
    assert said in notes(book(*runs), chosen(["W5"])[0])
    assert not notes(book(run("W5", "keylanes", per_second=9.0, stolen_share=None)), chosen(["W5"])[0])


def test_a_report_gives_back_the_bars_that_count_and_fail(capsys: pytest.CaptureFixture[str]) -> None:
    """One miss is one; a bar that does not count is none."""
    slow = run("W5", "keylanes", per_second=850.0, bound_per_second=1_000.0, records=50_000)
    shown: list[str] = []
    fails = report(book(*thrice(slow, *W5[1:])), chosen(["W5"]), lambda title, columns, rows: shown.append(title))
    assert [verdict.bar.text for verdict in fails] == ["of the hottest key's bound", "× the best Parallel Consumer"]
    assert shown[0].startswith("W5: ")
    assert "FAILS: W5 of the hottest key's bound: 0.85" in capsys.readouterr().out
    assert not report(book(slow, *W5[1:], size="quick"), chosen(["W5"]), lambda *_: None)


def test_the_rate_of_the_open_loop_is_half_of_the_slowest_arm_and_stays() -> None:
    """It is set once for a book: all arms and rounds get the same."""
    content = book(
        run("W1-2ms", "keylanes", per_second=90.0),
        run("W1-2ms", "parallel-consumer-core", per_second=40.0),
        run("W1-2ms", "aiokafka-serial", per_second=1.0),
    )
    assert latency_rate(content) == 20.0
    content["runs"].append(run("W1-2ms", "parallel-consumer-reactor", per_second=10.0))
    assert latency_rate(content) == 20.0
    with pytest.raises(ValueError, match="W1-2ms"):
        latency_rate(book())


def test_a_page_is_written_between_its_markers(tmp_path: Path) -> None:
    """What stands around stays; writing twice changes nothing; without markers nothing is written."""
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- bench: begin -->\nfrom before\n<!-- bench: end -->\nafter\n")
    write_between(path, "bench", benchmark_tables(book(*W5)))
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "from before" not in text
    write_between(path, "bench", benchmark_tables(book(*W5)))
    assert path.read_text() == text
    path.write_text("no markers")
    with pytest.raises(ValueError, match="has no"):
        write_between(path, "bench", "tables")


def test_the_tables_say_where_we_lose() -> None:
    """A ratio below one is bold, a bar that is missed is named, and so is what does not count."""
    slow = run("W5", "keylanes", per_second=450.0, bound_per_second=1_000.0, records=50_000)
    text = benchmark_tables(book(*thrice(slow, *W5[1:])))
    assert "900 (**0.50 ×**)" in text
    assert "- **Missed:** W5 of the hottest key's bound: 0.45, not 0.9." in text
    assert "- Not counted: W3: keylanes did not run in some round." in text


def test_the_tables_say_which_arm_did_not_run() -> None:
    """An arm that nobody started has not failed; each exactly-once peer has a column of its own."""
    failed = {"workload": "W3", "arm": "quix-eos", "round": 0, "failed": "ended with code 1"}
    runs = (run("W3", arm, per_second=rate) for arm, rate in (("keylanes", 90.0), ("flechtwerk", 45.0)))
    lines = benchmark_tables(book(*runs, failed)).splitlines()
    head = next(line for line in lines if line.startswith("| workload"))
    assert head.endswith("| Quix Streams, exactly once | Flechtwerk, exactly once | others and raw limits |")
    row = next(line for line in lines if line.startswith("| W3"))
    assert "| not run | failed | 45 (2.00 ×) | streams-alo not run; quix-alo not run |" in row


def test_the_tables_say_what_failed_also_when_it_was_repeated() -> None:
    """All bars hold, and still the failure is told; so is an arm that lacks a round of a workload without bars."""
    content = book(*thrice(*W5), run("W8", "keylanes", 0, per_second=1.0))
    content["failures"].append("W5, round 1, parallel-consumer-core: records were lost")
    text = benchmark_tables(content)
    assert "or has no figures: W5, round 1, parallel-consumer-core: records were lost." in text
    assert "- Not counted: W8: parallel-consumer-core did not run in some round." in text


def test_the_tables_say_by_how_much_latencies_differ() -> None:
    """Each peer's with the share of it that ours is, by the rounds' own ratios; bold where ours is the larger one."""
    pairs = [("keylanes", 4.0, 12.0), ("parallel-consumer-core", 8.0, 10.0)]
    runs = [
        run("W7-handled", arm, n, **{"p50": p50, "p99": p99, "p99.9": p99}) for n in range(3) for arm, p50, p99 in pairs
    ]
    text = benchmark_tables(book(*runs))
    assert "| keylanes | 4.0 | 12.0 | 12.0 |" in text
    assert "| parallel-consumer-core | 8.0 (0.50 ×) | 10.0 (**1.20 ×**) | 10.0 (**1.20 ×**) |" in text


def test_the_tables_say_what_counts_until_the_outputs_are_written() -> None:
    """Where outputs are, the rate until the last one is in the log, beside the one until the last handler's end."""
    rates = (("keylanes", 90.0, 80.0), ("streams-eos", 85.0, 84.0))
    content = book(*(run("W4", arm, per_second=rate, written_per_second=written) for arm, rate, written in rates))
    assert "W4 until the last output is in the log: keylanes 80; streams-eos 84 (**0.95 ×**)." in benchmark_tables(
        content
    )


def test_the_tables_compare_two_processes_with_two_threads() -> None:
    """Ours in two are what the others are compared with; one process and one thread stand behind them."""
    rates = {"keylanes": 200.0, "keylanes-2": 300.0, "streams-eos": 100.0, "streams-eos-2": 150.0}
    content = book(*(run("W4-4p", arm, per_second=rate) for arm, rate in rates.items()))
    text = benchmark_tables(content)
    assert "2 processes | **300** (300 to 300) |  | 150 (2.00 ×) |  |  | keylanes 200 (1.50 ×); streams-eos 100" in text
    assert "2 processes | 300 | Kafka Streams, 2 threads, 150 (2.00 ×) |  |  |" in summary_table(content)


def test_the_summary_compares_with_the_fastest_peer_of_each_guarantee() -> None:
    """Of each engine the faster one, bold where we lose, nothing where no peer ran; raw limits are no peers."""
    found = (
        ("W4", {"keylanes": 90.0, "streams-eos": 60.0, "quix-eos": 30.0, "streams-alo": 100.0, "quix-alo": 80.0}),
        ("W1-2ms", {"keylanes": 40.0, "parallel-consumer-core": 80.0, "parallel-consumer-reactor": 20.0}),
        ("W8", {"keylanes": 40.0, "aiokafka-serial": 50.0}),
        ("W2-1p", {"keylanes": 7.0, "getmany": 9.0}),
    )
    text = summary_table(book(*(run(name, arm, per_second=rate) for name, arms in found for arm, rate in arms.items())))
    assert text.splitlines()[2:6] == [
        "| async handler 2 ms | 40 |  | Parallel Consumer 80 (**0.50 ×**) |  |",
        "| no-op drain, 1 partition | 7 |  |  |  |",
        "| consume, transform, produce | 90 | Kafka Streams 60 (1.50 ×) | Kafka Streams 100 (**0.90 ×**) |  |",
        "| sync handler, 100 µs of processor time, 4 partitions | 40 |  |  | 50 (**0.80 ×**) |",
    ]
    assert text.endswith("medians of 1 interleaved rounds, measured on 2020-02-29 at commit 0123456789.")
    assert "rounds (quick sizes), measured" in summary_table(book(run("W4", "keylanes", per_second=1.0), size="quick"))


def test_the_tables_say_how_many_rounds_there_were() -> None:
    """Of most workloads, and of which ones there were more."""
    longer = [{**one, "workload": name, "round": number} for name in ("W3", "W4") for number in range(5) for one in W5]
    assert "Medians of 3 interleaved rounds, 5 of W3, W4 on" in benchmark_tables(book(*thrice(*W5), *longer))
    assert "Medians of 1 interleaved rounds on" in benchmark_tables(book(*W5))


def test_the_tables_say_what_ran_and_when() -> None:
    """The day, the commit, and each program with its version or versions."""
    said = "Measured on 2020-02-29 at commit 0123456789 with kafka 4, keylanes 1, python 3.11 and 3.13, pyrallel 2."
    assert said in benchmark_tables(book(*W5))


def test_every_table_has_cells_for_its_columns() -> None:
    """Markdown tables are whole for every kind of workload."""
    figures = {"per_second": 10.0, "records": 5, "again": 3, "again_quiet": 1, "p50": 1.0, "p99": 2.0, "p99.9": 3.0}
    content = book(*(run(w.name, arm, **figures) for w in WORKLOADS for arm in w.arms))
    lines = [line for line in benchmark_tables(content).splitlines() if line.startswith("|")]
    heads = [place for place, line in enumerate(lines) if line.startswith("|---")]
    assert len(heads) == 4
    for begin, end in zip([head - 1 for head in heads], [head - 1 for head in heads[1:]] + [len(lines)], strict=True):
        assert len({line.count("|") for line in lines[begin:end]}) == 1
