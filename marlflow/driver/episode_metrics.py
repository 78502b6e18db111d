"""Episode metrics of training and evaluation: returns, team returns, lengths.

`return_mean` is what RLlib calls episode_return_mean, and SB3 ep_rew_mean.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from marlflow.base.serialization import Tree
from marlflow.config.opponents import Pairing
from marlflow.observe.report import EvaluationMetrics
from marlflow.policy.actor import EvaluationMode, EvaluationModes, mode_in
from marlflow.sampling.receipts import EpisodeResult, Evaluated

WINDOW_EPISODES = 100


class EpisodeTotals(NamedTuple):
    """Mean and sum of the returns of some agents in one episode, its env steps, and the means of their info columns."""

    return_mean: float
    team_return: float
    env_steps: int
    infos: Mapping[str, float]


def totals_of_all_agents(episode: EpisodeResult) -> EpisodeTotals | None:
    """Return the totals of all agents; None if no agent took part."""
    return _totals([*episode.returns], episode) if episode.returns else None


def totals_of_policies(episode: EpisodeResult, policies: Collection[str]) -> EpisodeTotals | None:
    """Return the totals of the agents of `policies` together; None if none of them took part."""
    agents = [agent for agent in episode.returns if episode.matchup[agent] in policies]
    return _totals(agents, episode) if agents else None


def totals_by_policy(episode: EpisodeResult) -> dict[str, EpisodeTotals]:
    """Return the totals by policy or frozen version."""
    agents: dict[str, list[str]] = {}
    for agent in episode.returns:
        agents.setdefault(episode.matchup[agent], []).append(agent)
    return {policy: _totals(of_policy, episode) for policy, of_policy in agents.items()}


def fmean(values: Iterable[float]) -> float:
    """Return the mean as statistics.fmean does, infinite or NaN where a sum is larger than any float.

    >>> fmean([1.5, 2.0]), fmean([1e308, 1e308]), fmean([float("inf"), float("-inf")])
    (1.75, inf, nan)
    """
    several = list(values)
    try:
        return statistics.fmean(several)
    except (OverflowError, ValueError):
        if not several:
            raise
        return sum(several) / len(several)


def means_by_policy(episode: EpisodeResult, column: str) -> dict[str, float]:
    """Return the mean of an info column by policy, over its agents that have it."""
    found: dict[str, list[float]] = {}
    for agent, value in episode.infos.get(column, {}).items():
        found.setdefault(episode.matchup[agent], []).append(value)
    return {policy: fmean(values) for policy, values in found.items()}


def _totals(agents: Sequence[str], episode: EpisodeResult) -> EpisodeTotals:
    returns, infos = [episode.returns[agent] for agent in agents], {}
    for name, by_agent in episode.infos.items():
        if values := [by_agent[agent] for agent in agents if agent in by_agent]:
            infos[name] = fmean(values)
    return EpisodeTotals(fmean(returns), sum(returns), episode.env_steps, infos)


def last_of_each_kind(
    episodes: Sequence[EpisodeResult], count: int
) -> tuple[list[EpisodeResult], dict[frozenset[str], int]]:
    """Return the last `count` episodes of each kind, in their order, and the number of all episodes by players.

    Episodes of one kind have the same agents with the same policies, so they count in the same windows, in which only
    the last `count` would remain; of info columns that few episodes have, these. Players are a set of policies and
    versions.
    """
    last: list[EpisodeResult] = []
    totals: dict[tuple[Any, ...], int] = {}
    columns: dict[tuple[Any, ...], int] = {}
    # Episodes of a worker share their matchup, so it is read once.
    seats: dict[int, tuple[tuple[str, str], ...]] = {}
    for episode in reversed(episodes):
        if (seated := seats.get(id(episode.matchup))) is None:
            seated = seats[id(episode.matchup)] = tuple(episode.matchup.items())
        kind = (seated, *episode.returns)
        total = totals[kind] = totals.get(kind, 0) + 1
        is_kept = total <= count
        for column, by_agent in episode.infos.items():
            if by_agent:
                have_it = columns[kind, column] = columns.get((kind, column), 0) + 1
                is_kept |= have_it <= count
        if is_kept:
            last.append(episode)
    by_policies: dict[frozenset[str], int] = {}
    for (seated, *agents), total in totals.items():
        policies = frozenset(dict(seated)[agent] for agent in agents)
        by_policies[policies] = by_policies.get(policies, 0) + total
    return last[::-1], by_policies


def _window() -> deque[float]:
    return deque(maxlen=WINDOW_EPISODES)


@dataclass(slots=True)
class EpisodeWindow:
    """Totals of the last 100 training episodes."""

    returns: deque[float] = field(default_factory=_window)
    team_returns: deque[float] = field(default_factory=_window)
    env_steps: deque[float] = field(default_factory=_window)
    infos: dict[str, deque[float]] = field(default_factory=dict)
    """By info column; without the columns that no agent has given."""

    def add(self, totals: EpisodeTotals) -> None:
        """Append an episode."""
        self.returns.append(totals.return_mean)
        self.team_returns.append(totals.team_return)
        self.env_steps.append(totals.env_steps)
        for name, value in totals.infos.items():
            self.infos.setdefault(name, _window()).append(value)

    @property
    def is_full(self) -> bool:
        """Whether 100 episodes have ended."""
        return len(self.returns) == WINDOW_EPISODES

    def state(self) -> Tree:
        """Return the complete state."""
        return {
            "returns": list(self.returns),
            "team_returns": list(self.team_returns),
            "env_steps": list(self.env_steps),
            "infos": {name: list(values) for name, values in self.infos.items()},
        }

    def load_state(self, state: Tree) -> None:
        """Restore `state`."""
        self.returns.extend(state["returns"])
        self.team_returns.extend(state["team_returns"])
        self.env_steps.extend(state["env_steps"])
        for name, values in state["infos"].items():
            self.infos.setdefault(name, _window()).extend(values)


def mean(values: Sequence[float] | deque[float]) -> float | None:
    """Return the mean; None without values."""
    return fmean(values) if values else None


def spread(values: Sequence[float] | deque[float]) -> float | None:
    """Return the population standard deviation, as numpy's `std`; None without values."""
    if not values:
        return None
    center = fmean(values)
    return math.sqrt(fmean((value - center) * (value - center) for value in values))


