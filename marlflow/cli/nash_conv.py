"""`marlflow league --nash-conv`: how far the result of a run's league is from an equilibrium, by its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from marlflow.base.errors import ConfigInvalid, InvalidInput
from marlflow.cli.arguments import Words
from marlflow.cli.progress import shown_progress
from marlflow.cli.resume import recomposed
from marlflow.config.trust import is_own

if TYPE_CHECKING:
    from marlflow.config.checked import CheckedExperiment
    from marlflow.runs.saved_league import SavedLeague, SavedRun


def show_nash_conv(run: SavedRun, league: SavedLeague, trusts_all: bool, title: str) -> Path:
    """Print the NashConv of a league's solution and draw it with those of the run's metrics; return the figure.

    Raises ConfigInvalid if it cannot be computed, or if the run's folder is not trusted.
    """
    from marlflow.checks.commands import check
    from marlflow.config.schema import read
    from marlflow.league.figures import draw_nash_conv

    run_dir = run.run_dir
    with recomposed(run_dir.resolve(), [], Words(), trusts_all or is_own(run_dir)) as ready:
        problems = list(ready.problems)
        experiment = read(ready.config, problems)
        checked = check(experiment, problems)
    with shown_progress():
        value = _computed(run, league, checked)
    env_steps = league.checkpoint.env_steps
    print(f"NashConv {value:.4g} of the league's solution at {env_steps:,} env steps")
    points = {**_reported(run_dir), env_steps: value}
    figure = run_dir / "league" / "nash_conv.png"
    draw_nash_conv(figure, sorted(points.items()), title)
    return figure


def _computed(run: SavedRun, league: SavedLeague, checked: CheckedExperiment) -> float:
    from marlflow.checks.nash_conv import information_states, nash_conv_problems
    from marlflow.config.dealers import dealer_of
    from marlflow.driver.nash_conv import MemberWeights, SolutionNashConv
    from marlflow.league.dealing import LeagueMatchmaker
    from marlflow.runs.saved_league import matchmaker_state
    from marlflow.runs.saved_policies import saved_policy

    dealer = dealer_of(checked)
    assert dealer is not None, "its checkpoint has a league"
    matchmaker = dealer.matchmaker
    assert isinstance(matchmaker, LeagueMatchmaker), "its checkpoint has a league"
    if found := list(nash_conv_problems(checked.experiment.env, league.members.sides, checked.spec.policies)):
        raise ConfigInvalid([f"--nash-conv: {problem}" for problem in found])
    matchmaker.load_state(matchmaker_state(league.checkpoint))

    def weights_of(member: str) -> MemberWeights:
        if member not in league.members.snapshots and not league.members.is_live(member):
            return MemberWeights(None, {})
        found = saved_policy(run, member)
        return MemberWeights(found.flat, found.description["scheduled"])

    states = information_states(checked.experiment.env)
    computation = SolutionNashConv(checked.spec, states, matchmaker.matches.modes)
    return computation.of(league.members, matchmaker.solution(), weights_of)


def _reported(run_dir: Path) -> dict[int, float]:
    """Return the NashConv in the run's metrics by env steps, if there are any."""
    from marlflow.observe.sinks import METRICS, read_metrics

    try:
        reports = [report.get("league") or {} for report in read_metrics(run_dir / METRICS)]
    except (InvalidInput, OSError, json.JSONDecodeError):
        return {}
    return {
        int(report["nash_conv_env_steps"]): float(report["nash_conv"])
        for report in reports
        if report.get("nash_conv") is not None and report.get("nash_conv_env_steps") is not None
    }
