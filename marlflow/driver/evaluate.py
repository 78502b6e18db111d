"""Evaluate members of a run against others: play their games, and count these by pair and by side."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from marlflow.base.awaiting import begun
from marlflow.base.errors import ConfigInvalid, InvalidInput
from marlflow.base.problems import Problem
from marlflow.base.random import episode_seed, key
from marlflow.config.checks import runtime_of
from marlflow.config.experiment import Experiment
from marlflow.config.opponents import RANDOM
from marlflow.config.validation import CheckedExperiment
from marlflow.driver.entrants import MIXTURE, Entrant, Entrants
from marlflow.driver.saved_experiment import checked_experiment
from marlflow.flow import Executor, Plan, source
from marlflow.league.comparison import ComparedGame, Comparison, comparison
from marlflow.league.sides import Sides, sides_of
from marlflow.policy.actor import EvaluationMode
from marlflow.runtime.saved_league import SavedRun, saved_run
from marlflow.runtime.spec import PolicySpec, Resources, RunSpec
from marlflow.sampling.episodes import EVALUATION
from marlflow.sampling.protocol import EvaluationRequest, Matchup
from marlflow.sampling.receipts import EpisodeResult, Evaluated, Fault

_MOST_GAMES = 10_000_000


@dataclass(frozen=True)
class EvaluationResult:
    """All games of an evaluation, in order, and their results by pair of a member and an opponent.

    `about` describes each member as plain data, `checkpoint` is the folder that the run's own members are from.
    """

    sides: Sides
    seed: int
    checkpoint: Path
    about: Mapping[str, Mapping[str, Any]]
    games: Sequence[ComparedGame]
    comparisons: Sequence[Comparison]
    faults: Sequence[Fault]
    duration_s: float


def evaluate(
    experiment: Experiment,
    run_dir: Path | str,
    members: Sequence[str] = (),
    against: Sequence[str] = (RANDOM,),
    games: int = 400,
    seed: int = 0,
    workers: int = 0,
    trust: Collection[str] | None = (),
    base: Path | str = ".",
) -> EvaluationResult:
    """Play `games` games of each of `members` (by default all policies that learn) against each of `against`.

    Both are members or policies of the run in `run_dir`, as they are in its newest whole checkpoint; `random`;
    `mixture`, the meta-strategy of a PSRO run; `<folder of a run>:<member>`; or an exported file, with paths from
    `base`. A member plays each side that it can equally often, the opponent all other sides; `games` is rounded up for
    that. They act without exploration: sampled from the learned distribution, or greedily if their league says so or
    their algorithm has no distribution. `workers` 0 plays in this process, more on Ray. Seeds are apart from those of
    training, and the same arguments play the same games. Classes outside marlflow are imported for members from
    elsewhere only if they are in `trust`; None is any.

    Raises InvalidInput with every problem before anything is played, and StageFailed if the environment breaks more
    often than the run tolerates.
    """
    began_s = time.perf_counter()
    if problems := list(_number_problems(games, seed, workers)):
        raise ConfigInvalid(problems)
    run = saved_run(Path(run_dir))
    checked = _playable_experiment(experiment, run)
    sides = _sides(checked)
    entrants = Entrants(checked, run, sides, Path(base), trust)
    live = [name for name in checked.spec.learning if name in run.names]
    pairs = _pairs(entrants, members or live, against, sides)
    tournament = _Tournament(sides, pairs, seed, list(_planned(pairs, sides, games, seed)))
    runtime = replace(experiment.runtime, name="ray" if workers else "inline")
    spec = _spec(checked.spec, tournament.games, seed, workers)
    evaluated = _play(spec, tournament.games, replace(experiment, runtime=runtime))
    return tournament.result(evaluated, run.checkpoint.path, time.perf_counter() - began_s)


def _number_problems(games: int, seed: int, workers: int) -> Iterator[str]:
    limits = {"games": (games, 1, _MOST_GAMES), "seed": (seed, 0, 2**63 - 1), "workers": (workers, 0, 10_000)}
    for name, (value, low, high) in limits.items():
        if not low <= value <= high:
            yield f"{name} must be a whole number from {low:,} to {high:,}, not {value:,}"


def _playable_experiment(experiment: Experiment, run: SavedRun) -> CheckedExperiment:
    checked = checked_experiment(experiment, run)
    if checked.spec.offline:
        raise ConfigInvalid([f"{run.run_dir} learned from recorded rows, without an environment to play in"])
    if callable(checked.spec.mapping):
        raise ConfigInvalid(
            ["the environment does not declare its agents, so nobody can be seated; see possible_agents"]
        )
    return checked


def _sides(checked: CheckedExperiment) -> Sides:
    league = checked.experiment.league
    sides, problems = sides_of(None if league is None else league.sides, checked.agents)
    if problems:
        raise ConfigInvalid([f"{checked.agents[0]!r} is the only side of this game, so nobody can play against it"])
    return sides


Pair = tuple[Entrant, Entrant]


def _pairs(entrants: Entrants, members: Sequence[str], against: Sequence[str], sides: Sides) -> list[Pair]:
    problems: list[Problem | str] = []
    found: dict[str, Entrant] = {}
    for name, labels in {"members": members, "against": against}.items():
        if not labels:
            problems.append(f"{name} is empty; name at least one, {RANDOM} or {MIXTURE} say")
        problems += [f"{name} has {one!r} more than once" for one in dict.fromkeys(labels) if labels.count(one) > 1]
    for label in dict.fromkeys([*members, *against]):
        try:
            found[label] = entrants.find(label)
        except InvalidInput as error:
            problems += error.problems
    pairs = [(found[one], found[other]) for one, other in product(members, against) if {one, other} <= found.keys()]
    problems += [problem for pair in pairs if (problem := _seating_problem(*pair, sides)) is not None]
    if problems:
        raise ConfigInvalid(list(dict.fromkeys(problems)))
    return pairs


def _seating_problem(member: Entrant, opponent: Entrant, sides: Sides) -> str | None:
    if _sides_in_turn(member, opponent, sides):
        return None
    return (
        f"{member.label!r} cannot be seated against {opponent.label!r}: one would have to play all agents of a side, "
        f"and the other all agents of all other sides; {member.label!r} can play {_playable(member)}, "
        f"{opponent.label!r} {_playable(opponent)}"
    )


def _playable(entrant: Entrant) -> str:
    return ", ".join(entrant.policies) or "no agent"


def _sides_in_turn(member: Entrant, opponent: Entrant, sides: Sides) -> list[int]:
    """Return the sides that `member` can play while `opponent` plays all others."""
    agents = [[agent for role in sides.of_side(side) for agent in sides.roles[role].agents] for side in _numbers(sides)]
    return [
        side
        for side in _numbers(sides)
        if member.plays(agents[side])
        and all(opponent.plays(of_other) for other, of_other in enumerate(agents) if other != side)
    ]


def _numbers(sides: Sides) -> range:
    return range(len(sides.names))


@dataclass(frozen=True, slots=True)
class _PlannedGame:
    """One game to be played: its episode number, and who plays each agent."""

    number: int
    member: str
    opponent: str
    side: int
    seating: Mapping[str, Entrant]

    def policy(self, agent: str) -> PolicySpec:
        return self.seating[agent].policies[agent]


@dataclass(frozen=True, slots=True)
class _Tournament:
    """The games of each pair, with environments seeded by `seed`."""

    sides: Sides
    pairs: Sequence[Pair]
    seed: int
    games: Sequence[_PlannedGame]

    def result(self, evaluated: Evaluated, checkpoint: Path, duration_s: float) -> EvaluationResult:
        """Return the games that were played, and what they say of each pair."""
        results = {result.episode: result for result in evaluated.episodes}
        played = [_compared(game, results[game.number], self.seed) for game in self.games if game.number in results]
        return EvaluationResult(
            self.sides,
            self.seed,
            checkpoint,
            {one.label: one.about for pair in self.pairs for whole in pair for one in (whole, *whole.everybody)},
            played,
            _comparisons(self.pairs, self.sides, self.games, played),
            evaluated.faults,
            duration_s,
        )


def _planned(pairs: Sequence[Pair], sides: Sides, games: int, seed: int) -> Iterator[_PlannedGame]:
    number = 0
    for member, opponent in pairs:
        in_turn = _sides_in_turn(member, opponent, sides)
        for _ in range(-(-games // len(in_turn))):
            for side in in_turn:
                generator = np.random.default_rng(key(seed, *b"mixture", number))
                seating: dict[str, Entrant] = {}
                for index, role in enumerate(sides.roles):
                    drawn = (member if role.side == side else opponent).drawn(index, generator)
                    seating |= dict.fromkeys(role.agents, drawn)
                yield _PlannedGame(number, member.label, opponent.label, side, seating)
                number += 1


def _worker_seed(seed: int) -> int:
    return key(seed, *b"evaluate") >> 33


def _spec(spec: RunSpec, planned: Sequence[_PlannedGame], seed: int, workers: int) -> RunSpec:
    policies = {policy.name: policy for game in planned for policy in map(game.policy, game.seating)}
    return replace(
        spec,
        policies=policies,
        learners={},
        mapping=None,
        num_envs=max(1, workers),
        num_workers=max(1, workers),
        num_referees=0,
        seed=_worker_seed(seed),
        rollout_placement=Resources(),
        inference=None,
        records={},
        recording=None,
        opponents={},
        # RunSpec has room for one fault more than a run tolerates, which the driver would count.
        tolerated_faults=spec.tolerated_faults - 1,
    )


def _play(spec: RunSpec, planned: Sequence[_PlannedGame], experiment: Experiment) -> Evaluated:
    runtime = runtime_of(experiment)
    episodes = [game.number for game in planned]
    shared: dict[tuple[str, ...], Matchup] = {}
    matchups = [_matchup(game, shared) for game in planned]
    modes: dict[str, EvaluationMode] = {
        game.policy(agent).name: entrant.mode for game in planned for agent, entrant in game.seating.items()
    }
    results: list[Evaluated] = []
    try:
        parts = runtime.start(spec)

        async def play() -> Evaluated:
            results.append(await parts.workers.evaluate(EvaluationRequest(episodes, {}, matchups, modes)))
            return results[0]

        def play_once() -> Evaluated | Awaitable[Evaluated]:
            if results:
                raise StopIteration
            return begun(play())

        # An executor, because it also runs in a notebook, whose event loop is running already.
        Executor(Plan("evaluate", source(play_once, name="Play")), lambda _plan, _item: None).run_sync()
    finally:
        runtime.close()
    return results[0]


def _matchup(game: _PlannedGame, shared: dict[tuple[str, ...], Matchup]) -> Matchup:
    # Games of one seating share a matchup, so that all are small when they are sent.
    names = tuple(game.policy(agent).name for agent in game.seating)
    return shared.setdefault(names, dict(zip(game.seating, names, strict=True)))


def _compared(game: _PlannedGame, result: EpisodeResult, seed: int) -> ComparedGame:
    return ComparedGame(
        game.member,
        game.opponent,
        game.side,
        episode_seed(_worker_seed(seed), EVALUATION, game.number),
        {agent: entrant.label for agent, entrant in game.seating.items()},
        dict(result.returns),
        result.env_steps,
    )


def _comparisons(
    pairs: Sequence[Pair], sides: Sides, planned: Sequence[_PlannedGame], played: Sequence[ComparedGame]
) -> list[Comparison]:
    asked: dict[tuple[str, str], int] = {}
    for game in planned:
        asked[game.member, game.opponent] = asked.get((game.member, game.opponent), 0) + 1
    by_pair: dict[tuple[str, str], list[ComparedGame]] = {pair: [] for pair in asked}
    for one in played:
        by_pair[one.member, one.opponent].append(one)
    names = [(member.label, opponent.label) for member, opponent in pairs]
    return [comparison(sides, *pair, by_pair[pair], asked[pair]) for pair in names]
