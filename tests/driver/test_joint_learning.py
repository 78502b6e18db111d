"""One learner trains two policies that see different things, and a third policy learns alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.base.serialization import from_bytes
from marlflow.checks.validation import ready
from marlflow.config.plans import drawn_plan
from marlflow.runs.saved_runs import newest
from tests.driver.joint_learning import SMALL, Team, team_run
from tests.driver.kept_runs import assert_equal, kept
from tests.driver.resumed_runs import resumes_exactly
from tests.sentences import refusals

MEMBERS = ("speaker", "listener")


def test_a_learner_of_two_policies_is_one_plan_over_their_joint_stream() -> None:
    made = ready(team_run())
    assert {name: learner.members for name, learner in made.spec.learners.items()} == {
        "pair": MEMBERS,
        "walker": ("walker",),
    }
    assert made.spec.learning == (*MEMBERS, "walker")
    plan = drawn_plan(made.experiment, made.spec)
    plan.check()
    assert [one.name for one in plan.plans] == ["pair", "walker"]
    assert "Concat(agent_steps=60)\n│       → [Join" in str(plan)


def test_each_policy_is_trained_by_the_learner_that_lists_it(tmp_path: Path) -> None:
    result = mf.train(team_run(), tmp_path / "run")
    spec = ready(team_run()).spec
    checkpoint = newest(tmp_path / "run")
    states = {name: from_bytes(checkpoint.read(f"learner.{name}")) for name in spec.learners}
    before = {name: one.learner().parameters for name, one in spec.learners.items()}
    sizes = [len(weights.flat) for weights in before["pair"].published.values()]
    first = np.split(before["pair"].published_flat, np.cumsum(sizes)[:-1])
    now = np.split(states["pair"]["published"], np.cumsum(sizes)[:-1])
    assert all((one != other).mean() > 0.5 for one, other in zip(first, now, strict=True))
    policies = result.metrics["policies"]
    versions = {name: policies[name]["version"] for name in policies}
    assert versions["speaker"] == versions["listener"] == states["pair"]["version"] > 0
    assert versions["walker"] == states["walker"]["version"]
    assert policies["speaker"]["agent_steps_sampled"] < policies["listener"]["agent_steps_sampled"] == 480
    learners = result.metrics["learners"]
    assert learners["pair"]["loss"].keys() == {"critic", "grad_norm"}
    assert learners["pair"]["version"] == versions["speaker"]
    assert list(learners) == ["pair", "walker"]
    assert result.metrics["stages"].keys() >= {"rollouts/ByPolicy", "pair/Join", "pair/Learn", "walker/Learn"}


def test_what_one_learner_does_changes_nothing_for_another(tmp_path: Path) -> None:
    """The walker plays its own game, so it learns the same beside whatever the pair learns by."""
    together = team_run()
    other = replace(together, learners={"pair": mf.LearnerConfig(MEMBERS, Team(learning_rate=0.3))})
    vectors = []
    for number, experiment in enumerate((together, other)):
        mf.train(experiment, tmp_path / str(number))
        vectors.append(
            [
                from_bytes(newest(tmp_path / str(number)).read(f"learner.{name}"))["vector"]
                for name in ("pair", "walker")
            ]
        )
    assert not np.array_equal(vectors[0][0], vectors[1][0])
    np.testing.assert_array_equal(vectors[0][1], vectors[1][1])


def test_a_resumed_run_learns_as_one_that_was_not_ended(tmp_path: Path) -> None:
    resumes_exactly(team_run(480), tmp_path, 280)


def test_a_learner_ends_by_its_own_stop_and_its_policies_act_on(tmp_path: Path) -> None:
    stopping = mf.LearnerConfig(MEMBERS, Team(), stop=mf.PolicyStop(agent_steps=300))
    result = mf.train(team_run(learners={"pair": stopping}), tmp_path / "run")
    policies = result.metrics["policies"]
    assert policies["listener"]["agent_steps_sampled"] == 480
    assert result.metrics["learners"]["pair"]["agent_steps_trained"] < 2 * 400


def test_a_learner_of_one_policy_may_have_another_name(tmp_path: Path) -> None:
    small = mf.PPO(batch_agent_steps=40, epochs=1, minibatch_agent_steps=20)
    own = team_run(policies={name: mf.Policy(small, SMALL) for name in (*MEMBERS, "walker")}, learners={})
    named = replace(
        own,
        policies={**own.policies, "walker": mf.Policy(model=SMALL)},
        learners={"one": mf.LearnerConfig(["walker"], small)},
    )
    assert ready(named).spec.learners["one"].members == ("walker",)
    result = mf.train(named, tmp_path / "run")
    assert result.metrics["policies"]["walker"]["version"] > 0
    assert "learner.one" in newest(tmp_path / "run").names


def test_a_joint_algorithm_may_have_one_policy(tmp_path: Path) -> None:
    alone = mf.Policy(Team(), SMALL)
    result = mf.train(team_run(policies=dict.fromkeys((*MEMBERS, "walker"), alone), learners={}), tmp_path / "run")
    assert all(one["version"] > 0 for one in result.metrics["policies"].values())


def test_the_rows_of_a_joint_learner_are_tried_before_the_run() -> None:
    class Broken(Team):
        def losses(self, members: Any) -> Any:
            def loss(module: Any, target_module: None, minibatch: Any) -> Any:
                raise KeyError("speaker:advantage")

            return loss

    (problem,) = refusals(mf.ConfigInvalid, mf.plan, team_run(learners={"pair": mf.LearnerConfig(MEMBERS, Broken())}))
    assert problem.startswith(
        "learner 'pair' (team): stage 'Learn' of its plan breaks on 2 rows of its policies' spaces: KeyError"
    )


def _problems(**changes: Any) -> list[str]:
    return refusals(mf.ConfigInvalid, ready, team_run(**changes))


def test_learners_that_cannot_be_are_said_all_at_once() -> None:
    policies = {
        "speaker": mf.Policy(mf.PPO(), SMALL, placement=mf.PlacementOverrides(num_learners=2)),
        "listener": mf.Policy(model=SMALL),
        "walker": mf.Policy(model=SMALL),
    }
    learners = {
        "pair": mf.LearnerConfig(["speaker", "listner"], Team()),
        "walker": mf.LearnerConfig(["walker", "listener"], mf.PPO()),
        "third": mf.LearnerConfig(["walker"], mf.Random()),
        "none": mf.LearnerConfig([], Team()),
    }
    assert _problems(policies=policies, learners=learners) == [
        "policies.speaker.algorithm is ppo, and learners.pair trains 'speaker' by team; set "
        "policies.speaker.algorithm=null, or take 'speaker' out of learners.pair.policies",
        "policies.speaker.placement is not used, since learners.pair trains 'speaker'; set learners.pair.placement",
        "learners.walker: ppo trains one policy, and it lists 2 (walker, listener); give each policy the algorithm, or "
        "learners.walker one that is joint",
        "learners.walker has the name of policy 'walker', which is not its only one; give the learner another name, "
        "such as walker_and_listener",
        "policy 'walker' is in learners.walker and in learners.third; list it in one of them",
        "learners.third: random does not learn; give it an algorithm that does",
        "learners.none.policies is empty; list the policies that it trains, or remove learners.none",
        "learners.pair.policies: no agent is played by a policy 'listner'; did you mean 'listener'?",
    ]


def test_a_figure_of_a_learner_is_named_by_the_learner() -> None:
    assert _problems(objective="policies.speaker.updates") == [
        "objective policies.speaker.updates: updates is a figure of a learner; write learners.pair.updates"
    ]
    assert _problems(objective="learners.par.updates") == [
        "objective learners.par.updates: there is no learner 'par'; did you mean 'pair'?"
    ]
    assert ready(team_run(objective="learners.pair.updates"))


def test_what_only_single_policies_can_do_is_said() -> None:
    pair = mf.LearnerConfig(MEMBERS, Team(), placement=mf.PlacementOverrides(stages={"Join": "driver"}))
    assert _problems(learners={"pair": pair}) == [
        "learners.pair.placement.stages must be null: the stages of team see joint rows, at its learner"
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_ray_gives_the_same_numbers(tmp_path: Path) -> None:
    one = mf.Rollouts(num_workers=1, fragment_env_steps=40)
    inline = mf.train(team_run(240, rollouts=one), tmp_path / "inline")
    ray = mf.train(team_run(240, "ray", rollouts=one), tmp_path / "ray")
    assert inline.metrics["policies"]["listener"]["version"] > 0
    on_policy = "learner.pair"  # how far the walker's DQN has come when a round begins is a matter of time
    assert_equal(kept(tmp_path / "ray")[on_policy], kept(tmp_path / "inline")[on_policy])
    resumed = mf.resume(replace(team_run(320, "ray", rollouts=one), stop=mf.Stop(320)), tmp_path / "ray")
    versions = [one.metrics["policies"]["speaker"]["version"] for one in (ray, resumed)]
    assert versions[1] > versions[0]
