"""Leagues: members that play each other and are rated, of which the live policies learn.

A *member* is a *live policy*, which learns; a *snapshot*, which is a frozen version of a live policy; or a *fixed
policy*, which never learns, such as `random` or a policy of another run. Snapshots and fixed policies are *frozen*:
they never change. `members` has them; `matchmaking` and `sampling.population` send snapshots to workers as *frozen
entries*.
"""

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
