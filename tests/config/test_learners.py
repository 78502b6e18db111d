"""Learners of several policies: who their members are, and every error of `learners:` at once before the start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from pettingzoo.utils import parallel_to_aec

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.config.checked import CheckedExperiment
from marlflow.config.plans import drawn_plan
from marlflow.env.wrappers.shipped import joint_state
from tests.config.composition import prepared
from tests.driver.joint_learning import SMALL, Team, ThreeGroups, team_run
from tests.sentences import refusals

PAIR = ["speaker", "listener"]
SMALL_WALKER = {"walker": mf.Policy(mf.DQN(), SMALL)}


@dataclass(frozen=True)
class Choosy(Team):
    """The toy algorithm, which needs a state and fixed seats, and takes models with or without memory."""

    name: ClassVar[str] = "choosy"
    capabilities: ClassVar[mf.Capabilities] = replace(
        Team.capabilities, state=True, matchmaking=False, memory="optional"
    )


class BoxSpeaker(ThreeGroups):
    """The speaker's actions are numbers."""

    def action_space(self, agent: str) -> Any:
        return gym.spaces.Box(-1.0, 1.0, (2,), np.float32) if agent == "speaker_0" else super().action_space(agent)


class Undeclared(ThreeGroups):
    """Agents are known when an episode begins."""

    def __init__(self) -> None:
        super().__init__()
        self._names = self.possible_agents
        del self.possible_agents

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.agents, self._step = self._names[:], 0
        return self._see(self.agents), {agent: {} for agent in self.agents}


class InTurns:
    """Makes the environment an AEC environment."""

    def __call__(self) -> Any:
        environment = ThreeGroups()
        environment.render_mode = None
        return parallel_to_aec(environment)


def run(learners: dict[str, mf.LearnerConfig] | None = None, **changes: Any) -> mf.Experiment:
    """A pair and a walker; policies that are not given have the defaults."""
    experiment = team_run(learners=learners or {"pair": mf.LearnerConfig(PAIR, Team())})
    return replace(experiment, **({"policies": {}} | changes))


def made(**changes: Any) -> CheckedExperiment:
    return ready(run(**changes))


def problems(**changes: Any) -> list[str]:
    return refusals(mf.ConfigInvalid, made, **changes)


def test_members_without_settings_take_the_model_of_the_default_policy_and_their_learners_algorithm() -> None:
    experiment = made(default_policy=mf.Policy(mf.A2C(), mf.MLP((5,))), policies={"speaker": mf.Policy(model=SMALL)})
    algorithms = {name: policy.algorithm.name for name, policy in experiment.spec.policies.items()}
    assert algorithms == {"speaker": "team", "listener": "team", "walker": "a2c"}
    models = {name: policy.model for name, policy in experiment.spec.policies.items()}
    assert models == {"speaker": SMALL, "listener": mf.MLP((5,)), "walker": mf.MLP((5,))}
    assert experiment.spec.learners["pair"].members == ("speaker", "listener")


def test_members_may_be_named_by_rules_alone() -> None:
    rules = [mf.Rule("speaker_*", "s"), mf.Rule("listener_*", "l"), mf.Rule("walker_*", "walker")]
    learners = {"pair": mf.LearnerConfig(["s", "l"], Team())}
    assert made(learners=learners, mapping=rules, policies=SMALL_WALKER).spec.learners["pair"].members == ("s", "l")
    assert problems(learners=learners, mapping=rules[1:], policies=SMALL_WALKER) == [
        "no mapping rule matches agent 'speaker_0' (rules: 'listener_*', 'walker_*'); add one, or one for '*'",
        "learners.pair.policies: no agent is played by a policy 's'; the policies are l, walker",
    ]


def test_a_plan_of_several_policies_says_whose_it_is() -> None:
    experiment = made()
    drawn = drawn_plan(experiment.experiment, experiment.spec)
    assert "pair: team for speaker and listener" in str(drawn)
    assert "pair: team for speaker and listener" in drawn.mermaid()


def test_a_learner_with_the_name_of_a_group_that_it_does_not_train_is_refused() -> None:
    assert problems(learners={"walker": mf.LearnerConfig(PAIR, Team())}) == [
        "learners.walker has the name of policy 'walker', which is not its only one; give the learner another name, "
        "such as speaker_and_listener"
    ]


def test_a_policy_that_plays_nobody_is_said_once() -> None:
    learners = {"pair": mf.LearnerConfig(["speaker", "listner"], Team())}
    (problem,) = problems(learners=learners, policies={"listner": mf.Policy(model=SMALL)})
    assert problem.startswith("policy 'listner' plays no agent")
    assert problem.endswith("did you mean 'listener'?")


