"""A learner of several policies has a row of its own in the console's table, with its policies below it."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from marlflow.observe.console import PlainConsole
from marlflow.observe.rates import table_rows
from marlflow.observe.report import PolicyInfo, Report, RunInfo
from marlflow.observe.view import View
from tests.observe.records import INFO, learner, policy, record

TEAM = {
    "left": PolicyInfo("qmix", ("adversary_0", "adversary_1"), "team"),
    "prey": PolicyInfo("dqn", ("agent_0",), "prey"),
    "right": PolicyInfo("qmix", ("adversary_2",), "team"),
    "goal": PolicyInfo("random", ("goal_0",)),
}
ABOUT: RunInfo = replace(INFO, policies=TEAM)


def report(number: int) -> Report:
    """The report of a team of two policies, a policy that learns alone, and one that does not learn."""
    return {
        **record(number),
        "policies": {
            "left": policy(number, 80, 3.0),
            "prey": policy(number, 400, 7.0),
            "right": policy(number, 80, -5.5),
            "goal": policy(number, 0, None),
        },
        "learners": {"team": learner(number, 80 * number, {"td": 0.25}), "prey": learner(number, 400, {"td": 0.43})},
    }


def test_a_team_is_listed_where_its_first_policy_is() -> None:
    rows = table_rows(TEAM, report(2))
    assert [row.label for row in rows] == ["team", "  left", "  right", "prey", "goal"]
    assert [row.plan for row in rows] == ["team", "team", "team", "prey", "goal"]
    assert [None if row.learned is None else row.learned["updates"] for row in rows] == [160, None, None, 400, 0]


def test_a_teams_row_has_its_learners_returns_and_sums_of_its_policies() -> None:
    team, left, right, *_ = table_rows(TEAM, report(2))
    assert team.about == PolicyInfo("qmix", ("adversary_0", "adversary_1", "adversary_2"), "team")
    assert team.metrics["return_mean"] == -1.25
    assert team.metrics["eval_return_mean"] == 6.5
    assert team.metrics["return_std"] is None
    steps = [row.metrics["agent_steps_sampled"] for row in (team, left, right)]
    assert steps[0] == steps[1] + steps[2] > 0
    assert (left.metrics["return_mean"], right.metrics["return_mean"]) == (3.0, -5.5)


def test_without_teams_the_rows_are_the_policies() -> None:
    rows = table_rows(INFO.policies, record(2))
    assert [row.label for row in rows] == list(INFO.policies)
    assert all(row.learned is not None for row in rows)


@pytest.mark.parametrize("width", [79, 100, 160])
def test_the_live_view_shows_updates_and_loss_of_a_team_once(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(View(ABOUT, report(2), report(4), clock_s=16.0))
    shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    (at,) = [number for number, line in enumerate(shown) if line.startswith("team") and "qmix" in line]
    team, left, right = shown[at : at + 3]
    assert "320" in team
    assert "-1.25" in team
    assert left.startswith("  left")
    assert "3.00" in left
    assert right.startswith("  right")
    assert "-5.50" in right
    assert not any(word in line for line in (left, right) for word in ("qmix", "320", "0.25"))


def test_plain_lines_show_updates_and_loss_of_a_team_once() -> None:
    file = io.StringIO()
    console = PlainConsole(ABOUT, file)
    console.report(report(2))
    console.close()
    opening, team, left, right, prey, _, summary = file.getvalue().splitlines()
    assert (
        "left = qmix of learner team for 2 x adversary; prey = dqn for agent_0; right = qmix of learner team" in opening
    )
    assert "  team     return" in team
    assert "updates       160" in team
    assert "updates" in prey
    assert not any("updates" in line for line in (left, right))
    assert len({line.index("return") for line in (team, left, right, prey)}) == 1, "in columns"
    assert "team return -1.25, updates 160 (eval" in summary
    assert "; left return 3.00 (eval" in summary
