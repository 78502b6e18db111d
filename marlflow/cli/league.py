"""`marlflow league`: print the standings of a run's league and draw them, compute its NashConv, or export a member."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from marlflow.base.errors import ConfigInvalid, InvalidInput
from marlflow.cli.options import TRUST, Arguments, Command, Option
from marlflow.cli.run_folder import STRICT, run_folder

if TYPE_CHECKING:
    from marlflow.config.checked import CheckedExperiment
    from marlflow.runs.saved_league import SavedLeague, SavedRun


def run_league(arguments: Arguments) -> int:
    """Print the standings and write figures, or export a member; return 0. Raises InvalidInput."""
    run_dir = run_folder(arguments.operands[0], "league")
    from marlflow.runs.saved_league import league_of, saved_run
    from marlflow.runs.saved_runs import chosen, usable

    run = saved_run(run_dir, chosen(run_dir, strict=arguments["strict"]))
    league = league_of(run)
    if arguments["export"] is not None:
        member, file = arguments["export"]
        _export(run, member, Path(file))
        return 0
    with usable(league.checkpoint):
        _show(league, run_dir)
        if arguments["nash_conv"]:
            print(f"wrote {_show_nash_conv(run, league, arguments['trust'], _title(run_dir))}")
    return 0


def _show(league: SavedLeague, run_dir: Path) -> None:
    from marlflow.html_report.extras import league_acting
    from marlflow.html_report.runs import configuration
    from marlflow.league.figures import draw_payoffs, draw_ratings, write_payoffs
    from marlflow.league.standings import standings, standings_text

    shown = standings(league.members, league.payoffs, league.ratings, league.versions())
    title = _title(run_dir)
    matches, are_matches = league.matches.games_counted, bool(league.matches.cells)
    basis = "" if are_matches else "; results are of training, exploration included"
    print(f"{title}  epoch {league.epoch:,}   {league.games:,} games, {matches:,} matches{basis}")
    print(standings_text(shown, league.algorithms))
    if not matches and (reason := _without_matches(run_dir, league.env_steps)):
        print(f"no ratings: {reason}")
    folder = run_dir / "league"
    acting = league_acting(configuration(run_dir)[0], are_matches)
    written = ["payoffs.parquet", "payoff.png"]
    try:
        folder.mkdir(exist_ok=True)
        write_payoffs(folder / "payoffs.parquet", league.tables)
        draw_payoffs(folder / "payoff.png", shown, league.members, league.payoffs, title, acting)
        if any(row.rating is not None for row in shown.rows):
            draw_ratings(folder / "ratings.png", shown, league.members, league.env_steps, title, acting)
            written.append("ratings.png")
    except OSError as error:
        raise ConfigInvalid([f"{folder} cannot be written to: {error}"]) from error
    print(f"wrote {', '.join(written)} into {folder}")


def _without_matches(run_dir: Path, env_steps: int) -> str:
    """Return why no matches were played so far, and the setting that decides it; empty if the mode decides."""
    from marlflow.config.recorded import recorded_run

    key, remedy = "league.matches.every_env_steps", f"marlflow resume {run_dir}"
    try:
        recorded = recorded_run(run_dir).values.get("league") or {}
        every = recorded["matches"]["every_env_steps"]
        if str(recorded["matchmaker"].get("_target_")).rpartition(".")[2] == "PSRO":
            return ""
    except (ConfigInvalid, AttributeError, KeyError, TypeError):
        # The record is damaged, or by an earlier version; the standings do not depend on it.
        return f"no matches were played; {key} says when they are"
    if every is None:
        return f"{key} is null, so no matches are played; set it: {remedy} {key}={max(env_steps // 5, 1)}"
    return (
        f"the first matches come before the first round after {every:,} env steps ({key}), and the run has "
        f"{env_steps:,}; let it run longer, or set it lower: {remedy} {key}={max(env_steps // 5, 1)}"
    )


def _title(run_dir: Path) -> str:
    """Return the environment (in OpenSpiel, the game), or else the directory's name, and the mode or own matchmaker."""
    from marlflow.config.imported_policies import recorded

    choices = recorded(run_dir, "hydra.yaml", "hydra.runtime.choices")
    env, mode = choices.get("env"), choices.get("league")
    matchmaker = str(recorded(run_dir, "config.yaml", "league.matchmaker").get("_target_", ""))
    if matchmaker and not matchmaker.startswith("marlflow."):
        # A user's own, in place of the mode's.
        mode = matchmaker.rpartition(".")[2]
    if env == "openspiel":
        env = recorded(run_dir, "config.yaml", "env").get("game")
    if not isinstance(env, str) or env == "python":
        env = run_dir.resolve().name
    return f"{env}  {mode}" if isinstance(mode, str) and mode != "none" else env


