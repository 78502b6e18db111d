import io
import logging
import re
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from marlflow.observe.report import Report, StageMetrics
from marlflow.observe.view import LiveConsole, View
from tests.observe.records import INFO, record


def drawn(width: int, rows: int | None = None, before: Report | None = None, now: Report | None = None) -> str:
    terminal = Console(file=io.StringIO(), width=width, force_terminal=False, record=True)
    terminal.print(View(INFO, before, now, clock_s=9.0, rows=rows))
    return terminal.export_text()


def row(text: str, *starts: str) -> list[str]:
    """The words of the first line that begins with these words."""
    lines = (line.split() for line in text.splitlines())
    return next(words for words in lines if words[: len(starts)] == list(starts))


def crowded(stages: int) -> Report:
    now = record(2)
    now["stages"] = {
        f"plan/stage_{number}": StageMetrics(
            items=1, rows=1, dropped=0, rows_dropped=0, busy_s=number, starved_s=0.0, blocked_s=0.0
        )
        for number in range(stages)
    }
    return now


def test_a_wide_view_shows_every_policy_in_full() -> None:
    text = drawn(160, before=record(1), now=record(2))
    assert "tag  inline, until 100,000 env steps or a mean return of 40.00 of adversary" in text
    assert "0:00:09  2,000 env steps  250/s" in text
    assert "2%, 0:06:32 left" in text
    numbers = [
        "6,000",
        "20",
        "-10.50",
        "25.0",
        "7.25",
        "1.50",
        "160",
        "20.0",
        "0.5",
        "policy",
        "-0.013,",
        "value",
        "3.500",
    ]
    assert row(text, "adversary", "ppo") == ["adversary", "ppo", "3", "x", "adversary", *numbers]
    assert row(text, "goal", "random")[2:] == ["goal_0", "6,000", "20", "-", "-", "-", "-", "0", "0", "-", "-"]
    assert heads_of(text, 3) == ["eval", "greedy", "vs random"]
    assert text.splitlines()[6].split()[0] == "per-agent"
    assert "at 1.50k" in text
    assert "folder: runs/tag" in text


def heads_of(text: str, lines: int) -> list[str]:
    """The heading of evaluations above the last line of the table's heading."""
    return [line.replace("per-agent", "").strip() for line in text.splitlines()[4 : 4 + lines]]


def test_each_row_says_how_its_policy_acted_if_policies_did_not_all_act_alike() -> None:
    now = record(2)
    now["policies"]["agent"] |= now["policies"]["adversary"] | {"eval_mode": "sampled"}
    text = drawn(160, before=record(1), now=now)
    assert "greedy 7.25" in text
    assert "sampled 7.25" in text
    assert heads_of(text, 2) == ["eval", "vs random"]


def test_against_several_opponents_the_evaluation_takes_no_more_room() -> None:
    now = record(2)
    for metrics in now["policies"].values():
        metrics["eval_against"] = {"random": 1.0, "a_rival_with_a_name": 2.0}
    text = drawn(110, before=record(1), now=now)
    assert heads_of(text, 4) == ["eval", "greedy", "vs 2", "opponents"]
    alone = drawn(110, before=record(1), now=record(2))
    assert row(text, "policy") == row(alone, "policy")
    assert [line.split()[0] for line in text.splitlines()[9:12]] == ["adversary", "agent", "goal"]


def test_the_stage_table_says_who_is_busy_and_who_waits() -> None:
    text = drawn(140, before=record(1), now=record(2))
    assert row(text, "rollouts")[:7] == ["rollouts", "Collect", "2", "10,000", "75%", "0%", "25%"]
    assert row(text, "adversary", "Learn")[:7] == ["adversary", "Learn", "2", "6,000", "33%", "67%", "0%"]
    assert "█" * 18 + "▒" * 6 in text
    assert "█" * 8 + "░" * 16 + "\n" in re.sub(" +\n", "\n", text)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 110, 140, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, drawn(width, now=record(3)).splitlines())) <= width


LOSS = {"policy": -0.0125, "value": 9.5421, "entropy": 0.559, "kl": 0.003, "cost_value": 7.125, "grad_norm": 12.5}


@pytest.mark.parametrize("width", [80, 100, 110, 120, 130, 135, 140, 149, 150, 160, 170, 180, 190, 200, 240])
@pytest.mark.parametrize("name", ["pack", "the_adversaries", "the_policy_of_the_adversaries"])
def test_columns_that_name_a_row_are_whole_and_others_are_left_out(name: str, width: int) -> None:
    before, now = record(1), record(2)
    info = replace(INFO, policies={name: INFO.policies["adversary"], **INFO.policies})
    for each in (before, now):
        each["policies"][name] = each["policies"]["adversary"]
        each["learners"][name] = each["learners"]["adversary"] | {"loss": LOSS}
        each["stages"][f"{name}/EachPolicy(Advantages)"] = each["stages"]["adversary/Learn"]
        each["stages"][f"{name}/Idle"] = {**each["stages"]["adversary/Learn"], "busy_s": 0.0}
    terminal = Console(file=io.StringIO(), width=width, force_terminal=False, record=True)
    terminal.print(View(info, before, now, clock_s=9.0))
    text = terminal.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text.split("folder")[0].split("\n", 1)[1]
    lines = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    assert len(lines) == 2, text
    assert lines[1].split()[:2] == [name, "EachPolicy(Advantages)"]
    # Numbers and terms of a loss are whole, too.
    assert lines[0].split()[-1] in ("...", "-0.013", "12.5", "20.0"), lines[0]
    assert {"policy", "return"} <= set(row(text, "policy"))
    assert "grad_norm 12.5" in text or width < 240
    assert "and 1 more stage that was less busy" in text


