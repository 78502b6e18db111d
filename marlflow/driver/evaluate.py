"""Evaluate the policies of a run: together, as they were trained, or against others by pair and by side."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from marlflow.base.awaiting import begun
from marlflow.base.errors import ConfigInvalid
from marlflow.checks.commands import runtime_of
from marlflow.config.checked import CheckedExperiment
from marlflow.config.description import plain
from marlflow.config.experiment import Env, Experiment
from marlflow.config.records import unlike_the_records
from marlflow.driver.entrants import Entrants
from marlflow.driver.evaluation_files import as_table
from marlflow.driver.saved_experiment import FinishedRun, finished_run, sides_or_none
from marlflow.driver.tournament import Tournament, found_pairs, pair_games, team_games
from marlflow.flow import Executor, Plan, source
from marlflow.league.comparison import ComparedGame, Comparison, PolicyReturns
from marlflow.league.sides import Sides
from marlflow.policy.actor import ASKED_MODES, AskedMode, EvaluationMode, EvaluationModes
from marlflow.runs.saved_runs import RANDOM, TEAM, Which, run_folder
from marlflow.runtime.spec import Resources, RunSpec
from marlflow.sampling.protocol import EvaluationRequest, Matchup
from marlflow.sampling.receipts import Evaluated, Fault

EPISODES, GAMES = 100, 400
"""The default numbers of episodes of a run's policies together, and of games of each pair."""
_MOST_GAMES = 10_000_000


@dataclass(frozen=True, repr=False)
class EvaluationResult:
    """All episodes of an evaluation, in order, and their results; printed, it is a table of them.

    `comparisons` are by pair of a member and an opponent; `returns` by policy, if the run's policies played together.
    `asked` is the number of episodes that were to be played. `about` describes each member as plain data, `checkpoint`
    is the folder that the run's own members are from. `mode` is the argument of `evaluate`, and `modes` how each policy
    acted: `sampled` if it drew random numbers, else `greedy`. `sides` is None if there is only one. `ended_s` is the
    time of its end, in seconds since the epoch.
    """

    sides: Sides | None
    seed: int
    mode: AskedMode | None
    checkpoint: Path
    about: Mapping[str, Mapping[str, Any]]
    games: Sequence[ComparedGame]
    comparisons: Sequence[Comparison]
    returns: Sequence[PolicyReturns]
    asked: int
    faults: Sequence[Fault]
    duration_s: float
    modes: Mapping[str, EvaluationMode]
    env: Mapping[str, Any]
    """Settings of the environment that are not the run's; all of them, with its factory as `_target_`, of another."""
    ended_s: float = field(default_factory=time.time)

    def __repr__(self) -> str:
        return as_table(self)

    @property
    def lost(self) -> int:
        """The number of episodes that broke, which are not counted."""
        return self.asked - len(self.games)

    @property
    def distinct(self) -> int:
        """The number of episodes that differ in their players, observations, actions or rewards."""
        return len(
            {(*game.seating.items(), game.fingerprint, *game.returns.items(), game.env_steps) for game in self.games}
        )


def evaluate(  # noqa: PLR0913, PLR0917  all but one have defaults
    run: Path | str,
    experiment: Experiment | None = None,
    members: str | Sequence[str] = (),
    against: str | Sequence[str] | None = None,
    episodes: int | None = None,
    seed: int = 0,
    mode: AskedMode | None = None,
    checkpoint: Which = None,
    workers: int = 0,
    trust: Collection[str] | None = (),
    strict: bool = False,
    env: Env | Mapping[str, Any] | None = None,
) -> EvaluationResult:
    """Evaluate the policies of the run in folder `run`, as they are at a `checkpoint` (see `load`).

    Without `against`, the run's policies play `episodes` (default 100) episodes together, with the agents that they had
    in training. In a league each episode has its own assignment of policies to agents, so there the policies play
    against `random`. With `against`, each of `members` (default: all policies that learn) plays `episodes` (default
    400) games against each opponent, equally often on each side that it can play, with the opponent on all other sides;
    `episodes` is rounded up to make that possible.

    Members and opponents are members or policies of the run, those that only play in its evaluation included; `random`;
    `team`, the run's policies as they were trained; `mixture`, the meta-strategy of a PSRO run; the folder of another
    run (or `gallery:<name>`), or `<folder>:<member>`; or an exported file.
    No policy explores. `mode` says how all act: `as_learned`, each as its algorithm learns to, sampled from a
    distribution or greedy; `greedy`; or `sampled`. Otherwise a run's policies together act as in the run's own
    evaluation, and in games against others as learned, unless the league's `snapshots.acts` says more.

    `workers=0` plays in this process, a higher number on Ray. The seeds differ from the seeds of training, and the same
    arguments play the same games. `experiment`, `trust` and `strict` are as for `load`. `env` has settings of the
    environment in place of the run's, as in its configuration: `{"batched": False, "arguments.penalty": 0.1}`. Or it is
    another environment, `Env("simple_spread")`, in which the policies have to fit. Without wrappers, it gets the run's.

    Raises InvalidInput with every problem before anything is played, and StageFailed if the environment breaks more
    often than the run tolerates.
    """
    began_s, base = time.perf_counter(), Path.cwd()
    if problems := list(_argument_problems(episodes, seed, workers, mode, env)):
        raise ConfigInvalid(problems)
    run_dir = run_folder(run, "evaluate", "evaluate")
    with finished_run(run_dir, checkpoint, experiment, trust, strict, env) as finished:
        _check_playable(finished)
        entrants = Entrants(finished.checked, finished.saved, sides_or_none(finished.checked), base, trust, strict)
        tournament = _tournament(finished, entrants, members, against, episodes, seed)
        of_run = None if tournament.team is None else finished.checked.experiment.evaluation.mode
        modes = tournament.modes(mode or of_run)
        evaluated = _play(finished.checked, tournament, modes, workers)
        played_in = plain(finished.checked.experiment.env if isinstance(env, Env) else env or {})
    return _result(tournament, evaluated, mode, finished.saved.checkpoint.path, began_s, played_in)


