from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.observe.timeline import Overlap, Span, Trace, busy_s, merged, overlap_s

LAST = 30
spans = st.lists(st.tuples(st.integers(0, LAST), st.integers(0, LAST)).map(lambda pair: (min(pair), max(pair))))


def seconds_covered(intervals: list[Span]) -> set[int]:
    """The whole seconds in which some interval is busy, by looking at each second and each interval."""
    return {second for second in range(LAST) if any(began <= second < ended for began, ended in intervals)}


@given(spans, spans)
def test_overlap_and_busy_agree_with_counting_seconds(a: list[Span], b: list[Span]) -> None:
    assert busy_s(a) == len(seconds_covered(a))
    assert overlap_s(a, b) == overlap_s(b, a) == len(seconds_covered(a) & seconds_covered(b))
    assert overlap_s(a, a) == busy_s(a)


@given(spans)
def test_merged_spans_are_sorted_and_apart_and_cover_the_same(a: list[Span]) -> None:
    result = merged(a)
    assert all(first[1] < second[0] for first, second in pairwise(result))
    assert seconds_covered(result) == seconds_covered(a)


def test_overlap_of_two_stages() -> None:
    trace = Trace()
    trace.add("adversary", "Learn", 0.0, 2.0)
    trace.add("agent", "Learn", 1.0, 4.0)
    trace.add("adversary", "Learn", 3.0, 5.0)
    trace.add("adversary", "Publish", 0.0, 9.0)
    assert trace.overlap_s(("adversary", "Learn"), ("agent", "Learn")) == Overlap(2.0, 4.0, 3.0)
    assert trace.overlap_s(("adversary", "Learn"), ("agent", "Nothing")) == Overlap(0.0, 4.0, 0.0)


def test_a_trace_keeps_the_last_and_counts_the_rest() -> None:
    trace = Trace(capacity=2)
    for number in range(5):
        trace.add("p", "s", number, number + 0.5)
    assert trace.spans("p", "s") == [(3, 3.5), (4, 4.5)]
    assert trace.dropped == 3


def test_an_interval_cannot_end_before_it_begins() -> None:
    with pytest.raises(ValueError, match=r"stage 'Learn' of plan 'a': ended at 1\.0 s, before it began at 2\.0 s"):
        Trace().add("a", "Learn", 2.0, 1.0)
