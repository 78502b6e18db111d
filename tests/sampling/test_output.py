# ruff: noqa: T201
from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from marlflow.sampling.messages import (
    BURST,
    EVERY_S,
    LeftOut,
    LineLimit,
    Logged,
    News,
    OutputCapture,
    Printed,
    StepRunning,
    from_bytes,
    to_bytes,
)
from marlflow.sampling.watchdog import Watchdog


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class NamedEnv:
    def where(self) -> str:
        return "environment taxi_v3, env 4, episode seed 5, env step 6"

    def name(self) -> str:
        return "taxi_v3, env 4"


class Captured:
    def __init__(self) -> None:
        self.news: list[News] = []
        self.clock, self.watchdog, self.file = Clock(), Watchdog(None), io.StringIO()
        sys.stdout, sys.stderr = self.file, io.StringIO()
        self.capture = OutputCapture(1, self.watchdog, self.news.append, self.clock)
        self.capture.install(logging.INFO)

    @property
    def lines(self) -> list[str]:
        return [news.text for news in self.news if isinstance(news, Printed)]


@contextmanager
def capturing() -> Iterator[Captured]:
    """Not a fixture: pytest sets its own streams when a test begins."""
    root = logging.getLogger()
    before = sys.stdout, sys.stderr, root.handlers[:], root.level
    try:
        yield Captured()
    finally:
        sys.stdout, sys.stderr, root.handlers[:], root.level = before


def test_what_an_environment_prints_logs_and_warns_is_passed_on_under_its_name() -> None:
    with capturing() as captured:
        print("loading")
        captured.watchdog.playing, captured.watchdog.inside = NamedEnv(), True
        print("turn", 3, "of", 9)
        print("lost", file=sys.stderr)
        logging.getLogger("taxi").info("fare %d", 7)
        logging.getLogger("taxi").debug("nobody asked for this level")
        logging.getLogger("ray.core").warning("Ray's own")
        sys.stderr.write(warnings.formatwarning("old rules", UserWarning, "taxi.py", 7, "warn()"))
        first, *others, warned, source = captured.news
        assert first == Printed(1, "", "loading")
        assert others == [
            Printed(1, "taxi_v3, env 4", "turn 3 of 9"),
            Printed(1, "taxi_v3, env 4", "lost"),
            Logged(1, "taxi_v3, env 4", "taxi", logging.INFO, "fare 7"),
        ]
        assert warned == Printed(1, "taxi_v3, env 4", "taxi.py:7: UserWarning: old rules")
        assert source == Printed(1, "taxi_v3, env 4", "  warn()")


def test_a_log_record_comes_with_its_traceback() -> None:
    with capturing() as captured:
        try:
            raise ValueError("no fuel")
        except ValueError:
            logging.getLogger("taxi").exception("it stopped")
        (record,) = captured.news
        assert isinstance(record, Logged)
        assert record.text.startswith("it stopped\nTraceback")
        assert record.text.endswith("ValueError: no fuel")


def test_an_environment_that_prints_at_every_step_floods_nothing_and_all_of_it_is_in_the_file() -> None:
    with capturing() as captured:
        for step in range(1_000):
            print(f"step {step}")
        assert captured.lines == [f"step {step}" for step in range(BURST)]
        captured.clock.now_s += EVERY_S
        print("later")
        left_out, later = captured.news[BURST:]
        assert isinstance(left_out, LeftOut)
        assert (left_out.worker, left_out.lines) == (1, 1_000 - BURST)
        assert later == Printed(1, "", "later")
        sys.stdout.flush()
        assert captured.file.getvalue() == "".join(f"step {step}\n" for step in range(1_000)) + "later\n"


def test_prints_at_every_step_do_not_displace_a_warning() -> None:
    with capturing() as captured:
        for step in range(1_000):
            print(f"step {step}")
        print("careful", file=sys.stderr)
        assert captured.lines[-1] == "careful"


def test_what_was_left_out_is_told_at_the_end_too() -> None:
    with capturing() as captured:
        for step in range(BURST + 3):
            print(f"step {step}")
        captured.capture.tell_left_out()
        captured.capture.tell_left_out()
        assert [news.lines for news in captured.news if isinstance(news, LeftOut)] == [3]


def test_lines_are_whole_however_they_are_written() -> None:
    with capturing() as captured:
        sys.stdout.write("one ")
        sys.stdout.flush()
        sys.stdout.write("line\nand ano")
        print("ther", end="")
        print()
        sys.stdout.writelines(["10%\r", "50%\r", "100%\n"])
        assert captured.lines == ["one line", "and another", "100%"]
        sys.stdout.flush()
        assert captured.file.getvalue() == "one line\nand another\n10%\r50%\r100%\n"


def test_a_line_without_end_takes_no_more_and_no_more_memory() -> None:
    with capturing() as captured:
        for _ in range(10_000):
            sys.stdout.write("." * 100)
        sys.stdout.write("\n")
        assert [len(line) for line in captured.lines] == [2_000]
        sys.stdout.flush()
        assert len(captured.file.getvalue()) == 1_000_001


def test_a_limit_lets_lines_pass_as_time_does() -> None:
    clock = Clock()
    limit = LineLimit(2, 10.0, clock)
    assert [limit.allows() for _ in range(4)] == [True, True, False, False]
    assert limit.is_closed
    clock.now_s = 10.0
    assert not limit.is_closed
    assert [limit.allows() for _ in range(2)] == [True, False]
    assert limit.take_left_out() == 3
    assert limit.take_left_out() == 0
    clock.now_s = 1_000.0
    assert [limit.allows() for _ in range(3)] == [True, True, False]


def test_news_come_out_of_bytes_as_they_went_in() -> None:
    news: list[News] = [
        Printed(0, "", "ü"),
        Logged(1, "taxi", "a.b", 30, "x\ny"),
        LeftOut(2, 3, ""),
        StepRunning(3, "somewhere", 4.5, is_over=True),
    ]
    assert from_bytes(to_bytes(news)) == news
