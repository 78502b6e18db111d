"""The timeline: what it has of a run, in what order, and what is left of it after a crash."""

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.flow import StageId, StageTimes
from marlflow.observe.callback import EvaluationEvent, FaultEvent, RunEnd
from marlflow.observe.report import ResumePoint, RunInfo
from marlflow.observe.timeline import ClockOffset, Timeline, WorkerSpan
from marlflow.observe.trace_events import Arrows, PlacedSlice, Slice, TraceEvents, TraceFile, merged_slices, read_trace
from tests.observe.records import INFO, record

COLLECT, PUBLISH = StageId("rollouts", "Collect"), StageId("prey", "Publish")
END = RunEnd("stop.env_steps=3000", record(3))


class Clock:
    """The driver's clock, which the tests turn."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def made(path: Path, clock: Clock, info: RunInfo = INFO) -> Timeline:
    timeline = Timeline(path, clock)
    timeline.follow([str(COLLECT)], [str(PUBLISH)], lambda: {"prey/queue": 2})
    timeline.began(info)
    return timeline


def call(timeline: Timeline, clock: Clock, stage: StageId, seconds: float, offset_s: float = 0.0) -> None:
    timeline.before(stage, 1)
    began_s = clock.now
    clock.now += seconds
    timeline.after(stage, 1, StageTimes(began_s + offset_s, clock.now + offset_s, 10))


def round_of(timeline: Timeline, clock: Clock, workers: int = 2) -> None:
    began_s = clock.now
    call(timeline, clock, COLLECT, 2.0)
    spans = [WorkerSpan(worker, began_s + 0.1, 1.0, 0.5, 0.25, 80, 160) for worker in range(workers)]
    timeline.collected(spans, in_rounds=True)
    call(timeline, clock, PUBLISH, 0.5)


def check_schema(events: Sequence[Mapping[str, Any]]) -> None:
    """Every event is well formed; slices of a track nest or follow each other; every arrow has two ends, in slices."""
    slices = defaultdict(list)
    arrows: dict[int, list[str]] = defaultdict(list)
    for event in events:
        assert {"ph", "name", "pid"} <= event.keys()
        assert event["ph"] in {"M", "X", "C", "i", "s", "f"}
        assert event["ph"] == "M" or event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
        elif event["ph"] in {"s", "f"}:
            arrows[event["id"]].append(event["ph"])
    for event in events:
        if event["ph"] in {"s", "f"}:
            of_track = slices[event["pid"], event["tid"]]
            assert any(began <= event["ts"] < ended for began, ended in of_track), event
    assert all(ends == ["s", "f"] for ends in arrows.values())
    for of_track in slices.values():
        open_ends: list[float] = []
        for began, ended in sorted(of_track, key=lambda one: (one[0], -one[1])):
            while open_ends and open_ends[-1] <= began + 1e-4:
                open_ends.pop()
            assert not open_ends or ended <= open_ends[-1] + 1e-3, "two slices of a track overlap in part"
            open_ends.append(ended)


def seconds_by_name(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for event in events:
        if event["ph"] == "X":
            total[event["name"]] += event["dur"] / 1e6
    return dict(total)


def test_a_whole_run_is_a_json_array_of_well_formed_events(tmp_path: Path) -> None:
    path, clock = tmp_path / "trace.json.gz", Clock()
    timeline = made(path, clock)
    for number in (1, 2, 3):
        round_of(timeline, clock)
        timeline.evaluated(EvaluationEvent(1000 * number, {}, clock.now, clock.now + 1.0))
        timeline.saved_checkpoint((clock.now, clock.now + 0.25), 1000 * number)
        timeline.fault(FaultEvent("env_errors", "environment 3", "it broke"))
        clock.now += 1.0
        timeline.reported(record(number))
    timeline.ended(END)
    events = json.loads(gzip.decompress(path.read_bytes()))
    assert events == read_trace(path)
    check_schema(events)
    found = seconds_by_name(events)
    expected = {"Collect": 6.0, "Publish": 1.5, "collect": 10.5, "environment": 6.0, "policy": 3.0, "bookkeeping": 1.5}
    assert found == pytest.approx({**expected, "evaluation": 3.0, "checkpoint": 0.75}, abs=1e-5)
    processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert processes == {"run", "driver", "plan rollouts", "plan prey", "rollout worker 0", "rollout worker 1"}
    assert sum(event["ph"] == "s" for event in events) == 3
    marks = [event for event in events if event["ph"] == "i"]
    assert [mark["name"] for mark in marks].count("env_errors") == 3
    assert {event["name"] for event in events if event["ph"] == "C"} >= {
        "items at prey/queue",
        "staleness of adversary (versions)",
        "env steps per second",
    }


def test_a_killed_run_leaves_all_that_was_reported_and_a_resume_goes_on_there(tmp_path: Path) -> None:
    path, clock = tmp_path / "trace.json.gz", Clock()
    killed = made(path, clock)
    round_of(killed, clock)
    killed.reported(record(1))
    assert killed._file is not None
    killed._file._file.close()
    whole = path.read_bytes()
    check_schema(read_trace(path))
    before = read_trace(path)
    path.write_bytes(whole + whole[:57])  # a piece of which the crash left a part
    assert read_trace(path) == before
    clock.now += 3600.0
    resumed = made(path, clock, replace(INFO, resumed=ResumePoint(1000, 1)))
    round_of(resumed, clock)
    resumed.reported(record(2))
    resumed.ended(END)
    events = json.loads(gzip.decompress(path.read_bytes()))
    assert events[: len(before)] == before
    check_schema(events)
    starts = [event["ts"] / 1e6 for event in events if event["ph"] == "X" and event["name"] == "Collect"]
    assert starts == pytest.approx([0.0, 3602.5], abs=1e-4)
    processes = [(event["pid"], event["args"]["name"]) for event in events if event["name"] == "process_name"]
    assert len(processes) == len(set(processes)) == len(dict(processes))


def test_a_resume_after_the_end_of_a_run_opens_the_array_again(tmp_path: Path) -> None:
    path, clock = tmp_path / "trace.json.gz", Clock()
    for resumed in (None, ResumePoint(1000, 1), ResumePoint(2000, 2)):
        timeline = made(path, clock, replace(INFO, resumed=resumed))
        round_of(timeline, clock)
        timeline.ended(END)
    check_schema(json.loads(gzip.decompress(path.read_bytes())))
    assert seconds_by_name(read_trace(path))["Collect"] == pytest.approx(6.0, abs=1e-5)


def test_a_new_run_replaces_what_another_left(tmp_path: Path) -> None:
    path, clock = tmp_path / "trace.json.gz", Clock()
    for _ in range(2):
        timeline = made(path, clock)
        round_of(timeline, clock)
        timeline.ended(END)
    assert seconds_by_name(read_trace(path))["Collect"] == pytest.approx(2.0, abs=1e-5)


@pytest.mark.parametrize("offset_s", [-7200.0, -3.0, 0.0, 3.0, 7200.0])
def test_a_clock_that_is_wrong_is_corrected_within_the_length_of_the_calls(tmp_path: Path, offset_s: float) -> None:
    path, clock = tmp_path / "trace.json.gz", Clock()
    timeline = made(path, clock)
    for _ in range(5):
        call(timeline, clock, PUBLISH, 0.5, offset_s)
        clock.now += 1.0
    timeline.ended(END)
    starts = [event["ts"] / 1e6 for event in read_trace(path) if event["ph"] == "X"]
    assert starts == pytest.approx([0.0, 1.5, 3.0, 4.5, 6.0], abs=1e-3)


@given(
    offset=st.floats(-1e5, 1e5),
    calls=st.lists(st.tuples(st.floats(0.001, 5.0), st.floats(0.0, 2.0), st.floats(0.0, 2.0)), min_size=1, max_size=8),
)
def test_corrected_work_lies_between_call_and_answer(offset: float, calls: list[tuple[float, float, float]]) -> None:
    clock, now = ClockOffset(), 0.0
    for busy_s, before_s, after_s in calls:
        sent, began = now, now + before_s
        received = began + busy_s + after_s
        work = clock.corrected((began + offset, began + busy_s + offset), sent, received)
        assert sent - 1e-6 <= work[0] <= work[1] <= received + 1e-6
        assert work[1] - work[0] == pytest.approx(busy_s, abs=1e-6)
        now = received + 1.0


def test_a_clock_that_is_set_during_the_run_is_corrected_anew() -> None:
    clock = ClockOffset()
    assert clock.corrected((1.0, 2.0), 0.9, 2.1) == (1.0, 2.0)
    assert clock.corrected((103.0, 104.0), 2.9, 4.1) == pytest.approx((3.0, 4.0))


spans = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10)), max_size=30)


@given(spans, spans)
def test_slices_of_a_track_never_overlap_also_over_pieces(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    events = TraceEvents(0.0)
    for piece in (first, second):
        slices = [Slice(float(began), float(began + length), 1, {}, {}) for began, length in piece]
        placed = events.add_slices("plan prey", "Learn", slices)
        assert sorted((one.began_ns, one.ended_ns) for one in placed) == sorted(
            (began * 10**9, (began + length) * 10**9) for began, length in piece
        )
    by_track = defaultdict(list)
    for event in events.take():
        if event["ph"] == "X":
            by_track[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for of_track in by_track.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(of_track)))


@given(spans, st.integers(1, 12))
def test_merged_slices_have_the_same_sums_and_begin_where_their_first_began(
    drawn: list[tuple[int, int]], most: int
) -> None:
    slices = [
        Slice(
            float(began), float(began + length), 1, {"rows": length}, {"environment": length / 2, "policy": length / 2}
        )
        for began, length in drawn
    ]
    merged = merged_slices(slices, most)
    assert len(merged) <= most
    for total in (
        lambda one: one.ended_s - one.began_s,
        lambda one: one.calls,
        lambda one: one.counts["rows"],
        lambda one: sum(one.parts.values()),
    ):
        assert sum(map(total, merged)) == pytest.approx(sum(map(total, slices)))
    assert {one.began_s for one in merged} <= {one.began_s for one in slices}


def test_a_long_run_has_a_small_file(tmp_path: Path) -> None:
    path, clock = tmp_path / "trace.json.gz", Clock()
    timeline = made(path, clock)
    for _ in range(3):
        for _ in range(30_000):
            call(timeline, clock, PUBLISH, 0.001)
        timeline.reported(record(1))
    timeline.ended(END)
    events = read_trace(path)
    assert seconds_by_name(events)["Publish"] == pytest.approx(
        90.0, rel=1e-3
    )  # times since the epoch are exact to 0.2 microseconds
    assert sum(event.get("args", {}).get("calls", 1) for event in events if event["ph"] == "X") == 90_000
    assert sum(event["ph"] == "X" for event in events) <= 60_000
    assert path.stat().st_size < 2_000_000


def placed(began: int, ended: int, thread: int = 1) -> PlacedSlice:
    return PlacedSlice(1, thread, began, ended)


def test_each_collect_is_joined_to_the_first_publication_after_it() -> None:
    arrows = Arrows.none()
    first, second, third = placed(0, 10), placed(20, 30), placed(40, 50)
    calls = [placed(5, 6, 2), placed(10, 12, 2), placed(13, 14, 2), placed(55, 56, 2)]
    joined = list(arrows.between([first, second, third], {"prey/Publish": calls}))
    assert joined == [(first, calls[1]), (third, calls[3])]


def test_a_publication_in_the_next_piece_is_joined_to_the_last_collect() -> None:
    arrows = Arrows.none()
    assert list(arrows.between([placed(0, 10)], {})) == []
    late = placed(11, 12, 2)
    assert list(arrows.between([], {"prey/Publish": [late]})) == [(placed(0, 10), late)]
    assert list(arrows.between([], {"prey/Publish": [placed(13, 14, 2)]})) == []


def test_a_disk_that_refuses_a_piece_gets_it_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json.gz"
    file = TraceFile(path)
    file.append([{"ph": "i", "name": "first"}])
    real = file._file._file

    class Full:
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    file._file._file = Full()  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space"):
        file.append([{"ph": "i", "name": "second"}])
    file._file._file = real
    file.close({"ph": "i", "name": "third"})
    assert [event["name"] for event in json.loads(gzip.decompress(path.read_bytes()))] == ["first", "second", "third"]


def test_a_counter_that_a_resume_finds_at_zero_says_so() -> None:
    def counted(events: TraceEvents) -> list[float]:
        return [event["args"]["value"] for event in events.take() if event["ph"] == "C"]

    before = TraceEvents(0.0)
    before.count("items", 1.0, 3)
    written = before.take()
    after = TraceEvents(0.0)
    after.continue_from(written)
    after.count("items", 2.0, 3)
    after.count("items", 3.0, 0)
    assert counted(after) == [0]
