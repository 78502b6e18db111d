import io
import sys
from dataclasses import replace

import pytest

from marlflow.base.errors import ConfigInvalid
from marlflow.observe.console import DetachableConsole, PlainConsole, RunConsole, console
from marlflow.observe.view import LiveConsole
from tests.observe.records import INFO, record


def lines_of(*numbers: int) -> list[str]:
    file = io.StringIO()
    plain = PlainConsole(INFO, file)
    for number in numbers:
        plain.report(record(number))
    plain.close()
    plain.close()
    return file.getvalue().splitlines()


def test_the_first_line_describes_the_run() -> None:
    assert lines_of()[0] == (
        "tag (runtime inline): adversary = ppo for 3 x adversary; agent = dqn for agent_0; goal = random for goal_0; "
        "until 100,000 env steps or a mean return of 40.00 of adversary; returns are per agent"
    )


def test_a_report_has_one_aligned_line_for_each_policy() -> None:
    _, adversary, agent, goal, _ = lines_of(2)
    assert adversary == (
        " 0:00:08        2,000 env steps     250/s  adversary  return     -10.50 +- 2.00  length   25.0  "
        "eval greedy vs random 7.25 +- 1.50 at 1,500        "
        "updates       160   20.0/s  staleness  0.5  loss policy -0.013, value 3.500"
    )
    assert "agent      return      18.00 +- 2.00" in agent
    assert "goal       return                  -  length      -  eval -  " in goal
    assert len({line.index("loss") for line in (adversary, agent, goal)}) == 1


def test_the_last_line_sums_up() -> None:
    assert lines_of(1, 2)[-1] == (
        "ended after 0:00:08, 2,000 env steps, 20 episodes "
        "(rollout workers: environments 50%, policies 33%, bookkeeping 17%): "
        "adversary return -10.50, updates 160 "
        "(eval greedy vs random 7.25 +- 1.50 over 20 episodes, at 1,500 env steps); "
        "agent return 18.00, updates 800 (eval greedy vs random 7.25 +- 1.50 over 20 episodes, at 1,500 env steps); "
        "goal return -; "
        "its folder is runs/tag"
    )
    assert lines_of()[-1] == "ended before the first report; its folder is runs/tag"


def test_an_evaluation_is_in_the_line_of_its_report_and_in_the_last() -> None:
    lines = lines_of(1, 2, 3)
    adversary = [line for line in lines if "  adversary  " in line]
    assert ["eval greedy vs random 7.25 +- 1.50 at 1,500" in line for line in adversary] == [False, True, False]
    assert ["eval -  " in line for line in adversary] == [True, False, True]
    assert "updates 240 (eval greedy vs random 7.25 +- 1.50 over 20 episodes, at 1,500 env steps)" in lines[-1]


@pytest.mark.parametrize(("evaluated", "at"), [((2_000, 160), ""), ((2_000, 150), ", at 2,000 env steps")])
def test_an_evaluation_of_the_end_is_told_without_its_env_step(evaluated: tuple[int, int], at: str) -> None:
    file, last = io.StringIO(), record(2)
    metrics = last["policies"]["adversary"]
    metrics["eval_env_steps"], metrics["eval_version"] = evaluated
    plain = PlainConsole(INFO, file)
    plain.report(last)
    plain.close()
    assert (
        f"adversary return -10.50, updates 160 (eval greedy vs random 7.25 +- 1.50 over 20 episodes{at})"
        in file.getvalue()
    )


def test_an_evaluation_that_left_episodes_out_says_so() -> None:
    file, now = io.StringIO(), record(2)
    now["policies"]["adversary"]["eval_episodes_asked"] = 100
    PlainConsole(INFO, file).report(now)
    adversary, agent, _ = (line for line in file.getvalue().splitlines() if "  return  " in line)
    assert "7.25 +- 1.50 at 1,500 (20 of 100 episodes)" in adversary
    assert "episodes)" not in agent


