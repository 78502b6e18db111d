"""What a central critic cannot have is refused before the start, with the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.config.construct import build
from marlflow.env.games import cartpole_team
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.env.wrappers.shipped import joint_state
from tests.runtime.small_runs import small_run
from tests.sentences import wrong_with

TEAM = mf.Env(cartpole_team.parallel_env, {"max_cycles": 50}, num_envs=4)
IN_TURNS = mf.Env(cartpole_team.env, {"max_cycles": 50}, num_envs=4)
SMALL = {"batch_agent_steps": 200, "epochs": 1, "minibatch_agent_steps": 64}


def experiment(algorithm: Any, env: mf.Env = TEAM, model: Any = None, **changes: Any) -> mf.Experiment:
    policies = {"team": mf.Policy(algorithm, model or mf.MLP((8,)), **changes)}
    return small_run(env=env, policies=policies, mapping=[mf.Rule("*", "team")], env_steps=200)


def refused(algorithm: Any, env: mf.Env = TEAM, **changes: Any) -> str:
    (problem,) = wrong_with(experiment(algorithm, env, **changes))
    return problem


def wrapped(env: mf.Env) -> mf.Env:
    return mf.Env(env.factory, env.arguments, (joint_state,), num_envs=4)


def test_no_state_names_the_wrapper_that_makes_one_and_it_does() -> None:
    assert refused(mf.MAPPO(**SMALL)) == (
        "policy 'team' (mappo) has a critic that sees state (critic_sees), and the environment has no state() of "
        "numbers; add wrappers=joint_state, which makes one of all agents' observations, or leave state out"
    )
    ready(experiment(mf.MAPPO(**SMALL), wrapped(TEAM)))


@pytest.mark.parametrize(
    ("critic_sees", "said"),
    [
        ((), "sees nothing (critic_sees is empty); give it some of state, obs and agent"),
        (("obs", "agent", "obs"), "sees obs 2 times (critic_sees); name each once"),
    ],
)
def test_a_list_without_sense_is_refused(critic_sees: Any, said: str) -> None:
    assert said in refused(mf.PPO(**SMALL, critic_sees=critic_sees))


def test_unknown_names_are_refused_with_the_near_one() -> None:
    values = {"_target_": "marlflow.PPO", "critic_sees": ["stat", "obs"]}
    problems: list[str] = []
    build(values, "policies.cart.algorithm", problems)
    assert problems == [
        "policies.cart.algorithm.critic_sees[0] must be one of state, obs, agent, not 'stat'; did you mean 'state'?"
    ]
    assert "critic_sees[0] must be one of state, obs, agent" in refused(mf.PPO(critic_sees=("stat",)))  # type: ignore[arg-type]


def test_a_shared_torso_is_refused() -> None:
    assert refused(mf.PPO(**SMALL, shared_torso=True, critic_sees=("obs", "agent"))) == (
        "policy 'team' (ppo) cannot share layers of an actor, which sees obs, with a critic that sees obs, agent; "
        "set shared_torso=false"
    )


def test_deaths_in_turns_are_refused() -> None:
    assert "cannot bootstrap at a death (bootstrap_at_death)" in refused(
        mf.PPO(**SMALL, bootstrap_at_death=True), IN_TURNS
    )


def test_records_have_no_states() -> None:
    offline = mf.OfflineData("nowhere")
    algorithm = mf.IMPALA(critic_sees=("obs", "agent"), bootstrap_at_death=True)
    found = wrong_with(experiment(algorithm, experience=offline))
    settings = [problem for problem in found if "learns from records, which have only" in problem]
    assert [problem.rpartition("algorithm.")[2] for problem in settings] == [
        "critic_sees at its default",
        "bootstrap_at_death at its default",
    ]


def test_a_memory_beside_a_joint_state_is_remarked() -> None:
    algorithm = mf.RecurrentPPO(**SMALL, critic_sees=("state",))
    (remark,) = ready(experiment(algorithm, wrapped(TEAM), mf.GRU(8, (8,)))).remarks
    assert remark.startswith("policy 'team': its critic has no memory, and the state of wrappers=joint_state")
    assert list(ready(experiment(mf.RecurrentPPO(**SMALL), wrapped(TEAM), mf.GRU(8, (8,)))).remarks) == []


class Growing(CartPoleTeam):
    """Its state has one more number at each env step."""

    def state(self) -> Any:
        return np.zeros(1 + self._cycles, np.float32)


class Undeclared(CartPoleTeam):
    """Names no agents beforehand."""

    def __init__(self) -> None:
        super().__init__(2, 20)
        self._names = self.possible_agents
        del self.possible_agents

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.possible_agents = self._names
        found = super().reset(seed, options)
        del self.possible_agents
        return found


def test_a_state_of_changing_shape_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(mf.StageFailed, match=r"the state has shape \(2,\), not \(1,\)"):
        mf.train(experiment(mf.PPO(**SMALL, critic_sees=("state",)), mf.Env(Growing, num_envs=4)), tmp_path)


def test_agents_without_numbers_cannot_be_seen() -> None:
    assert "no possible_agents to number" in refused(
        mf.PPO(**SMALL, critic_sees=("obs", "agent")), mf.Env(Undeclared, num_envs=4)
    )


@pytest.mark.parametrize("env", [TEAM, IN_TURNS], ids=["parallel", "aec"])
def test_it_runs_in_both_kinds_of_environments(env: mf.Env, tmp_path: Path) -> None:
    mf.train(experiment(mf.MAPPO(**SMALL), wrapped(env)), tmp_path)


def test_an_opponent_needs_no_state_of_its_own() -> None:
    """Only a learner has a critic: elsewhere an actor is made without one."""
    spec = ready(experiment(mf.MAPPO(**SMALL), wrapped(TEAM))).spec.policies["team"]
    without_state = mf.MAPPO(**SMALL).actor(ready(experiment(mf.PPO())).spec.policies["team"].spaces, mf.MLP((8,)), 0)
    np.testing.assert_array_equal(spec.actor().flat().shape, without_state.flat().shape)  # type: ignore[attr-defined]