def _several(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def _argument_problems(episodes: int | None, seed: int, workers: int, mode: object, env: object) -> Iterator[str]:
    if not isinstance(env, Env | Mapping | None):
        yield f"env must be an Env, or settings by name, not {env!r}"
    limits: dict[str, tuple[Any, int, int]] = {"seed": (seed, 0, 2**63 - 1), "workers": (workers, 0, 10_000)}
    if episodes is not None:
        limits["episodes"] = (episodes, 1, _MOST_GAMES)
    for name, (value, low, high) in limits.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
            yield f"{name} must be a whole number from {low:,} to {high:,}, not {value!r}"
    if mode not in (None, *ASKED_MODES):
        yield f"mode must be one of {', '.join(ASKED_MODES)}, not {mode!r}"


def _check_playable(finished: FinishedRun) -> None:
    if problems := list(unlike_the_records(finished.checked.experiment.env)):
        raise ConfigInvalid(problems)
    if callable(finished.checked.spec.mapping):
        raise ConfigInvalid(
            ["the environment does not declare its agents, so no policy can be assigned to one; see possible_agents"]
        )


def _tournament(
    finished: FinishedRun,
    entrants: Entrants,
    members: str | Sequence[str],
    against: str | Sequence[str] | None,
    episodes: int | None,
    seed: int,
) -> Tournament:
    members = _several(members)
    checked, sides = finished.checked, sides_or_none(finished.checked)
    if against is None and (not members or list(members) == [TEAM]) and checked.spec.mapping is not None:
        team = entrants.own_team()
        return Tournament(sides, (), team, seed, team_games(team, checked.agents, episodes or EPISODES))
    if sides is None:
        raise ConfigInvalid([f"{checked.agents[0]!r} is the only side of this game, so it has no rival"])
    live = [name for name in checked.spec.learning if name in finished.saved.names]
    pairs = found_pairs(entrants, members or live, [RANDOM] if against is None else _several(against), sides)
    outcome = None if (league := checked.experiment.league) is None else league.outcome
    return Tournament(sides, pairs, None, seed, list(pair_games(pairs, sides, episodes or GAMES, seed)), outcome)


def _spec(spec: RunSpec, tournament: Tournament, workers: int) -> RunSpec:
    policies = {policy.name: policy for game in tournament.games for policy in map(game.policy, game.seating)}
    return replace(
        spec,
        policies=policies,
        learners={},
        mapping=None,
        num_envs=max(1, workers),
        num_workers=max(1, workers),
        num_referees=0,
        seed=tournament.worker_seed,
        rollout_placement=Resources(),
        inference=None,
        records={},
        offline=False,
        recording=None,
        opponents={},
        # RunSpec tolerates one fault more than a run does, because the driver counts that one.
        tolerated_faults=spec.tolerated_faults - 1,
    )


def _play(checked: CheckedExperiment, tournament: Tournament, modes: EvaluationModes, workers: int) -> Evaluated:
    settings = replace(checked.experiment.runtime, name="ray" if workers else "inline")
    spec = _spec(checked.spec, tournament, workers)
    runtime = runtime_of(replace(checked.experiment, runtime=settings))
    request = EvaluationRequest([game.number for game in tournament.games], {}, _matchups(tournament), modes)
    results: list[Evaluated] = []
    try:
        parts = runtime.start(spec)

        async def play() -> Evaluated:
            results.append(await parts.workers.evaluate(request))
            return results[0]

        def play_once() -> Evaluated | Awaitable[Evaluated]:
            if results:
                raise StopIteration
            return begun(play())

        # An executor, which also works in a notebook, where an event loop is running already.
        Executor(Plan("evaluate", source(play_once, name="Play")), lambda _plan, _item: None).run_sync()
    finally:
        runtime.close()
    return results[0]


def _result(
    tournament: Tournament,
    evaluated: Evaluated,
    mode: AskedMode | None,
    checkpoint: Path,
    began_s: float,
    env: Mapping[str, Any],
) -> EvaluationResult:
    played = tournament.played(evaluated.episodes)
    return EvaluationResult(
        tournament.sides,
        tournament.seed,
        mode,
        checkpoint,
        {label: one.about for label, one in tournament.entrants.items()},
        played,
        tournament.comparisons(played),
        tournament.returns(played),
        len(tournament.games),
        evaluated.faults,
        time.perf_counter() - began_s,
        tournament.acted(evaluated.acted),
        env,
    )


def _matchups(tournament: Tournament) -> list[Matchup]:
    # Games of one seating share a matchup, so that all are small when they are sent.
    shared: dict[tuple[str, ...], Matchup] = {}
    matchups = []
    for game in tournament.games:
        names = tuple(game.policy(agent).name for agent in game.seating)
        matchups.append(shared.setdefault(names, dict(zip(game.seating, names, strict=True))))
    return matchups
