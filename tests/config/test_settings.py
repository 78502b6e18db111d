"""Every setting is held against its type and its range, wherever it is set, and every refusal names its key."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import marlflow as mf
from marlflow.algorithms.shipped import SHIPPED
from marlflow.base.errors import ProblemKind
from marlflow.base.ranges import INFINITY, Range
from marlflow.config.construct import construct
from marlflow.config.settings import range_of, remarks, setting_problems
from tests.config.every_setting import FIRST, tried
from tests.runtime.small_runs import small_run
from tests.sentences import refusals, sentences, wrong_with, wrong_with_settings

# By value, the last names of the keys that may have it. Whatever is not here is refused, and a key that is here and
# does not take the value after all fails too.
THRESHOLDS = {"clip_range", "value_clip_range", "huber_delta", "max_grad_norm", "rho_max", "c_max", "max_weight"} | {
    "target_noise_clip"
}
ANY_SIZE = {"return_mean", "value_min", "value_max", "target_entropy"}
BOUNDS_OF_SCHEDULES = {"start", "end", "values[0]", "values[1]"}  # where nothing is scheduled by it
OF_THE_ENVIRONMENT = {"num_agents", "max_cycles"}  # which says itself what it takes


def names(text: str) -> set[str]:
    return set(text.split())


# Where an empty list or section is accepted here, it may be refused later: once it is known which policies, agents and
# parts there are. "device" and "node_ip_address" are asked of torch and the machine.
ACCEPTED: Mapping[str, set[str]] = {
    "text": names("""
        address best device folder match name node node_ip_address objective parts[0] policies[0] policy reset_to run
        trust[0]
    """),
    "nan": set(),
    "inf": THRESHOLDS,
    "-inf": set(),
    "-1": ANY_SIZE | BOUNDS_OF_SCHEDULES | OF_THE_ENVIRONMENT,
    "0": names("""
        actor_learning_rate beta beta_1 beta_2 burn_in_agent_steps checkpoint delta discount end_token
        entropy_coefficient episodes epsilon epsilon_ladder exploited exploiter_past exploiter_weak exploration_noise
        final_episodes fpga gae_lambda grace_period_s inner_learning_rate
        learning_rate learning_starts_agent_steps live logit_penalty max_staleness memory_bytes momentum
        num_cpus num_gpus past pfsp power prior_games priority_alpha priority_beta
        priority_max_share replay_max_env_steps reset_probability scale_rate seed self_play_weak strong
        target_entropy_share target_noise tau td_lambda temperature trace_lambda value_coefficient verify
        warm_up_updates weight_decay win_rate workers
    """)
    | {field.name for field in dataclasses.fields(mf.Faults)}
    | ANY_SIZE
    | BOUNDS_OF_SCHEDULES
    | OF_THE_ENVIRONMENT,
    "1e30": THRESHOLDS | ANY_SIZE | BOUNDS_OF_SCHEDULES | OF_THE_ENVIRONMENT,
    "2**63": THRESHOLDS | ANY_SIZE | BOUNDS_OF_SCHEDULES | OF_THE_ENVIRONMENT,
    "true": names("""
        at_start batched bootstrap_at_death compile compiled dashboard double dueling jsonl mirrored momentum
        normalize_advantages normalize_observations prioritized shared_torso spread
        squash_state symmetric tensorboard token_baseline trace velocities
    """),
    "10**400": OF_THE_ENVIRONMENT,
    "null": names("""
        address agent_steps algorithm best callbacks_failed cart checkpoint device distinct_members end_token
        env_steps every_agent_steps every_env_steps experience final_episodes folder inference init
        league learns_from mapping minibatch_tasks nash_conv_every_env_steps newest node node_ip_address num_cpus
        num_gpus num_learners object_store_bytes objective opponents outcome pairs parts patience payoff_se policies
        policy precision queue_fragments record replay resources return_mean shared_gpus sides stages step_timeout_s
        target_entropy temperature time_s time_share timeout_agent_steps trust value_clip_range values velocities
        win_rate wrappers
    """)
    | OF_THE_ENVIRONMENT,
    "[nan]": {"trust"},
    "{a: 1}": {"resources", "reward_from"},
    "{1: 2}": {"resources", "reward_from"},
    "''": set(),
    "[]": names("""
        channels critic_sees encoder_sizes hidden_sizes kernel_sizes learns_from mapping opponents parts policies
        strides trust wrappers
    """),
    "{}": names("""
        callbacks cart checkpoint columns default_policy evaluation extra_losses faults inference league learners
        log matches members metrics pairs parts payoffs placement players policies pool ratings record resources
        reward_from roles rollouts runtime sides sinks snapshots stages stop store wrappers
    """),
}


@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_key_with_every_value_is_accepted_by_the_table_or_refused_by_its_name(again: bool) -> None:
    accepted: dict[str, set[str]] = {value: set() for value in ACCEPTED}
    refused_in_other_words = []
    for one in tried(again):
        if one.outcome == "accepted":
            accepted[one.value].add(one.key.rpartition(".")[2])
        elif one.outcome != "refused":
            refused_in_other_words.append(one)
    assert refused_in_other_words == []
    assert accepted == {value: ACCEPTED[value] if again or value in FIRST else set() for value in ACCEPTED}


KINDS = (
    *(type(algorithm) for algorithm in SHIPPED),
    *(
        mf.Experiment,
        mf.Env,
        mf.Policy,
        mf.PolicyStop,
        mf.PlacementOverrides,
        mf.RunPlacement,
        mf.OfflineData,
        mf.Rollouts,
        mf.Stop,
        mf.Faults,
        mf.CostLimit,
        mf.KLToReference,
        mf.PopArt,
        mf.RewardUnit,
    ),
    *(mf.FromRun, mf.Frozen),
    *(
        mf.CheckpointConfig,
        mf.Evaluation,
        mf.Log,
        mf.RuntimeConfig,
        mf.LearnerPlacement,
        mf.InferencePlacement,
        mf.Resources,
    ),
    *(mf.CostLimit, mf.KLToReference),
    *(mf.MLP, mf.CNN, mf.GRU, mf.LSTM, mf.Transformer, mf.Adam, mf.Linear, mf.CosineDecay, mf.PiecewiseConstant),
    *(
        mf.League,
        mf.LeaguePlayer,
        mf.Pool,
        mf.PayoffSettings,
        mf.RatingSettings,
        mf.SnapshotRules,
        mf.MatchRules,
        mf.PSRO,
        mf.StoreSettings,
    ),
    mf.EarlyStop,
    *(mf.AlphaStar, mf.DeltaUniform, mf.Fictitious, mf.LatestPast, mf.NaiveSelfPlay, mf.PFSP, mf.NFSP),
)


def test_every_number_has_a_range_on_its_field() -> None:
    of_the_state = {(mf.PSRO, "iteration"), (mf.PSRO, "meta")}
    assert len(KINDS) > 60
    for kind in KINDS:
        # As they are, and not as strings: an alias of a number is one too.
        for name, hint in get_type_hints(kind, include_extras=True).items():
            field = {field.name: field for field in dataclasses.fields(kind)}.get(name)
            if field is None or not field.init or (kind, name) in of_the_state or not _numbers(hint):
                continue
            allowed = range_of(kind, name)
            assert allowed.low > -INFINITY, f"{kind.__name__}.{name} has no range: Annotated[{field.type}, Range(...)]"
            assert all(allowed == own for own in _numbers(hint)), f"{kind.__name__}.{name} has a number without range"


def _numbers(hint: Any) -> list[Range | None]:
    """The range of each number in an annotation; None for a number without one."""
    if get_origin(hint) is Annotated:
        return [next((one for one in hint.__metadata__ if isinstance(one, Range)), None)]
    if hint in (int, float):
        return [None]
    return [own for part in get_args(hint) for own in _numbers(part)] if get_origin(hint) is not Literal else []


@pytest.mark.parametrize(
    ("algorithm", "problem"),
    [
        (
            mf.PPO(learning_rate=math.nan),
            "policies.prey.algorithm.learning_rate must be a number, at least 0 and at most 1, not nan",
        ),
        (mf.PPO(epochs=2.5), "policies.prey.algorithm.epochs must be a whole number, not 2.5"),  # type: ignore[arg-type]
        (mf.PPO(discount=mf.Linear(0.5, 1.5, 10)), "policies.prey.algorithm.discount.end must be at most 1, not 1.5"),
        (mf.DQN(optimizer=mf.Adam(beta_1=2)), "policies.prey.algorithm.optimizer.beta_1 must be less than 1, not 2"),
        (
            mf.DQN(epsilon=mf.PiecewiseConstant([1, math.inf], [5])),
            "policies.prey.algorithm.epsilon.values[1] must be a finite number",
        ),
        (mf.DQN(value_min=100), "policies.prey.algorithm.value_min is 100, and atoms is 1"),
        (mf.DQN(batch_agent_steps=200_000), "policies.prey.algorithm.batch_agent_steps is 200,000, and its replay"),
    ],
)  # fmt: skip
def test_settings_from_python_are_checked_like_those_of_a_configuration(algorithm: Any, problem: str) -> None:
    experiment = small_run()
    policies = {**experiment.policies, "prey": mf.Policy(algorithm)}
    (said,) = refusals(mf.ConfigInvalid, mf.train, dataclasses.replace(experiment, policies=policies))
    assert said.startswith(problem)


def test_numbers_of_numpy_are_numbers() -> None:
    assert list(sentences(setting_problems(mf.PPO(epochs=np.int64(3), learning_rate=np.float32(1e-3))))) == []  # type: ignore[arg-type]
    (problem,) = sentences(setting_problems(mf.PPO(epochs=np.int64(0)), "algorithm"))  # type: ignore[arg-type]
    assert problem == "algorithm.epochs must be at least 1, not 0"


def test_a_schedule_of_a_users_own_is_looked_at_where_it_begins_and_ends() -> None:
    class Rising:
        def at(self, agent_steps: int) -> float:
            return float(agent_steps > 0) * 2.0

    (problem,) = sentences(setting_problems(mf.PPO(discount=Rising()), "algorithm"))
    assert problem == f"algorithm.discount.at({2**62}) must be at most 1, not 2"


@dataclasses.dataclass(frozen=True)
class Own(mf.PPO):
    """An algorithm of a user's own, with settings under names that shipped classes have too, and others."""

    alpha: float = 5.0
    keep: int = 0
    bound: float = math.inf
    tries: Annotated[int, mf.Range(1, 10)] = 3
    weights: Mapping[str, Annotated[mf.ScheduledFloat, mf.Range(0, 2)]] = dataclasses.field(default_factory=dict)
    learning_rate: mf.ScheduledFloat = 1e-3
    epochs: Annotated[int, mf.Range(0, 10)] = 0


