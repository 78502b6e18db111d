"""What is said of several episodes together: returns with their spread, team returns, lengths."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import NamedTuple

from marlflow.base.serialization import Tree
from marlflow.config.opponents import Pairing
from marlflow.observe.report import EvaluationMetrics
from marlflow.policy.actor import EvaluationMode
from marlflow.sampling.receipts import EpisodeResult

WINDOW_EPISODES = 100


class EpisodeTotals(NamedTuple):
    """The part of some agents in one episode: their mean return, the sum of their returns, and its env steps."""

    return_mean: float
    team_return: float
    env_steps: int


def part_of_all(episode: EpisodeResult) -> EpisodeTotals | None:
    """The part of all agents together; None if nobody took part."""
    return _part([*episode.returns.values()], episode) if episode.returns else None


def parts_by_policy(episode: EpisodeResult) -> dict[str, EpisodeTotals]:
    """The part of each policy, and of each frozen version of one, that played in it."""
    returns: dict[str, list[float]] = {}
    for agent, total in episode.returns.items():
        returns.setdefault(episode.matchup[agent], []).append(total)
    return {policy: _part(totals, episode) for policy, totals in returns.items()}


def _part(returns: Sequence[float], episode: EpisodeResult) -> EpisodeTotals:
    return EpisodeTotals(fmean(returns), sum(returns), episode.env_steps)


def _window() -> deque[float]:
    return deque(maxlen=WINDOW_EPISODES)


@dataclass(slots=True)
class EpisodeWindow:
    """The parts of the last 100 training episodes."""

    returns: deque[float] = field(default_factory=_window)
    team_returns: deque[float] = field(default_factory=_window)
    env_steps: deque[float] = field(default_factory=_window)

    def add(self, part: EpisodeTotals) -> None:
        """One more episode has ended."""
        self.returns.append(part.return_mean)
        self.team_returns.append(part.team_return)
        self.env_steps.append(part.env_steps)

    @property
    def is_full(self) -> bool:
        """Whether 100 episodes have ended."""
        return len(self.returns) == WINDOW_EPISODES

    def state(self) -> Tree:
        """All of it, as a tree."""
        return {
            "returns": list(self.returns),
            "team_returns": list(self.team_returns),
            "env_steps": list(self.env_steps),
        }

    def load_state(self, state: Tree) -> None:
        """Goes on from `state`."""
        self.returns.extend(state["returns"])
        self.team_returns.extend(state["team_returns"])
        self.env_steps.extend(state["env_steps"])


def mean(values: Sequence[float] | deque[float]) -> float | None:
    """The mean; None of nothing."""
    return fmean(values) if values else None


def spread(values: Sequence[float] | deque[float]) -> float | None:
    """The population's standard deviation, as numpy's `std`; None of nothing."""
    if not values:
        return None
    middle = fmean(values)
    return math.sqrt(fmean((value - middle) * (value - middle) for value in values))


@dataclass(frozen=True, slots=True)
class EvaluationContext:
    """What was evaluated: how policies acted, the env steps of the run so far, and the version of each policy.

    `pairings` has who was evaluated against whom in each episode, by its number; empty: all policies in all episodes.
    """

    mode: EvaluationMode
    env_steps: int
    versions: Mapping[str, int]
    pairings: Sequence[Pairing] = ()


@dataclass(frozen=True, slots=True)
class PolicyEvaluation:
    """What an evaluation says of one policy; `PolicyMetrics` has what each figure is."""

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

    def state(self) -> Tree:
        """As a tree, of which `PolicyEvaluation(**state)` makes it again."""
        return {**asdict(self), "against": dict(self.against)}


def evaluation_metrics(evaluation: PolicyEvaluation | None) -> EvaluationMetrics:
    """As a report has it; all None where there is none."""
    if evaluation is None:
        return dict.fromkeys(EvaluationMetrics.__annotations__) | {"eval_against": {}}  # type: ignore[return-value]
    return {f"eval_{key}": value for key, value in evaluation.state().items()}  # type: ignore[return-value]


def policies_evaluated(episodes: Sequence[EpisodeResult], context: EvaluationContext) -> dict[str, PolicyEvaluation]:
    """What `episodes` say of each policy that was evaluated in them."""
    played: dict[str, list[tuple[EpisodeResult, EpisodeTotals]]] = {}
    for episode in episodes:
        for name, part in parts_by_policy(episode).items():
            if not context.pairings or context.pairings[episode.episode].policy == name:
                played.setdefault(name, []).append((episode, part))
    return {name: _evaluated(name, of_policy, context) for name, of_policy in played.items()}


def _evaluated(
    policy: str, played: Sequence[tuple[EpisodeResult, EpisodeTotals]], context: EvaluationContext
) -> PolicyEvaluation:
    returns = [part.return_mean for _, part in played]
    against: dict[str, list[float]] = {}
    if context.pairings:
        for episode, part in played:
            against.setdefault(context.pairings[episode.episode].opponent, []).append(part.return_mean)
    return PolicyEvaluation(
        return_mean=fmean(returns),
        return_std=spread(returns) or 0.0,
        team_return_mean=fmean(part.team_return for _, part in played),
        episode_env_steps_mean=fmean(part.env_steps for _, part in played),
        episodes=len(played),
        episodes_distinct=len({game(episode) for episode, _ in played}),
        mode=context.mode,
        env_steps=context.env_steps,
        version=context.versions.get(policy, 0),
        against={opponent: fmean(found) for opponent, found in against.items()},
    )


def game(episode: EpisodeResult) -> tuple[object, ...]:
    """What is equal for two evaluation episodes in which the same policies saw, did and received the same."""
    return (*episode.matchup.items(), episode.fingerprint, *episode.returns.items(), episode.env_steps)
