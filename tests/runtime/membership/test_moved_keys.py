"""That a topic got more partitions is told from where its keys lie, and from nothing else."""

import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.brokers.partitioner import check_partitioner, partition_by_crc32, partition_of_key
from keylanes.runtime.membership.moved_keys import KEYS_OF_ONE_PARTITION, Moved, find_moved_keys

from ...tiers.marks import tier

pytestmark = tier("check")

KEYS = [b"customer %d" % i for i in range(400)]
Seen = dict[int, set[bytes]]


def placed(keys: list[bytes], partitions: int, seen: Seen | None = None) -> Seen:
    """Keys where so many partitions put them, beside others."""
    found = {place: {*own} for place, own in (seen or {}).items()}
    for key in keys:
        found.setdefault(partition_of_key(key, partitions), set()).add(key)
    return found


def by_last_byte(key: bytes, partitions: int) -> int:
    """As simple as can be."""
    return key[-1] % partitions


def twin(seen: Seen, partitions: int) -> set[int]:
    """All numbers of partitions that explain it, by the words of the rule."""
    astray = [(p, k) for p, keys in seen.items() for k in keys if k and by_last_byte(k, partitions) != p]
    counts = Counter(p for p, _ in astray)
    if not astray or (len(counts) < 2 and max(counts.values()) <= 64):
        return set()
    if Fraction(1, partitions) ** len(astray) > Fraction(1, 10**6) / (partitions - 1):
        return set()
    return {n for n in range(1, partitions) if {by_last_byte(k, n) == p for p, k in astray} == {True}}


@st.composite
def samples(draw: st.DrawFn) -> tuple[Seen, int]:
    """Keys of two bytes, most of them where one of a few numbers of partitions puts them."""
    partitions = draw(st.integers(2, 9))
    numbers = draw(st.lists(st.integers(1, 9), min_size=1, max_size=2))
    seen: Seen = {}
    for first, last in draw(st.sets(st.tuples(st.integers(0, 3), st.integers(0, 255)), max_size=150)):
        key = bytes((first, last))
        number = numbers[(first + last) % len(numbers)]
        seen.setdefault(by_last_byte(key, number), set()).add(key)
    for place in draw(st.lists(st.integers(0, 8), max_size=2)):
        seen.setdefault(place, set()).add(draw(st.binary(max_size=2)))
    return seen, partitions


@given(samples())
def test_it_is_what_the_words_of_the_rule_say(sample: tuple[Seen, int]) -> None:
    """The twin tries every number; the greatest is told."""
    seen, partitions = sample
    expected, found = twin(seen, partitions), find_moved_keys(seen, partitions, by_last_byte)
    assert (found and found.before) == max(expected, default=None)


@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 3), (2, 4), (3, 8), (12, 13), (6, 64)])
def test_growth_is_found(before: int, now: int) -> None:
    """Whether or not new records lie there, too; the counts are those of the keys."""
    old = placed(KEYS, before)
    astray = sum(partition_of_key(key, before) != partition_of_key(key, now) for key in KEYS)
    for seen, count in ((old, len(KEYS)), (placed(KEYS, now, old), len(KEYS) + astray)):
        assert find_moved_keys(seen, now, partition_of_key) == Moved(before, astray, count)


def test_what_never_grew_is_no_finding() -> None:
    """Written by the own partitioner, by another one, by hand, or so by a user's function."""
    for partitions in (1, 2, 3, 4, 12, 64):
        assert find_moved_keys(placed(KEYS, partitions), partitions, partition_of_key) is None
        by_another: Seen = {}
        for key in KEYS:
            by_another.setdefault(partition_by_crc32(key, partitions), set()).add(key)
        assert find_moved_keys(by_another, partitions, partition_of_key) is None
        for seed in range(100):
            rng, by_hand = random.Random(seed), Seen()
            for key in rng.sample(KEYS, rng.choice((1, 2, 5, 12, 40))):
                by_hand.setdefault(rng.randrange(partitions), set()).add(key)
            assert find_moved_keys(by_hand, partitions, partition_of_key) is None


def test_keys_of_one_partition_have_to_be_more() -> None:
    """Somebody may have put them there."""
    astray = [key for key in KEYS if partition_of_key(key, 2) == 1]
    few, more = set(astray[:KEYS_OF_ONE_PARTITION]), set(astray[: KEYS_OF_ONE_PARTITION + 1])
    assert find_moved_keys({0: few}, 2, partition_of_key) is None
    assert find_moved_keys({0: more}, 2, partition_of_key) == Moved(1, len(more), len(more))


def test_what_is_not_found() -> None:
    """As docs/partitioners.md says: few keys, and the records of two growths."""
    assert find_moved_keys(placed(KEYS[:8], 2), 4, partition_of_key) is None
    assert find_moved_keys(placed(KEYS[200:], 4, placed(KEYS[:200], 2)), 8, partition_of_key) is None


def test_a_function_of_the_user_may_fail_for_a_key_or_a_number() -> None:
    """Such a key says nothing; such a number explains nothing."""

    def by_user(key: bytes, partitions: int) -> int:
        if key == KEYS[0] or partitions == 2:
            raise KeyError(key)
        return partition_of_key(key, partitions)

    function = check_partitioner(by_user, "orders")
    assert find_moved_keys(placed(KEYS, 2), 4, function) is None
    found = find_moved_keys(placed(KEYS, 3), 4, function)
    assert found is not None
    assert found.before == 3