def test_settings_of_a_users_own_are_held_against_what_their_class_says() -> None:
    assert list(sentences(setting_problems(Own(weights={"a": 2.0})))) == []
    assert list(sentences(setting_problems(Own(alpha=-7.0, keep=-1)))) == []
    wrong = Own(alpha=math.inf, bound=math.nan, tries=0, weights={"a": mf.Linear(0, 3, 10)}, epochs=11)
    assert list(sentences(setting_problems(wrong, "algorithm"))) == [
        "algorithm.epochs must be at most 10, not 11",
        "algorithm.alpha must be a finite number, not inf",
        "algorithm.bound must be a number or inf, not nan",
        "algorithm.tries must be at least 1, not 0",
        "algorithm.weights.a.end must be at most 2, not 3",
    ]


def test_a_field_that_a_base_class_has_keeps_its_range() -> None:
    (problem,) = sentences(setting_problems(Own(learning_rate=7.0), "algorithm"))
    assert problem == "algorithm.learning_rate must be at most 1, not 7"


@dataclasses.dataclass(frozen=True)
class OnlyForTypeCheckers(mf.PPO):
    """An algorithm with an annotation that cannot be resolved."""

    epochs: Unknown = "any"  # type: ignore[name-defined,assignment]  # noqa: F821
    alpha: float = 5.0