@dataclass(frozen=True, slots=True)
class EvaluationContext:
    """The mode of each policy in an evaluation, the run's env steps, and each policy's version.

    `pairings` has the evaluated policy and its opponent by episode; empty: all policies play in all `episodes`.
    """

    modes: EvaluationModes
    env_steps: int
    versions: Mapping[str, int]
    pairings: Sequence[Pairing] = ()
    episodes: int = 0

    def asked_of(self, policy: str) -> int:
        """Return how many episodes of a policy were requested."""
        if not self.pairings:
            return self.episodes
        return sum(pairing.policy == policy for pairing in self.pairings)


@dataclass(frozen=True, slots=True)
class PolicyEvaluation:
    """The evaluation of one policy; `PolicyMetrics` documents the fields."""

    return_mean: float
    return_std: float
    team_return_mean: float
    episode_env_steps_mean: float
    episodes: int
    episodes_distinct: int
    mode: EvaluationMode
    env_steps: int
    version: int
    against: Mapping[str, float]
    infos: Mapping[str, float]
    episodes_asked: int | None = None

    def state(self) -> Tree:
        """Return the fields as a tree."""
        return {**asdict(self), "against": dict(self.against), "infos": dict(self.infos)}


def evaluation_metrics(evaluation: PolicyEvaluation | None) -> EvaluationMetrics:
    """Return an evaluation as report fields; all are None without one."""
    if evaluation is None:
        none: dict[str, Any] = {"eval_against": {}, "eval_infos": {}}
        return dict.fromkeys(EvaluationMetrics.__annotations__) | none  # type: ignore[return-value]
    return {f"eval_{key}": value for key, value in evaluation.state().items()}  # type: ignore[return-value]


def policies_evaluated(results: Evaluated, context: EvaluationContext) -> dict[str, PolicyEvaluation]:
    """Return the evaluation of each policy in the episodes of `results`."""
    played: dict[str, list[tuple[EpisodeResult, EpisodeTotals]]] = {}
    for episode in results.episodes:
        for name, totals in totals_by_policy(episode).items():
            # With opponents, an episode counts for the evaluated policy and not for its opponent.
            if not context.pairings or context.pairings[episode.episode].policy == name:
                played.setdefault(name, []).append((episode, totals))
    modes = {name: results.acted.get(name) or mode_in(context.modes, name, name) for name in played}
    return {name: _evaluated(name, of_policy, modes[name], context) for name, of_policy in played.items()}


def _evaluated(
    policy: str,
    played: Sequence[tuple[EpisodeResult, EpisodeTotals]],
    mode: EvaluationMode,
    context: EvaluationContext,
) -> PolicyEvaluation:
    returns = [totals.return_mean for _, totals in played]
    infos: dict[str, list[float]] = {}
    for _, totals in played:
        for name, value in totals.infos.items():
            infos.setdefault(name, []).append(value)
    against: dict[str, list[float]] = {}
    if context.pairings:
        for episode, totals in played:
            against.setdefault(context.pairings[episode.episode].opponent, []).append(totals.return_mean)
    return PolicyEvaluation(
        return_mean=fmean(returns),
        return_std=spread(returns) or 0.0,
        team_return_mean=fmean(totals.team_return for _, totals in played),
        episode_env_steps_mean=fmean(totals.env_steps for _, totals in played),
        episodes=len(played),
        episodes_distinct=len({game(episode) for episode, _ in played}),
        mode=mode,
        env_steps=context.env_steps,
        version=context.versions.get(policy, 0),
        against={opponent: fmean(returns) for opponent, returns in against.items()},
        infos={name: fmean(values) for name, values in infos.items()},
        episodes_asked=context.asked_of(policy),
    )


def game(episode: EpisodeResult) -> tuple[object, ...]:
    """Return a key that is equal for identical evaluation episodes."""
    return (*episode.matchup.items(), episode.fingerprint, *episode.returns.items(), episode.env_steps)
