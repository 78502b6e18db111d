"""The winner of a game: by return, or by a custom function."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from marlflow.base.errors import MatchmakerFailed
from marlflow.league.sides import Sides
from marlflow.matchmaking.failures import called
from marlflow.sampling.receipts import EpisodeResult


class GameOutcome(Protocol):
    """Decides how a game ended, in place of the mean returns of its sides.

    It must depend on its arguments alone, so that a resumed run counts the same.
    """

    def __call__(self, result: EpisodeResult, sides: Mapping[str, Sequence[str]]) -> Mapping[str, float]:
        """Return the score of each side; the highest wins, and equal scores are a draw. `sides` has their agents."""
        ...


def scores_by(outcome: GameOutcome, sides: Sides, result: EpisodeResult) -> tuple[float, ...]:
    """Return the score of each side by `outcome`; raises MatchmakerFailed if it raises or does not give them."""
    agents = {
        name: [agent for role in sides.of_side(side) for agent in sides.roles[role].agents]
        for side, name in enumerate(sides.names)
    }
    with called(outcome, f"episode {result.episode} of env {result.env}", "outcome") as where:
        scores = outcome(result, agents)
    if (problem := _problem(scores, sides)) is not None:
        raise MatchmakerFailed(where, problem)
    return tuple(float(scores[name]) for name in sides.names)


def _problem(scores: Any, sides: Sides) -> str | None:
    example = ", ".join(f"{name!r}: {score}" for name, score in zip(sides.names, (1.0, 0.0, 0.0), strict=False))
    expected = f"not a score for each side, such as {{{example}}}"
    if not isinstance(scores, Mapping) or set(scores) != set(sides.names):
        return f"it gave {scores!r:.200}, {expected}"
    for name, score in scores.items():
        try:
            is_finite = math.isfinite(score)
        except TypeError:
            is_finite = False
        if not is_finite:
            return f"it gave side {name!r} the score {score!r:.80}, which is no finite number"
    return None


def trial_result(sides: Sides) -> EpisodeResult:
    """Return the result of an invented game in which every agent's return is 0, to try an outcome on."""
    agents = [agent for role in sides.roles for agent in role.agents]
    return EpisodeResult(env=0, episode=0, env_steps=1, returns=dict.fromkeys(agents, 0.0), matchup={})