def test_an_annotation_that_cannot_be_resolved_takes_no_range_from_the_fields_of_bases() -> None:
    (problem,) = sentences(setting_problems(OnlyForTypeCheckers(discount=2.0), "algorithm"))
    assert problem == "algorithm.discount must be at most 1, not 2"


class PlainTorso(mf.TorsoConfig):
    """A network of a user's own that is no dataclass."""

    def __init__(self, width: Annotated[int, mf.Range(1, 512)], alpha: float = 5.0) -> None:
        self.width = width

    def build(self, obs_shape: tuple[int, ...], generator: Any) -> Any:
        raise AssertionError("nothing calls it")


def test_arguments_of_a_plain_class_have_ranges_too() -> None:
    def of(**arguments: Any) -> list[str]:
        made = construct(PlainTorso, arguments, "model", said := [])
        return [*said, *sentences(setting_problems(mf.Policy(model=made), "policies.a"))]

    assert of(width=64, alpha=7.0) == []
    assert of(width=1_000) == ["policies.a.model.width must be at most 512, not 1000"]
    assert of(width=2.5)[0] == "model.width must be a whole number, not 2.5"


@pytest.mark.parametrize("name", ["", ".", "..", "...", "../x", "/abs", "a/b", "x" * 101, "tab\t", " a", "nul\0"])
def test_a_run_or_a_policy_whose_name_cannot_be_a_folders_is_refused(name: str) -> None:
    experiment = small_run()
    (problem,) = wrong_with_settings(dataclasses.replace(experiment, name=name))
    assert problem.startswith("name must be a name for a folder")
    (problem,) = wrong_with_settings(dataclasses.replace(experiment, policies={name: mf.Policy()}))
    assert problem.startswith("a name in policies must be a name for a folder")


