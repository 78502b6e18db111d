"""Who plays whom, and what is checked before a run, from Python."""

import dataclasses
from typing import Any

import pytest
from gymnasium.spaces import Box

from marlflow.algorithms.dqn import DQN
from marlflow.algorithms.ppo import PPO
from marlflow.algorithms.scripted import Random
from marlflow.base.errors import ConfigInvalid
from marlflow.env.cartpole_team import CartPoleTeam
from marlflow.experiment.experiment import Env, Experiment, Policy, PolicyStop, Stop
from marlflow.experiment.ready import problems_of, ready
from marlflow.policy.torso import CNN
from marlflow.rollout.mapping import Rule
from tests.experiment.composition import algorithms


class TwoTeams(CartPoleTeam):
    """Agents of two groups, one of them without a number, and one that acts with a force."""

    def __init__(self) -> None:
        super().__init__(num_agents=4)
        renamed = ["fox_0", "fox_11", "hen", "farmer_2"]
        self._carts = dict(zip(renamed, self._carts.values(), strict=True))
        self.possible_agents = renamed

    def action_space(self, agent: str) -> Any:
        return Box(-1.0, 1.0, (2,)) if agent == "farmer_2" else super().action_space(agent)


FARM = Experiment(Env(TwoTeams))


def _problems(**changes: Any) -> list[str]:
    return problems_of(dataclasses.replace(FARM, **changes))[1]


def test_without_a_mapping_each_group_is_played_by_the_policy_of_its_name_or_by_the_default() -> None:
    made = ready(dataclasses.replace(FARM, policies={"fox": Policy(DQN())}, default_policy=Policy(PPO(epochs=3))))
    assert made.agents == ("fox_0", "fox_11", "hen", "farmer_2")
    assert made.spec.mapping == {"fox_0": "fox", "fox_11": "fox", "hen": "hen", "farmer_2": "farmer"}
    assert algorithms(made) == {"fox": "dqn", "hen": "ppo", "farmer": "ppo"}
    assert made.spec.policies["hen"].algorithm == PPO(epochs=3)


def test_with_rules_only_they_count() -> None:
    rules = [Rule("farmer_*", "human"), Rule("*", "animals")]
    made = ready(dataclasses.replace(FARM, mapping=rules, policies={"animals": Policy(DQN()), "human": Policy()}))
    assert made.spec.mapping == {"fox_0": "animals", "fox_11": "animals", "hen": "animals", "farmer_2": "human"}
    assert algorithms(made) == {"animals": "dqn", "human": "ppo"}


def test_all_problems_of_policies_are_found_at_once() -> None:
    problems = _problems(
        policies={"fox": Policy(DQN(), model=CNN()), "farmer": Policy(DQN(n_step=0)), "hne": Policy(Random())},
        stop=Stop(),
    )
    assert [problem.partition(":")[0] for problem in problems[:2]] == [
        "policy 'hne' plays no agent",
        "nothing ends this run; set stop.env_steps, stop.time_s or stop.policies.<id>.return_mean",
    ]
    assert problems[0].endswith("; did you mean 'hen'?")
    assert problems[2:] == [
        "policy 'fox' (dqn): a CNN sees [height, width, channels], not observations of shape (4,); use MLP",
        "policy 'farmer' (dqn) cannot act in Box(2,) of agent 'farmer_2'; use ppo",
        "policy 'farmer' (dqn) needs n_step of at least 1, not 0",
    ]


def test_agents_of_one_policy_need_the_same_spaces() -> None:
    rules, policies = [Rule("*", "all")], {"all": Policy()}
    assert _problems(mapping=rules, policies=policies) == [
        "policy 'all' plays 'fox_0' and 'farmer_2', which do Discrete(2) and Box(2,); "
        "agents of one policy need the same spaces, so give them policies of their own"
    ]


def test_a_run_may_end_by_the_stops_of_its_policies_alone() -> None:
    ending = Policy(stop=PolicyStop(agent_steps=100))
    assert _problems(stop=Stop(), default_policy=ending) == []
    one_endless = _problems(stop=Stop(), default_policy=ending, policies={"hen": Policy()})
    assert [problem.split(";")[0] for problem in one_endless] == ["nothing ends this run"]


def test_an_environment_that_fails_hides_no_other_problem() -> None:
    problems = _problems(env=Env("nowhere.env", copies=0), mapping=[Rule("*", "x")], stop=Stop(policies={"y": 1.0}))
    assert [problem.split(";")[0] for problem in problems] == [
        "environment nowhere.env cannot be imported: No module named 'nowhere'",
        "env.copies must be at least 1, not 0",
        "stop.policies.y: there is no policy 'y'",
    ]


def test_a_callable_that_makes_no_environment_is_named() -> None:
    assert _problems(env=Env(dict)) == ["dict makes a dict, not a PettingZoo AECEnv or ParallelEnv"]


def test_ready_raises_what_problems_of_says() -> None:
    broken = dataclasses.replace(FARM, env=Env(TwoTeams, copies=0))
    with pytest.raises(ConfigInvalid) as caught:
        ready(broken)
    assert list(caught.value.problems) == problems_of(broken)[1] != []
