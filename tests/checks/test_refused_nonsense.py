"""Settings that are each in range, and make no sense together, are refused before anything starts, with a remedy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete

import marlflow as mf
from marlflow.checks.commands import check
from marlflow.checks.validation import ready
from marlflow.config.schema import read
from marlflow.runtime.resources import Machines
from tests.config.composition import prepared
from tests.runtime.small_runs import small_run
from tests.sentences import wrong_with

ALPHASTAR = ("env=rps", "league=alphastar", "policy@policies.main=ppo", "policy@policies.other=ppo")
MODE = "league.matchmaker"
EARLY = ("callback=early_stop", "callbacks.early_stop.metric=env_steps")
RESETS = (*ALPHASTAR, f"{MODE}.roles.other=main_exploiter")
NO_MACHINE = Machines([{"CPU": 2.0, "GPU": 0.0}], here=False)


def refusals(*overrides: str, machines: Machines | None = None) -> list[str]:
    job = prepared(*overrides)
    problems: list[str] = [*job.problems]
    experiment = read(job.config, problems)
    try:
        check(experiment, problems, machines)
    except mf.ConfigInvalid as error:
        return list(error.problems)
    return []


REFUSED = {
    # Names of policies and snapshots in a mode.
    "no such snapshot": (
        (*ALPHASTAR, f"{MODE}.reset_to=nothing"),
        "league.matchmaker.reset_to is 'nothing'; set it to initial, fresh, or the first snapshot of a policy, such as "
        "main@1",
    ),
    "snapshot of nobody": (
        (*ALPHASTAR, f"{MODE}.reset_to=typo@1"),
        "league.matchmaker.reset_to is 'typo@1', and there is no policy 'typo' that learns; the policies that learn "
        "are main, other",
    ),
    "a later snapshot": (
        (*RESETS, f"{MODE}.reset_to=main@7"),
        "league.matchmaker.reset_to is 'main@7', which may not exist when an exploiter begins again; set it to the "
        "first snapshot, main@1",
    ),
    "no first snapshot": (
        (*RESETS, f"{MODE}.reset_to=main@1", "league.snapshots.at_start=false"),
        "league.matchmaker.reset_to is 'main@1', which may not exist when an exploiter begins again; set "
        "league.snapshots.at_start=true",
    ),
    "another network": (
        (*RESETS, f"{MODE}.reset_to=main@1", "policies.other.model.hidden_sizes=[8]"),
        "league.matchmaker.reset_to is 'main@1', and policy 'main' has another network than 'other', which begins "
        "again from it; give both the same algorithm, model and spaces, or set league.matchmaker.reset_to=initial",
    ),
    "role of nobody": (
        (*ALPHASTAR, f"{MODE}.roles.typo=main_exploiter"),
        "league.matchmaker: roles names policy 'typo', which does not learn here; the policies that learn "
        "are main, other",
    ),
    "exploiters only": (
        (*ALPHASTAR, f"{MODE}.roles.main=league_exploiter", f"{MODE}.roles.other=main_exploiter"),
        "league.matchmaker: all policies that learn are exploiters (main, other), so there is no main to exploit; "
        "leave one out of league.matchmaker.roles, which makes it a main",
    ),
    "no main to exploit on the other side": (
        (
            *("env=simple_tag", "league=alphastar", f"{MODE}.roles.adversary=main_exploiter"),
            f"{MODE}.roles.agent=league_exploiter",
        ),
        "league.matchmaker: all policies that learn are exploiters (adversary, agent), so there is no main to exploit; "
        "leave one out of league.matchmaker.roles, which makes it a main",
    ),
    "no main as a rival": (
        (
            *("env=simple_tag", "league=alphastar", "policy@policies.adversary=ppo", "policy@policies.finder=ppo"),
            *("league.players.finder.plays=[adversary_*]", f"{MODE}.roles.finder=main_exploiter"),
            f"{MODE}.roles.agent=league_exploiter",
        ),
        "league.matchmaker: policy 'finder' is a main_exploiter, and no main plays against it; leave a rival of it out "
        "of league.matchmaker.roles, or make it a league_exploiter",
    ),
    "more than all games": (
        (*ALPHASTAR, f"{MODE}.pfsp=1", f"{MODE}.verify=1"),
        "league.matchmaker: pfsp (1) and verify (1) are shares of the same games, and sum to 2; lower one, so that "
        "they sum to at most 1",
    ),
    "a probability above 1": (
        ("env=rps", "league=pfsp", "league.snapshots.win_rate=1"),
        "league.snapshots.win_rate must be less than 1, not 1",
    ),
    # Callbacks.
    "reports": ((*EARLY, "callbacks.early_stop.reports=-4"), "callbacks.early_stop.reports must be at least 1, not -4"),
    "no reports": (
        (*EARLY, "callbacks.early_stop.reports=0"),
        "callbacks.early_stop.reports must be at least 1, not 0",
    ),
    "change": (
        (*EARLY, "callbacks.early_stop.min_change=-0.5"),
        "callbacks.early_stop.min_change must be at least 0, not -0.5",
    ),
    # Policies without a learner.
    "a member of nothing": (
        ("env=simple_tag", "policy@policies.agent=member"),
        "policies.agent.algorithm is null, which is for policies that a learner lists; choose one, "
        "policy@policies.agent=ppo, or list it: 'learners.<id>.policies=[agent]'",
    ),
    "a member of another": (
        (
            *("env=simple_tag", "learner@learners.team=qmix", "learners.team.policies=[adversary]"),
            "policy@policies.agent=member",
        ),
        "policies.agent.algorithm is null, which is for policies that a learner lists; choose one, "
        "policy@policies.agent=ppo, or list it: 'learners.<id>.policies=[agent]'",
    ),
    "everybody a member": (
        ("env=simple_tag", "policy@default_policy=member"),
        "default_policy.algorithm is null, and policies without settings of their own would have none; choose one, "
        "policy@default_policy=ppo: policies that a learner lists take only its model",
    ),
    # Costs.
    "no costs": (
        (
            "env=simple_tag",
            "policy@policies.agent=ppo",
            "policies.agent.algorithm.parts.cost={_target_: marlflow.CostLimit, limit: 1}",
        ),
        "policy 'agent' (ppo) has a CostLimit, and mpe2.simple_tag_v3.parallel_env gives no info['cost'] "
        "of agent_0 in its first env step; give 0.0 where nothing costs, or set "
        "policies.agent.algorithm.parts.cost=null",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_one_sentence_with_its_path_and_a_remedy(name: str) -> None:
    overrides, problem = REFUSED[name]
    assert refusals(*overrides) == [problem]


ACCEPTED = {
    "first snapshot": (*RESETS, f"{MODE}.reset_to=main@1"),
    "snapshot of its own": (*RESETS, f"{MODE}.reset_to=other@1"),
    "shares of all games": (*ALPHASTAR, f"{MODE}.pfsp=0.75", f"{MODE}.verify=0.25"),
    "members of a team": (
        *("env=simple_tag", "learner@learners.team=qmix", "learners.team.policies=[adversary,agent]"),
        *("policy@policies.adversary=member", "policy@policies.agent=member"),
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_its_neighbors_are_accepted(name: str) -> None:
    assert refusals(*ACCEPTED[name]) == []


GPU_VALUES = {
    "of two ranges": (
        ("placement.learners.num_gpus=-1", "rollouts.placement.num_gpus=1.5"),
        [
            "placement.learners.num_gpus must be at least 0",
            "rollouts.placement.num_gpus must be a fraction below 1, a whole",
        ],
    ),
    "beside too many": (
        ("placement.learners.num_gpus=99", "rollouts.placement.num_gpus=1.5"),
        [
            "rollouts.placement.num_gpus must be a fraction below 1, a whole",
            "the run asks for 99 GPU (99 for learner cart), but there",
        ],
    ),
    "beside too few to count": (
        ("placement.learners.num_gpus=0.00001", "rollouts.placement.num_gpus=1.5"),
        [
            "placement.learners.num_gpus must be 0 or at least 0.0001, Ray's smallest share of a GPU, not 1e-05",
            "rollouts.placement.num_gpus must be a fraction below 1, a whole",
        ],
    ),
    "shared and too little": (
        ("placement.shared_gpus=0.00001",),
        ["placement.shared_gpus must be null or at least 0.0001, Ray's smallest share of a GPU, not 1e-05"],
    ),
    "said once": (
        ("rollouts.placement.num_gpus=inf",),
        ["rollouts.placement.num_gpus must be a number, at least 0 and at most 100000, not inf"],
    ),
    "beside a device": (
        ("placement.learners.device=tpu9", "rollouts.placement.num_gpus=99"),
        ["policies.cart.placement.device must be cpu or cuda", "the run asks for 198 GPU (99 for rollout worker 0"],
    ),
}


@pytest.mark.parametrize("name", GPU_VALUES)
def test_all_values_of_gpus_are_said_at_once(name: str) -> None:
    overrides, expected = GPU_VALUES[name]
    found = refusals(*overrides, machines=NO_MACHINE)
    assert len(found) == len(expected), found
    assert all(any(one.startswith(problem) for one in found) for problem in expected), found


@dataclass
class Patient(mf.EarlyStop):
    """A callback of a user's own, whose other numbers are its own business."""

    window: int = -3