def test_an_argument_of_another_kind_than_the_environment_takes_is_refused() -> None:
    def factory(
        max_cycles: int = 25, name: str = "a", render: bool = False, speed: float = 1.0, far: float = math.inf
    ) -> None: ...

    def of(**arguments: Any) -> list[str]:
        return wrong_with_settings(dataclasses.replace(small_run(), env=mf.Env(factory, arguments, num_envs=4)))

    assert of(max_cycles=3, name="b", render=True, speed=2, far=math.inf) == []
    assert of(max_cycles="abc", name=3, render="no", speed=math.nan) == [
        "env.max_cycles must be a number, such as 25, not 'abc'",
        "env.name must be text, such as 'a', not 3",
        "env.render must be true or false, such as False, not 'no'",
        "env.speed must be a finite number, not nan",
    ]
    # Its parallel_env takes whatever there is, and hands it on to the raw_env beside it.
    passing_on = mf.Env("mpe2.simple_tag_v3.parallel_env", {"max_cycles": "abc"}, num_envs=4)
    assert wrong_with_settings(dataclasses.replace(small_run(), env=passing_on)) == [
        "env.max_cycles must be a number, such as 25, not 'abc'"
    ]


def test_more_learners_than_rows_for_them_are_refused() -> None:
    thousand = dataclasses.replace(small_run(), placement=mf.RunPlacement(mf.LearnerPlacement(num_learners=1_000)))
    problems = wrong_with_settings(thousand)
    assert problems[0].startswith(
        "1,000 learners (num_learners) would share policies.hunters.algorithm.minibatch_agent_steps=64, and each needs"
    )


def test_what_is_allowed_and_unusual_is_said() -> None:
    assert list(remarks(small_run())) == []
    experiment = dataclasses.replace(
        small_run(), stop=mf.Stop(policies={"prey": 9.0}), policies={"hunters": mf.Policy(mf.PPO(discount=0.0))}
    )
    assert [remark.partition(":")[0] for remark in remarks(experiment)] == [
        "policies.hunters.algorithm.discount is 0",
        "neither stop.env_steps nor stop.time_s is set",
    ]


def test_an_optimizer_of_torch_has_ranges_too() -> None:
    import torch

    optimizer = mf.TorchOptimizer(torch.optim.SGD, {"momentum": math.nan})
    (problem,) = sentences(setting_problems(mf.PPO(optimizer=optimizer), "algorithm"))
    assert problem.startswith("algorithm.optimizer.momentum must be a number")

    class Own(torch.optim.SGD):
        def __init__(self, params: Any, lr: float, momentum: float, alpha: Annotated[float, mf.Range(0, 9)]) -> None:
            super().__init__(params, lr)

    optimizer = mf.TorchOptimizer(Own, {"momentum": 7.0, "alpha": 10.0})
    (problem,) = sentences(setting_problems(mf.PPO(optimizer=optimizer), "algorithm"))
    assert problem == "algorithm.optimizer.alpha must be at most 9, not 10"


class Late:
    """A schedule of a user's own, with a value for the first agent step and one for all later ones."""

    def __init__(self, first: Any, later: Any) -> None:
        self.values = first, later

    def at(self, agent_steps: int) -> Any:
        value = self.values[agent_steps > 0]
        if isinstance(value, Exception):
            raise value
        return value


@pytest.mark.parametrize(
    ("first", "later", "problem"),
    [
        (0.1, 0.2, None),
        (np.float32(0.5), 1, None),
        (0.1, 7.0, r"learning_rate\.at\(\d+\) must be at most 1, not 7"),
        (0.1, float("nan"), r"learning_rate\.at\(\d+\) must be a number, at least 0 and at most 1, not nan"),
        (None, 0.1, r"learning_rate: Late\.at\(\) gives no number: TypeError: "),
        (0.1, 10**400, r"learning_rate: Late\.at\(\) gives no number: OverflowError: "),
        (0.1, KeyError("warm"), r"learning_rate: Late\.at\(\) gives no number: KeyError: 'warm'\n  File .*, in at\n"),
    ],
)
def test_a_schedule_of_ones_own_is_asked_for_numbers(first: Any, later: Any, problem: str | None) -> None:
    problems = sentences(setting_problems(mf.PPO(learning_rate=Late(first, later)), "ppo"))
    assert len(problems) == (problem is not None)
    assert all(re.match(rf"ppo\.{problem}", one) for one in problems)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_ends_the_checks_that_would_compute_with_it(number: float) -> None:
    (kind,) = {one.kind for one in setting_problems(mf.RunPlacement(shared_gpus=number)) if not isinstance(one, str)}
    assert kind is ProblemKind.WRONG_TYPE
    found = wrong_with(small_run(placement=mf.RunPlacement(shared_gpus=number)))
    assert any("placement.shared_gpus must be a number, more than 0" in one for one in found)
