"""The cases of benchmarks/team_bars.py: what is trained on which game, and what must come out, or must not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.particle_cases import PARTICLE_CASES
from benchmarks.team_answers import BOTH, CLIMBING, additive_fit
from benchmarks.team_case import Case, learner_of, learns_with, on_game
from benchmarks.team_values import fits, relay_error, two_step_fits

_SHORT = (
    "env.num_envs=8",
    "rollouts.num_workers=1",
    "rollouts.fragment_env_steps=128",
    "checkpoint.every_env_steps=null",
)
# Projections onto the values that an algorithm can represent need all joint actions to be equally frequent, errors to
# be squared whatever their size, and gradients that are not clipped.
_UNIFORM = {
    "epsilon": 1.0,
    "huber_delta": 1e6,
    "max_grad_norm": 1e6,
    "n_step": 1,
    "batch_agent_steps": 256,
    "train_every_agent_steps": 16,
    "target_every_updates": 50,
    "learning_starts_agent_steps": 500,
    "learning_rate": 1e-3,
}
_ON_POLICY = {
    "batch_agent_steps": 400,
    "minibatch_agent_steps": 200,
    "learning_rate": 1e-3,
    "entropy_coefficient": 0.01,
}


def _matrix(game: str, learns: Sequence[str], env_steps: int, *arguments: str) -> tuple[str, ...]:
    evaluated = ("evaluation.episodes=0", "evaluation.final_episodes=4", f"stop.env_steps={env_steps}")
    return (*on_game("matrix_games", f"game={game}", *arguments), *learns, *_SHORT, *evaluated)


def _one_agent(game: str, *arguments: str) -> tuple[str, ...]:
    """Return the words for a DQN that chooses all actions of the team together."""
    learns = learns_with("dqn", "team", **_UNIFORM)
    return _matrix(game, learns, 30_000, "as_one_agent=true", *arguments)


def _mixed(game: str, algorithm: str, *arguments: str, env_steps: int = 40_000) -> tuple[str, ...]:
    # Step sizes that fall to nearly nothing, so that the last batches do not move the values.
    falling = f"{{_target_: marlflow.Linear, start: 2e-3, end: 1e-5, agent_steps: {2 * env_steps}}}"
    return _matrix(game, learns_with(algorithm, **{**_UNIFORM, "learning_rate": falling}), env_steps, *arguments)


# VDN's values are at best the least-squares fit by sums of the agents' values.
_VDN_CASES = (
    Case("two_step_vdn", _mixed("two_step", "vdn"), 7, 7, probe=two_step_fits(additive_fit), error_at_most=0.25),
    Case("both_vdn", _mixed("both", "vdn"), 10, 10, probe=fits(additive_fit(BOTH)), error_at_most=0.25),
    Case("climbing_vdn", _mixed("climbing", "vdn"), 5, 5, probe=fits(additive_fit(CLIMBING)), error_at_most=1.5),
)
_MIXER_CASES = (
    *(replace(case, is_control=True) for case in _VDN_CASES),
    Case("two_step_qmix", _mixed("two_step", "qmix"), 8, 8, probe=two_step_fits(np.asarray), error_at_most=0.1),
    Case("both_qmix", _mixed("both", "qmix"), 10, 10, probe=fits(BOTH), error_at_most=0.1),
    Case("climbing_qmix", _mixed("climbing", "qmix"), 5, 6, is_control=True),
    # The best monotone fit of the game has its maximum at 2, with a sum of squares of 816.7; at -25, descent ends in a
    # local optimum of 1,032.7, whose maximum is 10.
    *(
        Case(
            f"penalty{k}_{name}",
            _mixed("penalty", name, f"penalty={k}", env_steps=20_000),
            2,
            10 if (k, name) == (-25, "qmix") else 2,
            is_control=True,
        )
        for k in (-25, -50, -100)
        for name in ("vdn", "qmix")
    ),
)
_MATRIX_CASES = (
    Case("two_step_dqn", _matrix("two_step", learns_with("dqn", **_UNIFORM), 30_000), 7, 7, is_control=True),
    Case("climbing_one_agent", _one_agent("climbing"), 11, 11, policy="team"),
    Case("climbing_dqn", _matrix("climbing", learns_with("dqn", **_UNIFORM), 30_000), 5, 5, is_control=True),
    Case("climbing_ppo", _matrix("climbing", learns_with("ppo", **_ON_POLICY), 40_000), 7, 7),
    Case("climbing_mappo", _matrix("climbing", learns_with("mappo", **_ON_POLICY), 40_000), 7, 7),
    *(
        Case(
            f"penalty{k}_dqn",
            _matrix("penalty", learns_with("dqn", **_UNIFORM), 30_000, f"penalty={k}"),
            2,
            2,
            is_control=True,
        )
        for k in (-25, -50, -100)
    ),
    Case("penalty-100_one_agent", _one_agent("penalty", "penalty=-100"), 10, 10, policy="team"),
    Case(
        "climbing_happo",
        (
            *_matrix("climbing", learner_of("happo", ("row", "column"), **_ON_POLICY), 40_000),
            "mapping=[{match: agent_0, policy: row}, {match: agent_1, policy: column}]",
        ),
        7,
        7,
        policy="row",
    ),
    Case(
        "penalty-100_mappo",
        _matrix("penalty", learns_with("mappo", **_ON_POLICY), 40_000, "penalty=-100"),
        2,
        2,
        is_control=True,
    ),
    Case("both_dqn", _matrix("both", learns_with("dqn", **_UNIFORM), 30_000), 10, 10),
)


def _sacrifice(algorithm: str, **settings: object) -> tuple[str, ...]:
    learns = learns_with(algorithm, "team", **settings)
    evaluated = ("evaluation.episodes=0", "evaluation.final_episodes=4", "stop.env_steps=10000")
    return (*on_game("sacrifice"), *learns, "mapping=[{match: '*', policy: team}]", *_SHORT, *evaluated)


_SACRIFICE_SETTINGS = {"batch_agent_steps": 200, "minibatch_agent_steps": 100, "learning_rate": 1e-3}
_OF_TEAM: dict[str, Any] = {"metric": "eval_team_return_mean", "policy": "team"}
_SACRIFICE_CASES = (
    *(
        Case(
            f"sacrifice_{name}", _sacrifice(name, **_SACRIFICE_SETTINGS, bootstrap_at_death="true"), 10, 10, **_OF_TEAM
        )
        for name in ("mappo", "ppo")
    ),
    *(
        Case(
            f"sacrifice_{name}_without_credit",
            _sacrifice(name, **_SACRIFICE_SETTINGS),
            2,
            2,
            is_control=True,
            **_OF_TEAM,
        )
        for name in ("mappo", "ppo")
    ),
    Case("sacrifice_qmix", _sacrifice("qmix", **_UNIFORM, team_reward="sum"), 10, 10, **_OF_TEAM),
)

_RECALL = (*on_game("recall"), *_SHORT, "evaluation.episodes=0", "evaluation.final_episodes=400")
_RECALL_SETTINGS = {
    "batch_agent_steps": 800,
    "learning_rate": 3e-3,
    "entropy_coefficient": 0.01,
    "critic_sees": "[state]",
}
_RECALL_QMIX = {
    "sequence_agent_steps": 6,
    "burn_in_agent_steps": 0,
    "td_lambda": 0.8,
    "batch_agent_steps": 768,
    "train_every_agent_steps": 48,
    "learning_starts_agent_steps": 2_000,
    "target_every_updates": 50,
    "learning_rate": 1e-3,
    "epsilon": "{_target_: marlflow.Linear, start: 1.0, end: 0.05, agent_steps: 60000}",
}
_RECALL_CASES = (
    Case(
        "recall_recurrent_qmix",
        (
            *_RECALL,
            *learns_with("qmix", **_RECALL_QMIX),
            "model@policies.agent.model=gru",
            "stop.env_steps=50000",
        ),
        1,
        1,
    ),
    Case(
        "recall_recurrent_mappo",
        (
            *_RECALL,
            *learns_with(
                "recurrent_ppo",
                **_RECALL_SETTINGS,
                parts="{values: {_target_: marlflow.PopArt}}",
                epochs=5,
                minibatch_agent_steps=400,
            ),
            "stop.env_steps=40000",
        ),
        1,
        1,
    ),
    Case(
        "recall_mappo",
        (*_RECALL, *learns_with("mappo", **_RECALL_SETTINGS, minibatch_agent_steps=256), "stop.env_steps=40000"),
        high=0.35,
        is_control=True,
    ),
)

_RELAY = {
    **_UNIFORM,
    "batch_agent_steps": 512,
    "train_every_agent_steps": 8,
    "target_every_updates": 100,
    "discount": 0.9,
    "epsilon": "{_target_: marlflow.Linear, start: 1.0, end: 0.3, agent_steps: 50000}",
    "learning_rate": "{_target_: marlflow.Linear, start: 2e-3, end: 2e-5, agent_steps: 130000}",
}
_RELAY_CASES = (
    Case(
        "relay_qmix",
        (
            *on_game("relay"),
            "policy@policies.member=qmix",
            *(f"policies.member.algorithm.{name}={value}" for name, value in _RELAY.items()),
            *_SHORT,
            "evaluation.episodes=0",
            "evaluation.final_episodes=4",
            "stop.env_steps=100000",
        ),
        metric="eval_team_return_mean",
        policy="member",
        probe=relay_error,
        error_at_most=0.02,
    ),
)

_ALL = (
    *_MATRIX_CASES,
    *_MIXER_CASES,
    *_RELAY_CASES,
    *_SACRIFICE_CASES,
    *_RECALL_CASES,
    *PARTICLE_CASES,
)
CASES = {case.name: case for case in _ALL}
