"""Old names of configuration keys and of algorithm hooks give one error each, with the new name."""

import dataclasses
from typing import Any, ClassVar

import pytest
from pettingzoo import ParallelEnv

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.config.renamed import KEYS, renamed_hooks
from marlflow.env.games.cartpole_team import parallel_env
from tests.config.composition import experiment_of
from tests.sentences import refusals

CASES = {
    "copies": (["env.copies=8"], "there is no env.copies; it has become env.num_envs"),
    "grace_s": (["stop.grace_s=5"], "there is no stop.grace_s; it has become stop.grace_period_s"),
    "grey": (
        ["env=pistonball", "wrappers=pixels", "model@default_policy.model=cnn", "env.wrappers.grey.mode=R"],
        "there is no env.wrappers.grey; it has become env.wrappers.gray",
    ),
    "normalise_observations": (
        ["policy@policies.cart=dqn", "policies.cart.model.normalise_observations=true"],
        "there is no policies.cart.model.normalise_observations; "
        "it has become policies.cart.model.normalize_observations",
    ),
    "optimiser": (
        ["default_policy.algorithm.optimiser={_target_: torch.optim.RMSprop}"],
        "there is no default_policy.algorithm.optimiser; it has become default_policy.algorithm.optimizer",
    ),
    "waiting_fragments": (
        ["policy@policies.cart=appo", "policies.cart.algorithm.waiting_fragments=3"],
        "there is no policies.cart.algorithm.waiting_fragments; it has become policies.cart.algorithm.queue_fragments",
    ),
}


def problems_of_overrides(*overrides: str) -> list[str]:
    return refusals(mf.ConfigInvalid, experiment_of, *overrides)


def test_every_renamed_key_has_a_case() -> None:
    assert CASES.keys() == KEYS.keys()


@pytest.mark.parametrize(("overrides", "problem"), CASES.values(), ids=list(CASES))
def test_an_old_key_gives_one_error_with_the_new_name(overrides: list[str], problem: str) -> None:
    assert problems_of_overrides(*overrides) == [problem]


def test_an_old_key_of_a_policy_gives_the_new_name_too() -> None:
    problem = "there is no default_policy.waiting_fragments; it has become default_policy.queue_fragments"
    assert problems_of_overrides("default_policy.waiting_fragments=2") == [problem]


VALUES = "it has become parts@{0}.algorithm.parts.values=pop_art, or {0}.algorithm.parts.values=null for false"


@pytest.mark.parametrize(
    ("others", "policy"), [([], "default_policy"), (["policy@policies.cart=ppo"], "policies.cart")]
)
def test_a_setting_that_is_a_part_now_is_answered_at_the_top_too(others: list[str], policy: str) -> None:
    said = f"there is no normalize_values; {VALUES.format(policy)}"
    assert problems_of_overrides(*others, "normalize_values=true") == [said]


def takes_any(**kwargs: Any) -> ParallelEnv[str, Any, Any]:
    return parallel_env(**kwargs)


def test_an_old_key_is_no_argument_of_a_factory_that_takes_any() -> None:
    factory = f"env._target_={__name__}.{takes_any.__name__}"
    problem = "there is no env.copies; it has become env.num_envs"
    assert problems_of_overrides("env=python", factory, "env.copies=8") == [problem]


def test_the_old_import_path_of_adam_gives_its_public_name() -> None:
    (problem,) = problems_of_overrides(
        "default_policy.algorithm.optimizer={_target_: marlflow.learn.optimiser.Adam, eps: 1e-5}"
    )
    assert problem.startswith("default_policy.algorithm.optimizer._target_: marlflow.learn.optimiser.Adam cannot be")
    assert problem.endswith("; did you mean marlflow.Adam?")


@dataclasses.dataclass(frozen=True)
class WithProblems(mf.PPO):
    def problems(self, spaces: Any, model: Any) -> list[str]:
        raise AssertionError("nothing calls it")


@dataclasses.dataclass(frozen=True)
class WithFrom0(mf.PPO):
    from_0: ClassVar[frozenset[str]] = frozenset({"epochs"})


