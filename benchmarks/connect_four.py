"""Games of connect four between the members of runs and scripted players, in both seats, with confidence intervals.

All games of a call are played by one rollout worker, 64 at a time. Each pair plays half of its games in each seat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np

from marlflow.batches.items import Weights
from marlflow.config.checked import CheckedExperiment
from marlflow.policy.actor import Actor, EvaluationMode
from marlflow.policy.connect_four import one_ply
from marlflow.policy.scripted import CallableActor, RandomActor
from marlflow.runs.saved_league import SavedRun, league_of, saved_run
from marlflow.runs.saved_policies import saved_policy
from marlflow.sampling import RolloutWorker, SamplerConfig
from marlflow.sampling.protocol import EvaluationRequest, FrozenPolicy

SEATS = ("player_0", "player_1")
_NUM_ENVS = 64
_Z = 1.96


@dataclass(frozen=True, slots=True)
class Score:
    """Wins, draws and losses of one member against another."""

    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        """The number of games."""
        return self.wins + self.draws + self.losses

    @property
    def win_rate(self) -> float:
        """The share of games won, a draw being half a win."""
        return (self.wins + self.draws / 2) / self.games

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of Wilson (1927) for the win rate.

        Half a win for a draw has less variance than a win or a loss, so with draws the interval is too wide.

        >>> [round(bound, 3) for bound in Score(9, 0, 1).interval]
        [0.596, 0.982]
        """
        n, p = self.games, self.win_rate
        middle = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
        half = _Z / (1 + _Z**2 / n) * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
        return middle - half, middle + half

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.win_rate:.3f} [{low:.3f}, {high:.3f}]"


@dataclass(slots=True)
class Table:
    """Players by name, `random` and `one_ply` among them, who can be seated against each other.

    `frozen` has members of runs, by names such as `pfsp/main@3`; all have the spaces and the model of `experiment`.
    """

    experiment: CheckedExperiment
    seed: int = 0
    frozen: dict[str, FrozenPolicy] = field(default_factory=dict)
    _next: int = 0

    def add(self, run: str, run_dir: Path, members: Sequence[str] | None = None) -> list[str]:
        """Add members of a run, all that learned by default; return their names."""
        saved = saved_run(run_dir)
        league = league_of(saved)
        (policy,) = league.members.incarnations
        names = [*league.members.snapshots, policy] if members is None else list(members)
        for member in names:
            self.frozen[f"{run}/{member}"] = FrozenPolicy(policy, _weights(saved, member))
        return [f"{run}/{member}" for member in names]

    def play(self, pairs: Sequence[tuple[str, str]], games: int, mode: EvaluationMode = "sampled") -> list[Score]:
        """Return the score of each pair's first player, over `games` games in each of the two seats."""
        seatings = [(pair, seats) for pair in pairs for seats in (pair, pair[::-1]) for _ in range(games)]
        matchups = [dict(zip(SEATS, seats, strict=True)) for _, seats in seatings]
        numbers = range(self._next, self._next + len(matchups))
        self._next += len(matchups)
        worker = self._worker()
        try:
            results = worker.evaluate(EvaluationRequest(numbers, {}, matchups, mode, self.frozen)).episodes
        finally:
            worker.close()
        counts = {pair: [0, 0, 0] for pair in pairs}
        for (pair, seats), result in zip(seatings, results, strict=True):
            won = result.returns[SEATS[seats.index(pair[0])]]
            counts[pair][1 - int(np.sign(won))] += 1
        return [Score(*counts[pair]) for pair in pairs]

    def _worker(self) -> RolloutWorker:
        spec = self.experiment.spec
        (policy,) = {name for name, one in spec.policies.items() if one.algorithm.capabilities.learns}
        spaces = spec.policies[policy].spaces
        factories: dict[str, Callable[[], Actor]] = {
            policy: spec.policies[policy].actor,
            "random": partial(RandomActor, spaces.action),
            "one_ply": partial(CallableActor, one_ply),
        }
        config = SamplerConfig(
            spec.make_env, range(_NUM_ENVS), None, seed=self.seed, spaces=dict.fromkeys(factories, spaces)
        )
        return RolloutWorker(config, factories)


def _weights(run: SavedRun, member: str) -> Weights:
    found = saved_policy(run, member)
    return Weights(found.description["version"], found.flat)


def round_robin(table: Table, names: Sequence[str], games: int) -> Mapping[tuple[str, str], Score]:
    """Return the score of each pair of `names`, over `games` games in each seat."""
    pairs = list(combinations(names, 2))
    return dict(zip(pairs, table.play(pairs, games), strict=True))


def standings(names: Sequence[str], scores: Mapping[tuple[str, str], Score]) -> Iterator[tuple[str, Score]]:
    """Yield each name with the sum of its games, best first."""
    sums = {}
    for name in names:
        own = [score if pair[0] == name else _mirrored(score) for pair, score in scores.items() if name in pair]
        sums[name] = Score(sum(s.wins for s in own), sum(s.draws for s in own), sum(s.losses for s in own))
    yield from sorted(sums.items(), key=lambda item: -item[1].win_rate)


def _mirrored(score: Score) -> Score:
    return Score(score.losses, score.draws, score.wins)
