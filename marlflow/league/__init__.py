"""Leagues: populations of policies and their frozen versions that play, are rated, and learn from each other."""

from marlflow.league.alphastar import AlphaStar
from marlflow.league.league import (
    League,
    LeaguePlayer,
    MatchRules,
    PayoffSettings,
    Pool,
    RatingSettings,
    SnapshotRules,
    StoreSettings,
)
from marlflow.league.modes import PFSP, DeltaUniform, Fictitious, LatestPast, LeagueMode, LeagueView, NaiveSelfPlay
from marlflow.league.nfsp import NFSP
from marlflow.league.payoffs import GameOutcome
from marlflow.league.psro import PSRO

__all__ = [
    "NFSP",
    "PFSP",
    "PSRO",
    "AlphaStar",
    "DeltaUniform",
    "Fictitious",
    "GameOutcome",
    "LatestPast",
    "League",
    "LeagueMode",
    "LeaguePlayer",
    "LeagueView",
    "MatchRules",
    "NaiveSelfPlay",
    "PayoffSettings",
    "Pool",
    "RatingSettings",
    "SnapshotRules",
    "StoreSettings",
]