def _export(run: SavedRun, member: str, file: Path) -> None:
    from marlflow.base.files import write_new
    from marlflow.config.imported_policies import policy_of
    from marlflow.runs.saved_policies import to_export

    if file.exists() or file.is_symlink():
        raise ConfigInvalid([f"{file} is there already, and export replaces nothing: give another name or remove it"])
    if not file.parent.is_dir():
        raise ConfigInvalid([f"there is no directory {file.parent} to write {file.name} to"])
    found = policy_of(run, member)
    data = to_export(found)
    try:
        # It refuses a file that has appeared since, and leaves no incomplete file behind.
        write_new(file, data)
    except OSError as error:
        raise ConfigInvalid([f"{file} cannot be written: {error}"]) from error
    version = f"version {found.description['version']:,} of {found.description['policy']}"
    print(f"wrote {member} ({version}, {len(found.flat):,} parameters) to {file}")


def _show_nash_conv(run: SavedRun, league: SavedLeague, trusts_all: bool, title: str) -> Path:
    """Print the NashConv of a league's solution, and draw it with the values that the run reported; return the figure.

    Raises ConfigInvalid if it cannot be computed, or if the run's folder is not trusted.
    """
    from marlflow.checks.commands import check
    from marlflow.cli.arguments import Words
    from marlflow.cli.progress import shown_progress
    from marlflow.cli.resume import recomposed
    from marlflow.config.schema import read
    from marlflow.config.trust import is_own
    from marlflow.league.figures import draw_nash_conv

    run_dir = run.run_dir
    with recomposed(run_dir.resolve(), [], Words(), trusts_all or is_own(run_dir)) as ready:
        problems = list(ready.problems)
        experiment = read(ready.config, problems)
        checked = check(experiment, problems)
    with shown_progress():
        value = _nash_conv_of(run, league, checked)
    env_steps = league.checkpoint.env_steps
    print(f"NashConv {value:.4g} of the league's solution at {env_steps:,} env steps")
    points = {**_reported_nash_conv(run_dir), env_steps: value}
    figure = run_dir / "league" / "nash_conv.png"
    draw_nash_conv(figure, sorted(points.items()), title)
    return figure


def _nash_conv_of(run: SavedRun, league: SavedLeague, checked: CheckedExperiment) -> float:
    from marlflow.checks.leagues import information_states, nash_conv_problems
    from marlflow.config.league import dealer_of
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


def _reported_nash_conv(run_dir: Path) -> dict[int, float]:
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


_ABOUT = """
Reads the newest whole checkpoint of a run that was started with a league (league=pfsp, say); the run may still be
in progress. It prints the members by strength, and writes into RUN/league/:
  payoffs.parquet  one row for each combination of members that has played: games, returns, wins, draws, losses
  payoff.png       the share of games that each member wins against each other member
  ratings.png      ratings over env steps, once members have played matches
  nash_conv.png    with --nash-conv: NashConv over env steps

A column of the standings:
  rating           rating by matches, relative to random, and its standard deviation; none without games
  win, draw, loss  shares of the games against others, in matches if there were any, else in training; with three
                   sides or more, a game counts once for each other side
  seat 1, ...      share won in that seat, or role; a draw is half a win
  nash             weight in a Nash equilibrium of the members' games, which shows strength where ratings cannot,
                   because members beat each other in a cycle; alpha-rank if the returns of two roles have no
                   constant sum or there are more than two
"""

COMMAND = Command(
    "league",
    run_league,
    (
        Option(
            "nash_conv",
            "compute how far the league's solution is from a Nash equilibrium: the meta-strategies of psro, the mains "
            "of alphastar, else the live policies; in small games of OpenSpiel, which the run's own configuration "
            "makes again",
            "switch",
        ),
        Option(
            "export",
            "write the parameters of a member to FILE, a safetensors file whose metadata say what they are: policy, "
            "algorithm, model, spaces, version, and env steps; the file must not exist",
            value="MEMBER FILE",
            parts=2,
        ),
        STRICT,
        TRUST,
    ),
    _ABOUT,
    (
        "runs/connect_four/2026-01-31_12-00-00",
        "runs/connect_four/2026-01-31_12-00-00 --export main@12 main12.safetensors",
    ),
)
