"""Statistics of games: returns with mean and variance, and outcomes, raw and decayed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

TIE_TOLERANCE = 1e-9
NO_WINNER = "in no game did a side score more than another, so no side won: draws, or a game without winners"


@dataclass(slots=True)
class Returns:
    """Mean and variance of some returns, raw and decayed.

    Each new return multiplies the weight of all earlier ones by `decay` (West, 1979, Comm. ACM 22(9), the incremental
    weighted variance).
    """

    n: int = 0
    mean: float = 0.0
    m2: float = 0.0
    weight: float = 0.0
    weight_squared: float = 0.0
    decayed_mean: float = 0.0
    decayed_m2: float = 0.0

    def add(self, value: float, decay: float) -> None:
        """Count one return."""
        self.n += 1
        distance = value - self.mean
        self.mean += distance / self.n
        self.m2 += distance * (value - self.mean)
        self.weight = decay * self.weight + 1.0
        self.weight_squared = decay * decay * self.weight_squared + 1.0
        distance = value - self.decayed_mean
        self.decayed_mean += distance / self.weight
        self.decayed_m2 = decay * self.decayed_m2 + distance * (value - self.decayed_mean)

    @property
    def effective_n(self) -> float:
        """The number of equally weighted returns that would have the same standard error; 0 without any."""
        return self.weight * self.weight / self.weight_squared if self.n else 0.0

    @property
    def standard_error(self) -> float:
        """The standard error of `decayed_mean`, from the unbiased variance; infinite with fewer than two returns."""
        if self.effective_n <= 1.0:
            return math.inf
        return math.sqrt(max(self.decayed_m2, 0.0) / self.weight / (self.effective_n - 1.0))


@dataclass(slots=True)
class Outcomes:
    """Wins, draws and losses of one side against another, raw and decayed."""

    wins: int = 0
    draws: int = 0
    losses: int = 0
    decayed_wins: float = 0.0
    decayed_draws: float = 0.0
    decayed_losses: float = 0.0

    def add(self, difference: float, decay: float) -> None:
        """Count one game that ended with this difference of scores."""
        self.fade(decay)
        if abs(difference) <= TIE_TOLERANCE:
            self.draws += 1
            self.decayed_draws += 1.0
        elif difference > 0:
            self.wins += 1
            self.decayed_wins += 1.0
        else:
            self.losses += 1
            self.decayed_losses += 1.0

    def fade(self, decay: float) -> None:
        """Let all games so far weigh less, because of a newer one."""
        self.decayed_wins *= decay
        self.decayed_draws *= decay
        self.decayed_losses *= decay

    @property
    def games(self) -> int:
        """The number of games."""
        return self.wins + self.draws + self.losses

    def win_probability(self, prior_games: float) -> float:
        """Return the decayed share of wins, a draw as half a win, with `prior_games` games at 0.5 before."""
        games = self.decayed_wins + self.decayed_draws + self.decayed_losses + prior_games
        return (self.decayed_wins + 0.5 * (self.decayed_draws + prior_games)) / games if games > 0 else 0.5


@dataclass(slots=True)
class ProfileCell:
    """All games of one profile: returns by role, and outcomes by pair of sides (i, j) with i < j."""

    roles: list[Returns]
    pairs: dict[tuple[int, int], Outcomes]
    games: int = 0
    truncated: int = 0
    env_steps: int = 0


@dataclass(slots=True)
class PairCell:
    """All games of member a in one role and member b in another: outcomes of a's side against b's, returns of a.

    Roles of one side have returns and no outcomes.
    """

    outcomes: Outcomes = field(default_factory=Outcomes)
    returns: Returns = field(default_factory=Returns)
    games: int = 0
