"""Progress of commands: one line that is updated on a terminal, sparse lines elsewhere, nothing on standard output."""

from __future__ import annotations

import io
import sys

import pytest

from marlflow.base.progress import listening, progress, tracked
from marlflow.cli.progress import shown_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_where_nobody_listens_nothing_happens(capsys: pytest.CaptureFixture[str]) -> None:
    progress("playing episodes", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_items_are_reported_before_each_and_at_the_end() -> None:
    heard: list[tuple[str, int, int | None]] = []
    with listening(lambda *report: heard.append(report)):
        assert list(tracked("reading", "ab")) == ["a", "b"]
        assert list(tracked("reading", "")) == []
    progress("unheard")
    assert heard == [("reading", 0, 2), ("reading", 1, 2), ("reading", 2, 2), ("reading", 0, 0)]


def test_elsewhere_than_on_a_terminal_there_is_a_line_every_30_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = iter([0.0, 1.0, 29.9, 30.0, 59.9, 61.0, 1e6])
    with shown_progress(lambda: next(now_s)):
        for report in [
            ("loading", 0, None),
            ("playing", 1, 4),
            ("playing", 2, 4),
            ("playing", 3, 4),
            ("frame", 7, None),
        ]:
            progress(*report)
        progress("writing")
    assert capsys.readouterr() == ("", "30 s  playing: 2 of 4\n61 s  frame: 7\n1000000 s  writing\n")


@pytest.mark.parametrize("stdout", [Terminal, io.StringIO])
def test_on_a_terminal_one_line_is_updated_and_removed(
    stdout: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    errors, output = Terminal(), stdout()
    monkeypatch.setattr(sys, "stderr", errors)
    monkeypatch.setattr(sys, "stdout", output)
    with shown_progress():
        for _ in tracked("playing [bold]", range(3)):
            pass
        sys.stdout.write("a result\n")
    sys.stdout.write("another\n")
    assert "playing [bold]: 3 of 3" in errors.getvalue()
    # The last of it goes up and erases the line.
    assert errors.getvalue().rstrip("\r").endswith("\x1b[1A\x1b[2K")
    # A file has results alone; on a terminal what is printed meanwhile goes above the line.
    assert output.getvalue() == ("another\n" if stdout is Terminal else "a result\nanother\n")
    assert ("a result" in errors.getvalue()) == (stdout is Terminal)
    assert (sys.stderr, sys.stdout) == (errors, output)


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_cannot_go_back_gets_lines(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", Terminal())
    now_s = iter([0.0, 40.0])
    with shown_progress(lambda: next(now_s)):
        progress("playing", 1, 2)
    assert sys.stderr.getvalue() == "40 s  playing: 1 of 2\n"  # type: ignore[attr-defined]
