"""Who plays whom, and what is checked before a run, from Python."""

import dataclasses
import types
from typing import Any

import pytest
from gymnasium.spaces import Box
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.config.placement import shared_equally
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.runtime.inline import InlineRuntime
from marlflow.runtime.resources import Machines
from tests.config.composition import algorithms
from tests.sentences import refusals, wrong_with


class TwoTeams(CartPoleTeam):
    """Agents of two groups, one of them without a number, and one that acts with a force."""

    def __init__(self) -> None:
        super().__init__(num_agents=4)
        renamed = ["fox_0", "fox_11", "hen", "farmer_2"]
        self._envs = dict(zip(renamed, self._envs.values(), strict=True))
        self.possible_agents = renamed

    def action_space(self, agent: str) -> Any:
        return Box(-1.0, 1.0, (2,)) if agent == "farmer_2" else super().action_space(agent)


FARM = mf.Experiment(mf.Env(TwoTeams))


def _problems(**changes: Any) -> list[str]:
    return wrong_with(dataclasses.replace(FARM, **changes))


def test_without_a_mapping_each_group_is_played_by_the_policy_of_its_name_or_by_the_default() -> None:
    made = ready(
        dataclasses.replace(FARM, policies={"fox": mf.Policy(mf.DQN())}, default_policy=mf.Policy(mf.PPO(epochs=3)))
    )
    assert made.agents == ("fox_0", "fox_11", "hen", "farmer_2")
    assert made.spec.mapping == {"fox_0": "fox", "fox_11": "fox", "hen": "hen", "farmer_2": "farmer"}
    assert algorithms(made) == {"fox": "dqn", "hen": "ppo", "farmer": "ppo"}
    assert made.spec.policies["hen"].algorithm == mf.PPO(epochs=3)


def test_with_rules_only_they_count() -> None:
    rules = [mf.Rule("farmer_*", "human"), mf.Rule("*", "animals")]
    made = ready(
        dataclasses.replace(FARM, mapping=rules, policies={"animals": mf.Policy(mf.DQN()), "human": mf.Policy()})
    )
    assert made.spec.mapping == {"fox_0": "animals", "fox_11": "animals", "hen": "animals", "farmer_2": "human"}
    assert algorithms(made) == {"animals": "dqn", "human": "ppo"}


def test_all_problems_of_policies_are_found_at_once() -> None:
    problems = _problems(
        policies={
            "fox": mf.Policy(mf.DQN(), model=mf.CNN()),
            "farmer": mf.Policy(mf.DQN(n_step=0)),
            "hne": mf.Policy(mf.Random()),
        },
        stop=mf.Stop(),
    )
    assert [problem.partition(":")[0] for problem in problems[:3]] == [
        "policies.farmer.algorithm.n_step must be at least 1, not 0",
        "policy 'hne' plays no agent",
        "nothing ends this run; set stop.env_steps, stop.time_s or stop.policies.<id>.return_mean",
    ]
    assert problems[1].endswith("; did you mean 'hen'?")
    assert problems[3:] == [
        "policy 'fox' (dqn): a CNN sees [height, width, channels], not observations of shape (4,); use MLP",
        "policy 'farmer' (dqn) cannot act in Box(2,) of agent 'farmer_2'; use sac, td3, ddpg or ppo",
    ]


def test_agents_of_one_policy_need_the_same_spaces() -> None:
    rules, policies = [mf.Rule("*", "all")], {"all": mf.Policy()}
    assert _problems(mapping=rules, policies=policies) == [
        "policy 'all' plays 'fox_0' and 'farmer_2', which do Discrete(2) and Box(2,); "
        "agents of one policy need the same spaces, so give them policies of their own"
    ]


def test_a_run_may_end_by_the_stops_of_its_policies_alone() -> None:
    ending = mf.Policy(stop=mf.PolicyStop(agent_steps=100))
    assert _problems(stop=mf.Stop(), default_policy=ending) == []
    one_endless = _problems(stop=mf.Stop(), default_policy=ending, policies={"hen": mf.Policy()})
    assert [problem.split(";")[0] for problem in one_endless] == ["nothing ends this run"]


