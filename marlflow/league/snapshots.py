"""Rules that say when a snapshot of a live policy is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from marlflow.base.ranges import Count, ShareBelowOne, Steps
from marlflow.league.payoffs import Payoffs
from marlflow.policy.actor import AskedMode

_AUTO: Final = (1_000, 50_000)
"""Agent steps from one snapshot to the next, at least and at most."""


def share_of_run(
    steps: int | Literal["auto"] | None, env_steps: int | None, parts: int, bounds: tuple[int, int]
) -> int | None:
    """Return `steps`; for `auto`, one of `parts` equal parts of a run, within `bounds`.

    >>> share_of_run("auto", 100_000, 10, (1_000, 50_000)), share_of_run("auto", None, 10, (1_000, 50_000))
    (10000, 50000)
    """
    if steps != "auto":
        return steps
    least, most = bounds
    return most if env_steps is None else min(most, max(least, env_steps // parts))


@dataclass(frozen=True)
class SnapshotRules:
    """When a snapshot of each live policy is taken; any of the rules suffices, None turns one off.

    `at_start`: its initial parameters. `every_agent_steps`: agent steps since the last snapshot; `auto` is a tenth of
    the run's `stop.env_steps`, at least 1,000 and at most 50,000, which it is without one. `win_rate`: the
    probability to win against each snapshot that it can meet, each after at least `min_games` games, or in any case
    `timeout_agent_steps` after the last. `acts`: how snapshots choose actions in evaluation games; `auto` is as
    learned, greedy for value-based algorithms and sampled for all others.
    """

    at_start: bool = True
    every_agent_steps: Steps | Literal["auto"] | None = "auto"
    win_rate: ShareBelowOne | None = None
    min_games: Count = 20
    timeout_agent_steps: Steps | None = None
    acts: Literal["auto", "sampled", "greedy"] = "auto"

    @property
    def asked_mode(self) -> AskedMode:
        """How snapshots act, in the words of an evaluation."""
        return "as_learned" if self.acts == "auto" else self.acts

    def for_run(self, env_steps: int | None) -> SnapshotRules:
        """Return the rules with numbers, for a run of `env_steps`; None if these are not limited."""
        return replace(self, every_agent_steps=share_of_run(self.every_agent_steps, env_steps, 10, _AUTO))

    def holds(self, policy: str, agent_steps: int, is_first: bool, rivals: Sequence[str], payoffs: Payoffs) -> bool:
        """Return whether a snapshot of `policy` is due, `agent_steps` after its last one, or after the start."""
        if is_first and self.at_start:
            return True
        return self._by_steps(agent_steps) or self._by_wins(policy, rivals, payoffs)

    def _by_steps(self, agent_steps: int) -> bool:
        limits = (share_of_run(self.every_agent_steps, None, 1, _AUTO), self.timeout_agent_steps)
        return any(limit is not None and agent_steps >= limit for limit in limits)

    def _by_wins(self, policy: str, rivals: Sequence[str], payoffs: Payoffs) -> bool:
        if self.win_rate is None or not rivals:
            return False
        return all(
            payoffs.games(policy, rival) >= self.min_games and payoffs.win_probability(policy, rival) > self.win_rate
            for rival in rivals
        )
