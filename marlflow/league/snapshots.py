"""Rules that say when a snapshot of a live policy is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from marlflow.league.payoffs import Payoffs


@dataclass(frozen=True)
class SnapshotRules:
    """When a snapshot of each live policy is taken; any of the rules suffices, None turns one off.

    `at_start`: its initial parameters. `every_agent_steps`: agent steps since the last snapshot. `win_rate`: the
    probability to win against each snapshot that it can meet, each after at least `min_games` games, or in any case
    `timeout_agent_steps` after the last. `acts`: how snapshots choose actions in evaluation games; `auto` is as the
    algorithm's policies are meant, greedy for value-based ones and sampled for all others.
    """

    at_start: bool = True
    every_agent_steps: int | None = 50_000
    win_rate: float | None = None
    min_games: int = 20
    timeout_agent_steps: int | None = None
    acts: Literal["auto", "sampled", "greedy"] = "auto"

    def holds(self, policy: str, agent_steps: int, is_first: bool, rivals: Sequence[str], payoffs: Payoffs) -> bool:
        """Return whether a snapshot of `policy` is due, `agent_steps` after its last one, or after the start."""
        if is_first and self.at_start:
            return True
        return self._by_steps(agent_steps) or self._by_wins(policy, rivals, payoffs)

    def _by_steps(self, agent_steps: int) -> bool:
        limits = (self.every_agent_steps, self.timeout_agent_steps)
        return any(limit is not None and agent_steps >= limit for limit in limits)

    def _by_wins(self, policy: str, rivals: Sequence[str], payoffs: Payoffs) -> bool:
        if self.win_rate is None or not rivals:
            return False
        return all(
            payoffs.games(policy, rival) >= self.min_games and payoffs.win_probability(policy, rival) > self.win_rate
            for rival in rivals
        )