def test_an_environment_that_fails_hides_no_other_problem() -> None:
    problems = _problems(
        env=mf.Env("nowhere.env", num_envs=0), mapping=[mf.Rule("*", "x")], stop=mf.Stop(policies={"y": 1.0})
    )
    assert [problem.split(";")[0] for problem in problems] == [
        "environment nowhere.env cannot be imported: No module named 'nowhere'",
        "env.num_envs must be at least 1, not 0",
        "stop.policies.y: there is no policy 'y'",
    ]


def test_a_callable_that_makes_no_environment_is_named() -> None:
    assert _problems(env=mf.Env(dict)) == ["dict makes a dict, not a PettingZoo AECEnv or ParallelEnv"]


def test_the_old_name_of_pettingzoos_agent_selector_is_explained() -> None:
    def old_package() -> None:
        agent_selector: Any = types.ModuleType("agent_selector")
        agent_selector(["a"])

    def something_else() -> None:
        math: Any = types.ModuleType("math")
        math(["a"])

    remedy = "pettingzoo.utils.agent_selector = pettingzoo.utils.AgentSelector"
    assert [remedy in _problems(env=mf.Env(factory))[0] for factory in (old_package, something_else)] == [True, False]


def test_ready_raises_what_problems_of_says() -> None:
    broken = dataclasses.replace(FARM, env=mf.Env(TwoTeams, num_envs=0))
    assert refusals(mf.ConfigInvalid, ready, broken) == wrong_with(broken) != []


# -- placement --------------------------------------------------------------------------------------------------------


def _placements(run: mf.RunPlacement, **policies: mf.Policy) -> dict[str, mf.LearnerPlacement]:
    made = ready(dataclasses.replace(FARM, placement=run, policies=policies))
    return {name: learner.placement for name, learner in made.spec.learners.items()}


def test_a_policy_takes_what_the_run_says_where_it_says_nothing_itself() -> None:
    run = mf.RunPlacement(
        mf.LearnerPlacement(num_cpus=2, num_gpus=1, resources={"fpga": 1}, stages={"Advantages": "worker"})
    )
    own = mf.PlacementOverrides(num_cpus=3, num_gpus=0, replay="own", precision="bfloat16", stages={})
    found = _placements(run, fox=mf.Policy(mf.DQN(), placement=own))
    assert found["hen"] == run.learners
    assert found["fox"] == mf.LearnerPlacement(
        num_cpus=3, num_gpus=0, resources={"fpga": 1}, replay="own", precision="bfloat16", stages={}
    )


def test_learners_share_gpus_by_processes_but_not_with_those_that_have_their_own() -> None:
    run = mf.RunPlacement(shared_gpus=1.0)
    assert [one.num_gpus for one in _placements(run).values()] == [0.3333] * 3
    found = _placements(
        run, fox=mf.Policy(mf.DQN(), placement=mf.PlacementOverrides(num_learners=3)), hen=mf.Policy(mf.Random())
    )
    assert {name: one.num_gpus for name, one in found.items()} == {"fox": 0.25, "farmer": 0.25}
    found = _placements(run, fox=mf.Policy(mf.DQN(), placement=mf.PlacementOverrides(num_gpus=2)))
    assert {name: one.num_gpus for name, one in found.items()} == {"fox": 2, "hen": 0.5, "farmer": 0.5}


@given(gpus=st.one_of(st.integers(1, 8), st.sampled_from([0.25, 0.5])), processes=st.integers(1, 40))
def test_equal_shares_fit_the_gpus_one_by_one(gpus: float, processes: int) -> None:
    share = shared_equally(gpus, processes)
    assert share == round(share, 4)
    if gpus < 1:
        assert 0 < share * processes <= gpus
    elif share < 1:
        assert int(1 / share + 1e-9) * gpus >= processes
        assert share > 1 / (processes / gpus + 1) - 1e-4
    else:
        assert share == int(share)
        assert share * processes <= gpus < (share + 1) * processes


