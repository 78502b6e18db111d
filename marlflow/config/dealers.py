"""Make the dealer of a run's matchups."""

from __future__ import annotations

import copy

from marlflow.config.checked import CheckedExperiment
from marlflow.config.experiment import Experiment
from marlflow.config.league import league_matchmaker
from marlflow.league.league import StoreSettings
from marlflow.league.sides import sides_of
from marlflow.matchmaking.dealer import Dealer
from marlflow.matchmaking.matchmakers import MatchmakerFunction
from marlflow.sampling.population import FrozenStore


def store_of(experiment: Experiment) -> StoreSettings:
    """Return where parameters of frozen entries are held."""
    return StoreSettings() if experiment.league is None else experiment.league.store


def dealer_of(checked: CheckedExperiment, store: FrozenStore | None = None) -> Dealer | None:
    """Return the dealer of a run with a matchmaker or a league, in its initial state; None if its mapping is fixed.

    Frozen entries are held in `store`; None: in memory.
    """
    experiment = checked.experiment
    matchmaker: MatchmakerFunction | None = None
    if experiment.league is not None:
        sides, _ = sides_of(experiment.league.sides, checked.agents)
        matchmaker = dealing = league_matchmaker(
            experiment.league, sides, checked.players, checked.spec.learning, checked.spec.seed
        )
        dealing.matches.modes = checked.spec.modes(experiment.league.snapshots.asked_mode)
    elif callable(experiment.mapping):
        # Copied, because an experiment is data and may be run again.
        matchmaker = copy.deepcopy(experiment.mapping)
    if matchmaker is None:
        return None
    spec, held = checked.spec, store_of(experiment)
    workers = [spec.env_indices_of(worker) for worker in range(spec.num_workers)]
    return Dealer(
        matchmaker, checked.seats, spec.num_envs, spec.seed, workers, store, held.worker_members, held.distinct_members
    )
