from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from marlflow.observe.timeline import Span, busy_s, merged, overlap_s

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