def test_where_everything_runs_is_in_the_spec() -> None:
    acting, of_workers = mf.InferencePlacement(num_gpus=0.5), mf.Resources(num_cpus=0.5)
    placement, rollouts = mf.RunPlacement(inference=acting, spread=True), mf.Rollouts(placement=of_workers)
    spec = ready(dataclasses.replace(FARM, placement=placement, rollouts=rollouts)).spec
    assert (spec.inference, spec.spread, spec.rollout_placement) == (acting, True, of_workers)


def test_problems_of_placement_are_found_at_once() -> None:
    problems = _problems(
        placement=mf.RunPlacement(
            mf.LearnerPlacement(num_learners=0, num_gpus=2.5, device="cuda"),
            shared_gpus=-1,
            inference=mf.InferencePlacement(device="cuda"),
        ),
        policies={
            "fox": mf.Policy(mf.DQN(), placement=mf.PlacementOverrides(num_gpus=0, resources={"fpga": -1})),
            "hen": mf.Policy(placement=mf.PlacementOverrides(device="mps")),
            "farmer": mf.Policy(placement=mf.PlacementOverrides(num_gpus=1)),
        },
    )
    assert problems == [
        "policies.fox.placement.resources.fpga must be at least 0, not -1",
        "placement.learners.num_learners must be at least 1, not 0",
        "placement.shared_gpus must be more than 0, not -1",
        "placement.learners.num_gpus must be a fraction below 1, a whole number, or 0, not 2.5",
        "placement.inference.device is cuda and num_gpus 0: a process sees only the GPUs that it has a share of; "
        "raise num_gpus",
        "placement.shared_gpus is -1 and placement.learners.num_gpus 2.5: learners share GPUs, or each takes its own; "
        "set one of the two to null or 0",
        "policies.fox.placement.device is cuda and num_gpus 0: a process sees only the GPUs that it has a share of; "
        "raise num_gpus",
        "policies.hen.placement.device must be cpu or cuda, or one such as cuda:1, not 'mps'",
    ]


def test_what_the_run_takes_is_held_against_what_there_is() -> None:
    shared = dataclasses.replace(
        FARM, placement=mf.RunPlacement(shared_gpus=1.0, inference=mf.InferencePlacement(num_gpus=1))
    )
    assert wrong_with(shared, Machines([{"CPU": 4.0, "GPU": 2.0}], here=True)) == []
    (problem,) = wrong_with(shared, Machines([{"CPU": 4.0, "GPU": 1.0}], here=True))
    shares = ", ".join(f"0.3333 for learner {name}" for name in ("fox", "hen", "farmer"))
    assert problem.startswith(f"the run asks for 1.9999 GPU ({shares}, 1 for inference), but there is 1; ")
    # Also of an environment that cannot be opened, as far as is known then.
    broken = dataclasses.replace(
        shared, env=mf.Env("nowhere.env"), policies={"fox": mf.Policy(), "hen": mf.Policy(mf.Random())}
    )
    assert (
        "(1 for learner fox, 1 for inference)"
        in wrong_with(broken, Machines([{"CPU": 4.0, "GPU": 1.0}], here=True))[-1]
    )


def test_a_gpu_that_is_not_there_is_said_before_anything_starts_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    placement = mf.RunPlacement(
        mf.LearnerPlacement(num_gpus=1), inference=mf.InferencePlacement(num_gpus=1)
    )  # the latter is nobody's inline
    spec = ready(dataclasses.replace(FARM, placement=placement, runtime=mf.RuntimeConfig("inline"))).spec
    assert [problem.partition(" is to ")[0] for problem in refusals(mf.ConfigInvalid, InlineRuntime().start, spec)] == [
        f"learner {name!r}" for name in ("fox", "hen", "farmer")
    ]