@dataclass
class Unset(mf.Callback):
    alpha: float = 7.0

    def ended(self, result: mf.RunEnd) -> None: ...


@pytest.mark.parametrize(
    ("callback", "problem"),
    [
        (mf.EarlyStop("env_steps", reports=-4), "callbacks.a.reports must be at least 1, not -4"),
        (mf.EarlyStop("env_steps", reports=True), "callbacks.a.reports must be a whole number, not True"),
        (mf.EarlyStop("env_steps", reports=2.5), "callbacks.a.reports must be a whole number, not 2.5"),  # type: ignore[arg-type]
        (mf.EarlyStop("env_steps", min_change=math.nan), "callbacks.a.min_change must be a number, at least 0"),
        (Patient("env_steps", reports=0), "callbacks.a.reports must be at least 1, not 0"),
        (Patient("env_steps"), None),
        (Unset(), None),
    ],
)
def test_numbers_of_callbacks_from_python_have_ranges(callback: mf.Callback, problem: str | None) -> None:
    found = wrong_with(small_run(callbacks={"a": callback}))
    assert [one[: len(problem)] for one in found] == [problem] if problem else found == []


class Costly:
    """Agents of two groups, of which only some steps and some agents have costs."""

    metadata: ClassVar[dict[str, str]] = {"name": "costly"}
    render_mode = None
    costs: ClassVar[Any] = {}

    def __init__(self) -> None:
        self.possible_agents = ["left_0", "left_1", "right_0"]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Box(0, 1, (2,), np.float32)

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        infos = {} if self.costs is not None else {"action_mask": np.zeros(2, np.int8)}
        return {a: np.zeros(2, np.float32) for a in self.agents}, dict.fromkeys(self.agents, infos)

    def step(self, actions: Any) -> Any:
        if isinstance(self.costs, Exception):
            raise self.costs
        observations = {a: np.zeros(2, np.float32) for a in self.agents}
        false, rewards = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, 0.0)
        infos = {a: {"cost": self.costs[a]} if a in self.costs else {} for a in self.agents}
        return observations, rewards, false, false, infos

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("costs", "problem"),
    [
        ({"left_0": 0.0, "left_1": 0.0}, None),
        ({"left_0": 0.0}, "policy 'left' (ppo) has a CostLimit, and Own gives no info['cost'] of left_1 in its first"),
        ({"right_0": 1.0}, "policy 'left' (ppo) has a CostLimit, and Own gives no info['cost'] of left_0 and left_1"),
        (None, "policy 'left' (ppo) has a CostLimit, and Own cannot show whether it gives costs: the action mask of "),
        (KeyError("price"), "policy 'left' (ppo) has a CostLimit, and Own cannot show whether it gives costs: step()"),
    ],
)
def test_costs_are_looked_for_in_the_first_env_step(costs: Any, problem: str | None) -> None:
    from pettingzoo import ParallelEnv

    class Own(Costly, ParallelEnv):
        pass

    Own.costs = costs
    Own.__qualname__ = "Own"
    limited = mf.Policy(mf.PPO(parts={"cost": mf.CostLimit(1.0)}))
    found = wrong_with(mf.Experiment(mf.Env(Own, num_envs=2), policies={"left": limited}))
    assert [one[: len(problem)] for one in found] == [problem] if problem else found == []


