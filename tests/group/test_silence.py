"""Who is silent, against a twin that goes through the whole list of records each time."""

from hypothesis import given
from hypothesis import strategies as st

from keylanes.group.silence import GAP_INTERVALS, Silence

from ..tiers.marks import tier

pytestmark = tier("check")

INTERVAL_MS = 1_000
GAP_MS = GAP_INTERVALS * INTERVAL_MS
VOICES = ("a", "b", 7)

Record = tuple[int, tuple[str | int, ...]]
"""The time that passed for the broker since the record before, which may be negative, and who was heard."""
STEPS = st.one_of(
    st.integers(-GAP_MS, 2 * GAP_MS), st.sampled_from((0, INTERVAL_MS, GAP_MS - 1, GAP_MS, GAP_MS + 1, 60_000))
)
RECORDS = st.lists(st.tuples(STEPS, st.lists(st.sampled_from(VOICES), max_size=2).map(tuple)), max_size=30)


def folded(records: list[Record], begun_ms: int = 0) -> Silence:
    """The production's fold."""
    silence, at_ms = Silence(GAP_MS), begun_ms
    for step_ms, voices in records:
        at_ms += step_ms
        silence.hear(at_ms, *voices)
    return silence


def counted(records: list[Record]) -> list[int]:
    """The steps between records that count as time, by the record that ends them; -1: an outage."""
    steps = [0, *(step_ms for step_ms, _ in records[1:])][: len(records)]
    return [-1 if step_ms > GAP_MS else max(0, step_ms) for step_ms in steps]


def silent_by_list(records: list[Record], voice: str | int) -> int:
    """From the end back to the last record of somebody or the last outage, whichever is nearer."""
    total = 0
    for step_ms, (_, voices) in zip(reversed(counted(records)), reversed(records), strict=True):
        if voice in voices or step_ms < 0:
            return total
        total += step_ms
    return total


@given(RECORDS, st.integers(0, 10**12))
def test_silence_is_what_passed_since_the_last_record_of_somebody_or_the_last_outage(
    records: list[Record], begun_ms: int
) -> None:
    """For everybody, after every record, wherever the broker's clock stands; behind an outage nobody is silent."""
    for count in range(len(records) + 1):
        silence = folded(records[:count], begun_ms)
        assert silence.outages == sum(step_ms < 0 for step_ms in counted(records[:count]))
        for voice in VOICES:
            assert silence.silent_ms(voice) == silent_by_list(records[:count], voice)


@given(RECORDS)
def test_who_was_heard_since_the_last_outage_is_known(records: list[Record]) -> None:
    """Not those who were heard only before it."""
    since = max((i for i, step_ms in enumerate(counted(records)) if step_ms < 0), default=0)
    silence = folded(records)
    for voice in VOICES:
        is_heard = any(voice in voices for _, voices in records[since:])
        assert silence.was_heard(voice) is is_heard
        assert (silence.heard_ms(voice) >= 0) is is_heard


@given(RECORDS, st.sampled_from(VOICES))
def test_who_is_waited_for_and_was_not_heard_yet_has_been_silent_since_then(
    records: list[Record], voice: str | int
) -> None:
    """To be waited for again changes nothing; to be heard does."""
    silence = folded(records)
    was_heard, before_ms = silence.was_heard(voice), silence.silent_ms(voice)
    silence.wait_for(voice)
    assert silence.silent_ms(voice) == (before_ms if was_heard else 0)
    assert silence.was_heard(voice) is was_heard
    at_ms = 10**9
    silence.hear(at_ms)
    silence.wait_for(voice)
    begun_ms = silence.silent_ms(voice)
    silence.hear(at_ms + 500)
    silence.wait_for(voice)
    assert silence.silent_ms(voice) == begun_ms + 500
    silence.hear(at_ms + 500, voice)
    assert silence.silent_ms(voice) == 0