SINGLE = "an algorithm for single policies, such as mappo or ppo"


def test_joint_algorithms_are_refused_where_there_are_no_joint_rows() -> None:
    assert problems(env=mf.Env(InTurns(), num_envs=4)) == [
        "learner 'pair' (team) learns from what several agents decide in one env step, and in InTurns, an AEC "
        f"environment, they decide in turns; use the environment's parallel_env, or {SINGLE}"
    ]
    assert problems(env=mf.Env(Undeclared, num_envs=4)) == [
        "learner 'pair' (team) needs a seat for each of its agents, and Undeclared does not declare its agents; give "
        f"it possible_agents, or use {SINGLE}"
    ]
    alone = problems(env=mf.Env(InTurns(), num_envs=4), learners={"walker": mf.LearnerConfig(["walker"], Team())})
    assert alone[0].startswith("policy 'walker' (team) learns from what several agents decide in one env step")


def test_a_learner_without_a_state_is_said_once() -> None:
    pair = {"pair": mf.LearnerConfig(PAIR, Choosy())}
    assert problems(learners=pair) == [
        "learner 'pair' (choosy) needs the environment's state, and ThreeGroups has no state() with a Box for its "
        "state_space; add wrappers=joint_state, or use an algorithm that needs none"
    ]
    assert problems(learners={"pair": mf.LearnerConfig(PAIR, mf.QMIX())}) == [
        "learner 'pair' (qmix) has a mixer that sees the state (mixer_sees), and the environment has no state() of "
        "numbers; add wrappers=joint_state, which makes one of all agents' observations, or set "
        "mixer_sees=observations"
    ]


WITH_STATE = mf.Env(ThreeGroups, num_envs=4, wrappers=[joint_state])


def test_members_of_mixed_memory_are_refused() -> None:
    pair = {"pair": mf.LearnerConfig(PAIR, Choosy())}
    recurrent = {"speaker": mf.Policy(model=mf.GRU())}
    assert problems(learners=pair, env=WITH_STATE, policies=recurrent) == [
        "learner 'pair' (choosy) needs memory in the models of all its policies, or of none: 'speaker' has a recurrent "
        "model, and 'listener' has none; give all gru or lstm, or all mlp or cnn"
    ]
    (problem,) = problems(policies=recurrent)
    assert problem.startswith("policy 'speaker' of learner 'pair' (team) cannot learn with GRU, which has memory")
    assert problem.endswith("; use vdn or qmix, or a model without memory, such as mlp")


def test_matchmakers_and_leagues_are_refused_unless_the_algorithm_allows_them() -> None:
    class Dealer:
        def __call__(self, episode: mf.EpisodeId, agents: Any, generator: Any) -> dict[str, str]:
            return {agent: agent.partition("_")[0] for agent in agents}

    pair = {"pair": mf.LearnerConfig(PAIR, Choosy())}
    needs = "learner 'pair' (choosy) needs the same agents in every episode, and"
    assert problems(learners=pair, env=WITH_STATE, policies=SMALL_WALKER, mapping=Dealer()) == [
        f"mapping: {needs} Dealer assigns policies in each episode; map by rules, or use {SINGLE}"
    ]
    league = mf.League(mf.PFSP(), players={name: mf.LeaguePlayer([name]) for name in PAIR})
    found = problems(learners=pair, env=WITH_STATE, policies=SMALL_WALKER, league=league)
    assert f"league: {needs} a league assigns policies in each episode; choose league=none, or {SINGLE}" in found
    assert made(policies=SMALL_WALKER, mapping=Dealer()).spec.learners["pair"].is_joint


def test_other_actions_are_said_with_member_agent_space_and_who_could() -> None:
    box = mf.Env(BoxSpeaker, num_envs=4)
    (problem,) = problems(env=box)
    assert problem.startswith("policy 'speaker' of learner 'pair' (team) cannot act in Box(2,) of agent 'speaker_0'; ")
    # Named are joint algorithms only, since the others cannot train a pair, or else how to train it alone.
    remedy = problem.partition("; ")[2]
    assert remedy.startswith(("use maddpg", "take it out of learners.pair.policies for ppo"))
    (alone,) = problems(env=box, learners={"one": mf.LearnerConfig(["speaker"], Team())}, policies=SMALL_WALKER)
    assert alone.startswith("policy 'speaker' (team) cannot act in Box(2,) of agent 'speaker_0'; use ")


