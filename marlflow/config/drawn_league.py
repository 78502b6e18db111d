"""A league as a branch of the drawn plan: what happens to results, and when matches are played."""

from __future__ import annotations

from dataclasses import replace

from marlflow.config.checked import CheckedExperiment
from marlflow.config.league import is_meta_game, mode_name
from marlflow.flow import Together, WorkBetweenRounds
from marlflow.league.league import League
from marlflow.league.psro import PSRO
from marlflow.league.sides import sides_of


def with_league(plan: Together, checked: CheckedExperiment) -> Together:
    """Return the plan with the league of the experiment, if there is one, as work between rounds."""
    league = checked.experiment.league
    return plan if league is None else replace(plan, between_rounds=(league_work(league, checked),))


def league_work(league: League, checked: CheckedExperiment) -> WorkBetweenRounds:
    """Return what a league does between rounds.

    `Score` counts results and matches, `Decide` is the rules of snapshots and resets, `Apply` freezes and resets
    policies, `Referee` plays matches, and `Solve` computes meta-strategies. Then the next round is dealt.
    """
    sides, _ = sides_of(league.sides, checked.agents)
    policies = {name: policy for name, policy in checked.spec.policies.items() if name not in league.members}
    members = ", ".join(f"{name} ({policy.algorithm.name})" for name, policy in policies.items())
    title = f"{mode_name(league.matchmaker)} over {members}; sides {' | '.join(sides.names)}"
    referees = checked.spec.num_referees if checked.experiment.runtime.name == "ray" else 0
    results = ("results", ("Score", "Decide", "Apply"), "after every round")
    return WorkBetweenRounds("league", title, (results, *_matches(league, referees)))


def _matches(league: League, referees: int) -> tuple[tuple[str, tuple[str, ...], str], ...]:
    by = f", by {referees} referee{'s' * (referees > 1)}" if referees else ""
    if is_meta_game(league):
        games = f"{league.matchmaker.games:,} games" if isinstance(league.matchmaker, PSRO) else "games"
        return (("matches", ("Referee", "Score", "Solve"), f"{games} of each new profile{by}, for which rounds wait"),)
    rules = league.matches
    if (every := rules.interval()) is None:
        return ()
    when = f"at most {rules.games:,} games for every {every:,} env steps"
    return (("matches", ("Referee", "Score"), f"{when}{by}{', beside rounds' if by else ''}"),)