def test_reports_stand_in_line_however_wide_evaluations_are() -> None:
    file, plain = io.StringIO(), None
    for number, steps in ((2, 52), (3, None), (4, 999_999)):
        now = record(number)
        for metrics in now["policies"].values():
            if metrics["eval_env_steps"] is not None:
                metrics["eval_env_steps"], metrics["eval_against"] = steps, {"random": 1.0, "bot": 2.0}
        plain = plain or PlainConsole(INFO, file)
        plain.report(now)
    lines = [line for line in file.getvalue().splitlines() if "  updates " in line]
    assert "eval greedy vs 2 opponents 7.25 +- 1.50 at 999,999" in lines[-2]
    assert len(lines) == 9
    assert len({line.index("  updates ") for line in lines}) == 1


def test_a_report_of_the_same_env_step_is_in_the_summary_alone() -> None:
    again = record(2)
    again["policies"]["adversary"]["eval_return_mean"] = 9.0
    again["faults"] = {"closes_failed": 1}
    file = io.StringIO()
    plain = PlainConsole(INFO, file)
    for one in (record(1), record(2), again):
        plain.report(one)
    plain.close()
    lines = file.getvalue().splitlines()
    assert sum("  2,000 env steps " in line for line in lines) == 4, "three policies, and the fault"
    assert "faults so far: closes failed 1" in lines[-2]
    assert "(eval greedy vs random 9.00 +- 1.50" in lines[-1]


def test_faults_are_told_once_when_they_happen() -> None:
    lines = [line for line in lines_of(1, 2, 3, 4) if "faults" in line]
    assert lines == [" 0:00:12        3,000 env steps     250/s  faults so far: workers lost 1"]


class ClosedTerminal(io.StringIO):
    """Takes one line, and is closed then."""

    def write(self, text: str) -> int:
        if self.getvalue():
            raise OSError(5, "Input/output error")
        return super().write(text)


def test_a_terminal_that_is_closed_ends_what_is_shown_but_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    file = ClosedTerminal()
    shown = DetachableConsole(PlainConsole(INFO, file))
    shown.notice("nobody reads this")
    shown.report(record(1))
    shown.close()
    assert len(file.getvalue().splitlines()) == 1
    assert [entry.message for entry in caplog.records] == [
        "the run's output cannot be written any more ([Errno 5] Input/output error), so nothing more is shown"
    ]


def test_plain_text_has_neither_color_nor_cursor_movement() -> None:
    text = "\n".join(lines_of(1, 2, 3))
    assert "\x1b" not in text
    assert text.isascii()


def test_what_a_terminal_cannot_write_is_replaced() -> None:
    raw = io.BytesIO()
    shown = PlainConsole(replace(INFO, name="fouché 狐"), io.TextIOWrapper(raw, encoding="latin-1"))
    shown.notice("goes on")
    first, last = raw.getvalue().decode("latin-1").splitlines()
    assert first.startswith("fouché ? (runtime inline)")
    assert last == "goes on"


def test_a_notice_is_a_line_of_its_own() -> None:
    file = io.StringIO()
    PlainConsole(INFO, file).notice("stopping after this round")
    assert file.getvalue().splitlines()[1:] == ["stopping after this round"]


def test_output_that_is_piped_gets_lines(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = console("auto", INFO)
    chosen.report(record(1))
    chosen.close()
    assert isinstance(chosen, PlainConsole)
    assert len(capsys.readouterr().out.splitlines()) == 5


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("term", "kind"), [("xterm", LiveConsole), ("dumb", PlainConsole)])
def test_a_terminal_that_can_redraw_gets_the_live_view(
    monkeypatch: pytest.MonkeyPatch, term: str, kind: type[object]
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stdout", Terminal())
    chosen = console("auto", INFO)
    chosen.close()
    assert isinstance(chosen, kind)


def test_none_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = console("none", INFO)
    chosen.report(record(1))
    chosen.notice("x")
    chosen.close()
    assert type(chosen) is RunConsole
    assert capsys.readouterr().out == ""


def test_another_kind_is_an_error_that_names_the_kinds() -> None:
    with pytest.raises(ConfigInvalid, match=r"log\.console: expected auto, live, plain or none, got 'fancy'"):
        console("fancy", INFO)  # type: ignore[arg-type]