def test_what_is_wrong_with_the_settings_of_a_learner_is_said_once() -> None:
    (problem,) = problems(learners={"pair": mf.LearnerConfig(PAIR, mf.VDN(n_step=500))})
    assert problem.startswith("learner 'pair' (vdn) sums rewards over n_step=500 decisions")
    (problem,) = problems(learners={"pair": mf.LearnerConfig(PAIR, Team(learning_rate=-1.0))})
    assert problem == "learners.pair.algorithm.learning_rate must be at least 0, not -1"


def test_a_joint_algorithm_cannot_learn_from_records() -> None:
    recorded = mf.Policy(Team(), SMALL, experience=mf.OfflineData("records"))
    found = problems(learners={"one": mf.LearnerConfig(["walker"], mf.PPO())}, policies={"speaker": recorded})
    assert found[0] == (
        "policies.speaker.experience must be null: policies.speaker (team) learns from joint rows, which are not "
        "recorded"
    )


def test_settings_of_members_that_are_their_learners_are_refused() -> None:
    member = mf.Policy(model=SMALL, stop=mf.PolicyStop(agent_steps=5), placement=mf.PlacementOverrides(num_gpus=1))
    assert problems(policies={"speaker": member}) == [
        "policies.speaker.placement is not used, since learners.pair trains 'speaker'; set learners.pair.placement",
        "policies.speaker.stop is not used, since learners.pair trains 'speaker'; set learners.pair.stop",
    ]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["learners.pair=vdn"], "learners.pair=vdn is not how a learner is chosen; write learner@learners.pair=vdn"),
        (["learner.pair=vdn"], "learner.pair=vdn is not how a learner is chosen; write learner@learners.pair=vdn"),
        (["learner=vdn"], "learner=vdn does not say whose: write learner@learners.<id>=vdn"),
        (["learner.pair.policies=[a]"], "there is no learner.pair.policies; did you mean 'learners.pair.policies'?"),
        (["learner@learners.pair=vnd"], "there is no learner 'vnd'; did you mean 'vdn'?"),
        (
            ["learner@learners.pair=ppo"],
            "there is no learner 'ppo'; it is in groups algorithm and policy: write "
            "algorithm@policies.<id>.algorithm=ppo or policy@policies.<id>=ppo",
        ),
        (
            ["algorithm@learners.pair.algorithm=vdn"],
            "algorithm@learners.pair.algorithm: there is no learner 'pair'; add it with learner@learners.pair=qmix",
        ),
        (
            ["learner@learners.pair=vdn", "learners.pare.policies=[a,b]"],
            "learners.pare.policies: there is no learner 'pare'; did you mean 'pair'?",
        ),
        (
            ["learner@learners.pair=vdn", "learners.pair.policies=[a,b]", "policies.a.model.hidden_sizes=[3]"],
            "policies.a.model.hidden_sizes: policy 'a' of learners.pair has the model of default_policy; for settings "
            "of its own add policy@policies.a=member",
        ),
        (
            ["policies.a.model.hidden_sizes=[3]"],
            "policies.a.model.hidden_sizes: there is no policy 'a'; add it with policy@policies.a=ppo",
        ),
    ],
)
def test_overrides_of_learners_that_cannot_be_are_explained(overrides: list[str], problem: str) -> None:
    try:
        (found,) = prepared(*overrides).problems
    except mf.ConfigInvalid as error:
        (found,) = error.problems
    assert found.startswith(problem)


def test_a_learner_is_added_with_or_without_a_plus_and_its_algorithm_replaced() -> None:
    for plus in ("", "+"):
        chosen = prepared(
            f"{plus}learner@learners.pair=qmix",
            f"{plus}learners.pair.policies=[a,b]",
            "algorithm@learners.pair.algorithm=vdn",
            "learners.pair.algorithm.n_step=2",
            f"{plus}policy@policies.a=member",
            "policies.a.model.hidden_sizes=[3]",
        )
        assert chosen.problems == []
        learner = chosen.config.learners.pair
        assert (learner.policies, learner.algorithm._target_) == (["a", "b"], "marlflow.algorithms.vdn.VDN")
        assert learner.algorithm.n_step == 2
        assert chosen.config.policies.a.algorithm is None
        assert list(chosen.config.policies.a.model.hidden_sizes) == [3]


def test_learners_are_swept() -> None:
    words = ("learner@learners.pair=qmix,vdn", "learners.pair.policies=[a,b]")
    assert prepared(*words, multirun=True).overrides == ["+learner@learners.pair=qmix,vdn", words[1]]
