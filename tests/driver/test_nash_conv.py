"""NashConv of leagues in Kuhn poker, compared with its normal form; refusals; and equal reports after a resume."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marlflow.algorithms.recurrent_ppo import RecurrentPPO
from marlflow.checks.leagues import information_states
from marlflow.checks.validation import ready
from marlflow.config.experiment import Env, Evaluation, Experiment, Log, Policy
from marlflow.driver.nash_conv import MemberWeights, SolutionNashConv
from marlflow.league import PSRO, AlphaStar, League, NaiveSelfPlay, SnapshotRules
from marlflow.league.members import Members
from marlflow.policy.recurrent import GRU
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.watching import reports
from tests.league.games import kuhn, nash_conv
from tests.league.population import PAIR, matchmaker_of, members_of
from tests.league.runs import MAIN, league_run
from tests.runtime.small_runs import SMALL, SMALL_DQN
from tests.sentences import wrong_with

KUHN = Env("openspiel", {"game": "kuhn_poker"}, num_envs=4)


def kuhn_run(env_steps: int, league: League, **changes: Any) -> Experiment:
    settings: dict[str, Any] = {"env": KUHN, "evaluation": Evaluation(episodes=0), "log": Log(every_env_steps=100)}
    return league_run(league, env_steps, **{**settings, **changes})


def bets(actor: Any) -> np.ndarray:
    """The probability to bet of each player, with each card, at the first and second of its situations: [2, 6]."""
    chances = np.zeros((2, 6))
    for player, card, situation in product(range(2), range(3), range(2)):
        obs = np.zeros((1, 11), np.float32)
        obs[0, player] = obs[0, 2 + card] = 1.0
        # Moves so far, each a pass or a bet: none, or pass and bet, before player 0; one of both before player 1.
        moves = ([], [5, 8]) if player == 0 else ([5], [6])
        obs[0, moves[situation]] = 1.0
        chances[player, 2 * card + situation] = actor.probabilities(obs, np.ones((1, 2), bool), "sampled")[0, 1]
    return chances


def mixed(chances: np.ndarray) -> np.ndarray:
    """The mixture of pure strategies [64] that plays like these probabilities to bet, [6]."""
    return np.array([np.prod(np.where(bits, chances, 1 - chances)) for bits in product((0, 1), repeat=6)])


def test_it_is_that_of_the_mixture_in_normal_form() -> None:
    spec = ready(kuhn_run(100, League())).spec
    members = members_of({"main": 2})
    generator = np.random.default_rng(3)
    size = len(spec.policies["main"].actor().flat())  # type: ignore[attr-defined]
    weights = {name: generator.normal(size=size + 7).astype(np.float32) for name in ("main@1", "main@2", "main")}
    # Published parameters may end with a critic's, here 7 numbers.
    computation = SolutionNashConv(spec, information_states(KUHN), "sampled")
    solution = [{"main@1": 0.25, "main@2": 0.75}, {"main@2": 0.5, "main": 0.5, "main@1": 0.0}]
    for attempt in range(2):
        tables = {}
        for name, flat in weights.items():
            actor: Any = spec.policies["main"].actor()
            actor.load_flat(flat[:size])
            tables[name] = bets(actor)
        mixtures = [
            sum(weight * mixed(tables[name][player]) for name, weight in mixture.items())
            for player, mixture in enumerate(solution)
        ]
        found = computation.of(members, solution, lambda name: MemberWeights(weights[name], {}))
        assert found == pytest.approx(nash_conv(kuhn(), *mixtures), abs=1e-6), attempt
        assert found > 0.1
        # A live policy learns on.
        weights["main"] = generator.normal(size=size).astype(np.float32)


def test_the_solution_is_what_the_mode_says_or_the_live_policies() -> None:
    assert matchmaker_of(members_of({"main": 2, "other": 0}), NaiveSelfPlay()).solution() == [
        {"main": 0.5, "other": 0.5},
        {"main": 0.5, "other": 0.5},
    ]
    roles = {"exploiter": "main_exploiter"}
    assert matchmaker_of(members_of({"main": 2, "exploiter": 0}), AlphaStar(roles)).solution() == [{"main": 1.0}] * 2  # type: ignore[arg-type]
    mode = PSRO()
    matchmaker = matchmaker_of(members_of({"main": 2}), mode)
    assert matchmaker.solution() == [{"main": 1.0}] * 2
    mode.meta = [{"main@1": 1.0}, {"main@2": 0.5, "main@1": 0.5}]
    assert matchmaker.solution() == mode.meta
    assert matchmaker.meta_strategies == {"player_0": mode.meta[0], "player_1": mode.meta[1]}
    fixed = Members(PAIR, {"main": ["player_0"], "random": ["player_1"]}, live=["main"])
    assert matchmaker_of(fixed, NaiveSelfPlay()).solution() == [{"main": 1.0}, {"random": 1.0}]


PSRO_LEAGUE = League(
    PSRO(solver="uniform", agent_steps=150, games=4),
    snapshots=SnapshotRules(every_agent_steps=None),
    nash_conv_every_env_steps=200,
)


def test_a_run_reports_it_when_it_is_due_and_at_the_end_and_goes_on_as_it_would_have(tmp_path: Path) -> None:
    resumed = resumes_exactly(kuhn_run(600, PSRO_LEAGUE), tmp_path, 300)
    first, *_, last = leagues = [report["league"] for report in reports(resumed.whole)]
    at = [league["nash_conv_env_steps"] for league in leagues]
    assert at == sorted(at)
    assert len(set(at)) >= 4, "one at the first round, three at 200, 400 and 600 env steps"
    assert all(0.0 <= league["nash_conv"] <= 4.0 for league in leagues)
    assert last["nash_conv_s"] > first["nash_conv_s"] > 0.0
    roles = last["meta"]
    assert set(roles) == {"player_0", "player_1"}
    assert all(sum(mixture.values()) == pytest.approx(1.0) for mixture in roles.values())


def unchanged(env: Any) -> Any:
    return env


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"env": Env("connect_four", num_envs=4)}, "is no game of OpenSpiel; NashConv is for OpenSpiel's games"),
        (
            {"env": Env("openspiel", {"game": "connect_four"}, num_envs=4)},
            "a walk through all of game 'connect_four', which has more than 200,000 histories",
        ),
        ({"env": replace(KUHN, wrappers=(unchanged,))}, "env.wrappers change what policies observe or do"),
        ({"env": Env("openspiel", {"max_env_steps": 5}, num_envs=4)}, "env.max_env_steps changes how the game ends"),
        (
            {"policies": {"main": Policy(RecurrentPPO(), GRU(hidden_size=8))}},
            "policy 'main' (recurrent_ppo) has a memory",
        ),
    ],
    ids=["not_openspiel", "large", "wrappers", "truncated", "memory"],
)
def test_it_is_refused_with_one_sentence_where_it_cannot_be_computed(changes: dict[str, Any], problem: str) -> None:
    (text,) = wrong_with(kuhn_run(100, replace(PSRO_LEAGUE, matchmaker=NaiveSelfPlay()), **changes))
    assert text.startswith("league.nash_conv_every_env_steps: ")
    assert problem in text
    assert text.endswith("; or set it to null")


def test_value_based_policies_and_ppo_are_accepted() -> None:
    policies = {"main": MAIN, "rival": Policy(SMALL_DQN, SMALL)}
    experiment = kuhn_run(100, replace(PSRO_LEAGUE, matchmaker=NaiveSelfPlay()), policies=policies)
    assert wrong_with(experiment) == []