def test_a_policy_of_python_without_an_algorithm_is_ppo() -> None:
    assert ready(small_run(policies={"cart": mf.Policy()}, mapping=None)).spec.policies["cart"].algorithm.name == "ppo"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"stop": 1000}, r"stop is 1000, not a Stop; write Stop\(env_steps=..., ...\)"),
        ({"stop": {"env_steps": 1000}}, r"stop is {'env_steps': 1000}, not a Stop"),
        ({"runtime": "inline"}, r"runtime is 'inline', not a RuntimeConfig; write RuntimeConfig\(name=..., ...\)"),
        ({"evaluation": False}, r"evaluation is False, not an Evaluation; write Evaluation\("),
        ({"callbacks": {"c": mf.EarlyStop}}, r"callbacks.c must be Callback or null, .*; write EarlyStop\(...\)"),
        ({"policies": None}, "policies is None, where policies by id are wanted"),
        (
            {"policies": {"cart": mf.Policy(mf.PPO(optimizer=torch.optim.Adam))}, "mapping": None},  # type: ignore[arg-type]
            r"optimizer: the class Adam is no Optimizer; write mf.TorchOptimizer\(Adam\)",
        ),
        (
            {"policies": {"cart": mf.Policy(mf.PPO(optimizer=mf.Adam))}, "mapping": None},  # type: ignore[arg-type]
            r"optimizer: the class Adam is no Optimizer; write Adam\(...\)",
        ),
    ],
)
def test_what_python_makes_of_another_kind_is_refused_with_what_to_write(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(mf.ConfigInvalid, match=problem):
        check(replace(small_run(), **settings))


@pytest.mark.parametrize("command", [mf.train, mf.plan, lambda what: mf.resume(what, "runs/one")])
def test_what_is_no_experiment_is_refused(command: Callable[[Any], Any]) -> None:
    with pytest.raises(mf.ConfigInvalid, match=r"'simple_tag' is not an Experiment; write Experiment\("):
        command("simple_tag")
