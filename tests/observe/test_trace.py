import json
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.observe.trace import Overlap, Span, Trace, busy_s, chrome_events, merged, overlap_s, tracks

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


@given(spans)
def test_tracks_are_free_of_overlap_and_as_few_as_can_be(a: list[Span]) -> None:
    a = [(began, ended + 1) for began, ended in a]
    placed = tracks(a)
    for (one, its_track), (other, other_track) in combinations(zip(a, placed, strict=True), 2):
        assert its_track != other_track or one[1] <= other[0] or other[1] <= one[0]
    at_once = max((sum(began <= second < ended for began, ended in a) for second in range(LAST + 2)), default=0)
    assert len(set(placed)) == at_once


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


def test_the_written_timeline_has_a_process_per_plan_and_a_track_per_stage(tmp_path: Path) -> None:
    trace = Trace()
    trace.add("a", "Learn", 10.0, 12.0)
    trace.add("b", "Learn", 10.5, 11.0)
    trace.add("a", "Learn", 11.0, 13.0)
    trace.add("a", "Publish", 13.0, 13.25)
    trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    work = [event for event in events if event["ph"] == "X"]
    assert [(event["cat"], event["name"], event["ts"], event["dur"]) for event in work] == [
        ("a", "Learn", 0.0, 2e6),
        ("a", "Learn", 1e6, 2e6),
        ("b", "Learn", 0.5e6, 0.5e6),
        ("a", "Publish", 3e6, 0.25e6),
    ]
    assert len({(event["pid"], event["tid"]) for event in work}) == 4
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"a", "b"}
    threads = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert sorted(threads) == ["Learn", "Learn", "Learn", "Publish"]


def test_nothing_happened_is_an_empty_timeline() -> None:
    assert chrome_events([]) == []
