"""Make the dealer of a run's matchups."""

from __future__ import annotations

import copy

from marlflow.config.league import league_matchmaker
from marlflow.config.validation import CheckedExperiment
from marlflow.league.sides import sides_of
from marlflow.sampling.matchmaking import Dealer, Matchmaker


def dealer_of(checked: CheckedExperiment) -> Dealer | None:
    """Return the dealer of a run with a matchmaker or a league, in its initial state; None if its mapping is fixed."""
    experiment = checked.experiment
    matchmaker: Matchmaker | None = None
    if experiment.league is not None:
        sides, _ = sides_of(experiment.league.sides, checked.agents)
        matchmaker = league_matchmaker(
            experiment.league, sides, checked.players, checked.spec.learning, checked.spec.seed
        )
    elif callable(experiment.mapping):
        # Copied, because an experiment is data and may be run again.
        matchmaker = copy.deepcopy(experiment.mapping)
    return None if matchmaker is None else Dealer(matchmaker, checked.seats, checked.spec.num_envs, checked.spec.seed)