def test_at_80_columns_no_word_is_cut_short() -> None:
    text = drawn(80, now=record(3)).split("\n", 1)[1]
    assert "…" not in text
    assert row(text, "adversary", "ppo")[:4] == ["adversary", "ppo", "3", "9.00k"]


@pytest.mark.parametrize("rows", [24, 30, 50])
@pytest.mark.parametrize("stages", [0, 1, 10, 60])
def test_a_view_leaves_room_above_it(rows: int, stages: int) -> None:
    text = drawn(80, rows=rows, now=crowded(stages))
    assert len(text.splitlines()) <= rows - 3


def test_stages_without_room_are_summed_up_and_the_busiest_stay() -> None:
    text = drawn(80, rows=24, now=crowded(20))
    assert [line.split()[1] for line in text.splitlines() if line.startswith("plan  ")] == [
        "stage",
        "stage_15",
        "stage_16",
        "stage_17",
        "stage_18",
        "stage_19",
    ]
    assert "and 15 more stages that were less busy" in text
    assert drawn(80, now=crowded(20)).count("stage_") == 19, "all but the one that was not busy"


def test_before_the_first_report_the_view_says_so() -> None:
    assert "0:00:09  waiting for the first report" in drawn(80)


@pytest.fixture
def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=80, height=40, color_system=None, _environ={})


def screen(terminal: Console) -> list[str]:
    """What a terminal would show: the cursor moves that Rich makes, replayed."""
    assert isinstance(terminal.file, io.StringIO)
    lines, place = [""], 0
    for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", terminal.file.getvalue()):
        if part == "\n":
            place += 1
            lines += [""] * (place + 1 - len(lines))
        elif part == "\x1b[2K":
            lines[place] = ""
        elif part.startswith("\x1b[") and part.endswith("A"):
            place -= int(part[2:-1])
        elif not part.startswith("\x1b") and part != "\r":
            lines[place] += part
    return [line.rstrip() for line in lines]


def test_the_last_evaluation_stays_until_there_is_another(terminal: Console) -> None:
    live = LiveConsole(INFO, terminal, clock_s=lambda: 0.0)
    for number in (1, 2, 3):
        live.report(record(number))
    live.close()
    adversary = row("\n".join(screen(terminal)), "adversary", "ppo")
    assert adversary[5:7] == ["-9.50", "7.25"]


def test_the_last_state_stays_on_screen_once(terminal: Console) -> None:
    live = LiveConsole(INFO, terminal, clock_s=lambda: 0.0)
    live.report(record(1))
    live.report(record(2))
    live.close()
    live.close()
    shown = screen(terminal)
    assert [line for line in shown if "env steps" in line and "/s" in line] == [
        line for line in shown if line.startswith("0:00:08  2,000 env steps")
    ]
    assert sum(line.startswith("policy") for line in shown) == 1
    assert sum("folder: " in line for line in shown) == 1


def test_the_clock_goes_on_between_reports_and_stops_at_close(terminal: Console) -> None:
    now_s = 100.0
    live = LiveConsole(INFO, terminal, clock_s=lambda: now_s)
    live.report(record(1))
    now_s = 103.0
    live.notice("hello")
    assert "0:00:07  hello" in screen(terminal)
    command = "to resume from 1,000 env steps: marlflow resume " + "/a/folder" * 10
    live.notice(command)
    assert f"0:00:07  {command}" in screen(terminal), "in one line, to be copied"
    live.report(record(2))
    now_s = 110.0
    live.close()
    assert any(line.startswith("0:00:08  2,000 env steps") for line in screen(terminal))
    live.notice("to resume from here")
    assert [line for line in screen(terminal) if line][-1] == "0:00:15  to resume from here"


def test_notices_prints_and_logs_land_above_the_view(terminal: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "stderr", stderr)
    logger = logging.Logger("library")
    monkeypatch.setitem(logging.root.manager.loggerDict, "library", logger)
    handler = logging.StreamHandler(stdout)
    logger.addHandler(handler)

    live = LiveConsole(INFO, terminal, clock_s=lambda: 0.0)
    live.report(record(1))
    logger.warning("from a handler of before")
    sys.stdout.write("printed\n")
    sys.stderr.write("complained\n")
    live.notice("stopping after this round")
    live.report(record(2))
    live.close()

    lines = ["from a handler of before", "printed", "complained", "0:00:04  stopping after this round"]
    assert screen(terminal)[: len(lines) + 1] == [*lines, screen(terminal)[len(lines)]]
    assert screen(terminal)[len(lines)].startswith("tag  inline")
    assert stdout.getvalue() == stderr.getvalue() == ""
    assert handler.stream is stdout
    assert sys.stdout is stdout
    logger.warning("afterwards")
    assert stdout.getvalue() == "afterwards\n"


def test_a_name_with_brackets_is_no_markup() -> None:
    infos = {"[/x]": 1.0, "distance [m]": 2.0}
    now = record(2)
    now["policies"]["agent"]["infos"] = infos
    text = drawn(220, before=record(1), now=now)
    assert "[/x]" in text
    assert "distance [m]" in text
