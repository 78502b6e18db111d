"""`policies.<id>.learns_from`: what it is by default, what it gives, and what is refused before a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from marlflow.algorithms.apex import ApeX
from marlflow.algorithms.bc import BC
from marlflow.algorithms.clone import Clone
from marlflow.algorithms.dqn import DQN
from marlflow.algorithms.ppo import PPO
from marlflow.algorithms.scripted import Random
from marlflow.checks.commands import check
from marlflow.checks.validation import ready
from marlflow.config.experiment import Env, Experiment, LearnerConfig, OfflineData, Policy, Rollouts, Rule
from marlflow.config.plans import drawn_plan
from marlflow.driver.checkpointing import identity
from marlflow.policy.recurrent import GRU
from tests.config.composition import ready_of
from tests.driver.two_groups import TwoGroups
from tests.runtime.small_runs import SMALL, SMALL_R2D2, small_run
from tests.sentences import wrong_with


def run(hunters: Policy, prey: Policy, **changes: Any) -> Experiment:
    return small_run(policies={"hunters": hunters, "prey": prey}, **changes)


def problems(*args: Any, **changes: Any) -> list[str]:
    return wrong_with(run(*args, **changes))


def from_(*names: str, algorithm: Any = DQN()) -> Policy:  # noqa: B008
    return Policy(algorithm, SMALL, learns_from=names)


PLAIN = Policy(DQN(), SMALL)
ON = "policies.hunters.learns_from"


def test_by_default_a_policy_learns_from_its_own_rows() -> None:
    spec = ready(run(PLAIN, PLAIN)).spec
    assert {name: (learner.others, learner.learns_from) for name, learner in spec.learners.items()} == {
        "hunters": ((), ("hunters",)),
        "prey": ((), ("prey",)),
    }
    assert ready(run(from_("hunters"), PLAIN)).spec.learners["hunters"].others == ()


def test_a_list_replaces_its_own_rows_and_is_drawn_and_kept() -> None:
    checked = check(run(from_("hunters", "prey"), Policy(Clone(), SMALL, learns_from=["hunters"])))
    assert [learner.others for learner in checked.spec.learners.values()] == [("hunters", "prey"), ("hunters",)]
    drawn = str(drawn_plan(checked.experiment, checked.spec))
    assert "hunters: dqn, on rows of hunters, prey" in drawn
    assert "prey: clone, on rows of hunters" in drawn
    assert identity(checked)["learners"]["prey"]["learns_from"] == ["hunters"]
    assert "learns_from" not in identity(ready(run(PLAIN, PLAIN)))["learners"]["prey"]


def test_it_is_set_from_the_command_line() -> None:
    words = ["env=simple_tag", "env.num_good=2", "policy@policies.adversary=dqn", "policy@policies.agent=dqn"]
    checked = ready_of(*words, "policies.agent.learns_from=[agent]")
    assert checked.spec.learners["agent"].others == ()


@pytest.mark.parametrize(
    ("hunters", "prey", "problem"),
    [
        (from_(), PLAIN, f"{ON} is empty; name the policies whose rows it learns from"),
        (from_("pray"), PLAIN, f"{ON}: there is no policy 'pray'; did you mean 'prey'?"),
        (from_("prey", "prey"), PLAIN, f"{ON} has 'prey' more than once; name each policy once"),
        (from_("prey", algorithm=PPO()), PLAIN, "policy 'hunters' (ppo) is on-policy, and rows of other policies"),
        (from_("prey", algorithm=Random()), PLAIN, "policy 'hunters' (random) does not learn; give it an off-policy"),
        (from_("prey", algorithm=ApeX()), PLAIN, "has stages on the workers (NStep, InitialPriorities), which see its"),
        (from_("prey"), Policy(Random()), f"{ON}: policy 'prey' (random) does not learn, so it leaves no rows"),
        (from_("prey"), Policy(ApeX(), SMALL), "(NStep, InitialPriorities), which change its rows; name a policy that"),
        (from_("prey"), SMALL_R2D2, f"{ON}: policy 'prey' (r2d2) has memory, so its rows are of another kind"),
        (replace(SMALL_R2D2, learns_from=["prey"]), PLAIN, "policy 'hunters' (r2d2) has memory, which rows of other"),
        (Policy(Clone(), SMALL), PLAIN, "policy 'hunters' (clone) would imitate only itself; set policies.hunters."),
    ],
)  # fmt: skip
def test_what_cannot_be_learned_from_is_refused_once(hunters: Policy, prey: Policy, problem: str) -> None:
    (said,) = problems(hunters, prey)
    assert problem in said


ADDING = Policy(DQN(), SMALL, reward_from={"cost": 0.5})
COUNTING = Policy(DQN(), SMALL, columns={"cost": "credited"})


@pytest.mark.parametrize(
    ("hunters", "prey", "problem"),
    [
        (
            from_("prey"),
            ADDING,
            f"{ON}: policy 'prey' adds numbers to the rewards of its rows (policies.prey.reward_from)",
        ),
        (from_("prey", algorithm=Clone()), ADDING, None),
        (
            from_("hunters", "prey"),
            COUNTING,
            f"{ON}: rows of 'prey' have info['cost'], rows of 'hunters' have not; name",
        ),
        (from_("prey"), COUNTING, None),
    ],
)
def test_numbers_in_infos_stay_those_of_their_policy(hunters: Policy, prey: Policy, problem: str | None) -> None:
    env, rules = Env("marlflow.env.games.toll.parallel_env"), (Rule("car_0", "hunters"), Rule("*", "prey"))
    said = problems(hunters, prey, env=env, mapping=rules)
    assert len(said) == (problem is not None)
    assert problem is None or problem in said[0]


def test_recorded_rows_and_those_of_others_are_not_combined(tmp_path: Any) -> None:
    recorded = replace(from_("prey", algorithm=BC()), experience=OfflineData(str(tmp_path)))
    assert any("experience" in said or "recorded" in said for said in problems(recorded, PLAIN))


def test_rows_of_other_spaces_are_refused() -> None:
    policies = {"left": PLAIN, "right": Policy(DQN(), SMALL, learns_from=["right", "left"])}
    experiment = Experiment(Env(TwoGroups), policies, rollouts=Rollouts(num_workers=1))
    (said,) = wrong_with(experiment)
    assert said.startswith("policies.right.learns_from: 'right' and 'left' have other spaces: Box(-5.0, 5.0, (4,)")


def test_a_learner_of_another_name_has_the_sources_of_its_policy() -> None:
    policies = {"hunters": Policy(model=SMALL, learns_from=["prey", "hunters"]), "prey": PLAIN}
    experiment = small_run(policies=policies, learners={"own": LearnerConfig(["hunters"], DQN())})
    assert ready(experiment).spec.learners["own"].others == ("prey", "hunters")


def test_the_memory_of_a_model_is_refused_as_ever() -> None:
    (said,) = problems(Policy(DQN(), GRU(8, (8,)), learns_from=["prey"]), PLAIN)
    assert "cannot learn with GRU" in said
