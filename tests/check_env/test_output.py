# ruff: noqa: T201
from __future__ import annotations

import io
import pdb
import sys

import pytest

from marlflow.observe.first_lines import FirstLines, first_lines


def test_the_first_lines_of_each_stream_are_shown_however_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    with first_lines(2):
        print("turn", 1)
        sys.stdout.write("turn 2\nturn 3\ntur")
        print("n 4")
        print("careful", file=sys.stderr)
    print("done")
    shown = capsys.readouterr()
    assert shown.out == "done\n"
    assert shown.err == "turn 1\nturn 2\ncareful\n2 more lines of output left out; --all-output shows all\n"


def test_what_is_no_end_of_a_line_ends_none_and_several_lines_at_once_are_counted() -> None:
    into = io.StringIO()
    stream = FirstLines(into, 2)
    stream.write("a\x85b\x0cc\nd\ne\n")
    assert (into.getvalue(), stream.left_out) == ("a\x85b\x0cc\nd\n", 1)
    stream.writelines(["f\n", "g\n"])
    assert (into.getvalue(), stream.left_out) == ("a\x85b\x0cc\nd\n", 3)


def test_nothing_is_said_where_nothing_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        print("turn 1")
        raise ValueError("no fuel")

    with pytest.raises(ValueError, match="no fuel"), first_lines(2):
        fails()
    assert capsys.readouterr().err == "turn 1\n"


def test_a_debugger_is_seen_whatever_was_printed_before() -> None:
    into = io.StringIO()
    stream = FirstLines(into, 0)
    print("left out", file=stream)  # type: ignore[arg-type]
    debugger = pdb.Pdb(stdin=io.StringIO("p 6 * 7\ncontinue\n"), stdout=stream, readrc=False)  # type: ignore[arg-type]
    debugger.use_rawinput = False
    before = sys.gettrace()
    debugger.set_trace()
    sys.settrace(before)
    assert "42" in into.getvalue()
    assert stream.left_out == 1