@dataclasses.dataclass(frozen=True)
class WithOnlyForActors(mf.PPO):
    only_for_actors: ClassVar[frozenset[str]] = frozenset({"discount"})


@dataclasses.dataclass(frozen=True)
class WithSeesAllRows(mf.PPO):
    @property
    def sees_all_rows(self) -> bool:
        return True


@dataclasses.dataclass(frozen=True)
class Inherits(WithProblems):
    """Its base class defines the hook, so the error names the base class."""


HOOKS = {
    WithProblems: "WithProblems.problems, which nothing calls; it has become validate()",
    WithFrom0: (
        "WithFrom0.from_0, which nothing calls; it has become Annotated[int, Range(0, <at most>)] on each of its fields"
    ),
    WithOnlyForActors: "WithOnlyForActors.only_for_actors, which nothing calls; it has become actor_only_settings",
    WithSeesAllRows: "WithSeesAllRows.sees_all_rows, which nothing calls; it has become learner_sees_every_row",
    Inherits: "WithProblems.problems, which nothing calls; it has become validate()",
}


@pytest.mark.parametrize(("algorithm", "problem"), HOOKS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_an_old_hook_of_a_users_algorithm_gives_its_new_name(algorithm: type[mf.PPO], problem: str) -> None:
    experiment = mf.Experiment(mf.Env("cartpole_team", num_envs=2), policies={"cart": mf.Policy(algorithm())})
    assert refusals(mf.ConfigInvalid, ready, experiment) == [f"policy 'cart' ({algorithm().name}) has {problem}"]


def test_hooks_of_today_give_no_error() -> None:
    assert list(renamed_hooks(mf.PPO())) == []


@pytest.mark.parametrize("setting", ["cost_limit", "initial_multiplier", "multiplier_learning_rate"])
def test_a_limit_on_costs_is_offered_only_to_algorithms_that_can_have_it(setting: str) -> None:
    key = f"policies.cart.algorithm.{setting}"
    for name in ("dqn", "a2c"):
        assert problems_of_overrides(f"policy@policies.cart={name}", f"{key}=0.5") == [
            f"there is no {key}; a limit on costs has become a part, and {name} cannot have a CostLimit: nothing of it "
            "weighs rewards and costs; use ppo, mappo or sac, or leave the part out"
        ]
    (problem,) = problems_of_overrides("policy@policies.cart=sac", f"{key}=0.5")
    parts = "policies.cart.algorithm.parts"
    new = f"parts@{parts}.cost=cost_limit {parts}.cost.limit=" if setting == "cost_limit" else f"{parts}.cost.{setting}"
    assert problem.startswith(f"there is no {key}; it has become {new}")


@pytest.mark.parametrize("setting", ["normalize_values", "normalise_returns"])
def test_normalization_of_values_is_offered_only_to_algorithms_with_a_critic(setting: str) -> None:
    key = f"policies.cart.algorithm.{setting}"
    assert problems_of_overrides("policy@policies.cart=dqn", f"{key}=true") == [
        f"there is no {key}; normalization of values has become a part, and dqn cannot have a PopArt: it has no critic "
        "of states; leave the part out, or use ppo, a2c or another with a critic"
    ]
    for name in ("ppo", "a2c", "impala", "appo"):
        assert problems_of_overrides(f"policy@policies.cart={name}", f"{key}=true") == [
            f"there is no {key}; it has become parts@policies.cart.algorithm.parts.values=pop_art, or "
            "policies.cart.algorithm.parts.values=null for false"
        ]


def test_normalization_of_rewards_is_offered_to_teams() -> None:
    key, told = "policies.cart.algorithm.normalize_rewards", "there is no policies.cart.algorithm.normalize_rewards; "
    assert problems_of_overrides("policy@policies.cart=vdn", f"{key}=true") == [
        f"{told}it has become parts@policies.cart.algorithm.parts.rewards=reward_unit, or "
        "policies.cart.algorithm.parts.rewards=null for false"
    ]
    (problem,) = problems_of_overrides("policy@policies.cart=ppo", f"{key}=true")
    assert problem.startswith(f"{told}normalization of rewards has become a part, and ppo cannot have a RewardUnit")
