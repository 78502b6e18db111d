"""Every configuration that ships composes, and gives what its name says."""

import contextlib
from pathlib import Path

import numpy as np
import pytest

import marlflow as mf
from marlflow import conf
from marlflow.checks.validation import ready
from marlflow.config.compose import composed, composing
from marlflow.config.placement import placements
from marlflow.config.plans import drawn_plan
from marlflow.config.schema import read
from marlflow.env import EnvAdapter, open_adapter
from tests.config.composition import algorithms, experiment_of, prepared, ready_of
from tests.env.optional import is_installed

CONF = Path(conf.__path__[0])


def _options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


# What an option leaves to the user.
GIVEN = {
    "functional": ["env.make=tests.env.functional_games.Walkers", "env.max_env_steps=9"],
    "python": ["env._target_=marlflow.env.games.cartpole_team.parallel_env"],
    "pettingzoo": ["env.id=classic/tictactoe-v3"],
    "gymnasium_team": ["env.id=tests.env.tuple_game:TupleGame-v0", "+env.arguments.alike=true"],
}


# Nobody plays in what is offline: it is made of records (see test_records.py).
OFFLINE = {"offline", "cartpole_team_bc", "cartpole_team_marwil"}


@pytest.mark.parametrize("name", [name for name in _options("env") if name not in OFFLINE and is_installed(name)])
def test_each_environment_can_be_trained_on_by_default_and_played(name: str) -> None:
    problems: list[str] = []
    with composing():  # without the command line's help, which composes several times
        experiment = read(composed([f"env={name}", *GIVEN.get(name, ())]), problems)
    assert experiment is not None
    assert problems == []
    named = {"python": "marlflow.env.games.cartpole_team.parallel_env", "pettingzoo": "tictactoe-v3"}
    assert experiment.name == named.get(name, name)
    made = ready(experiment)
    drawn_plan(made.experiment, made.spec).check()
    assert set(algorithms(made).values()) == {"ppo"}
    with contextlib.closing(open_adapter(made.spec.make_env())) as adapter:
        assert _played(adapter, most_steps=8) > 0


def _played(adapter: EnvAdapter, most_steps: int) -> int:
    """How many steps of random actions that the masks allow one episode took."""
    turn, taken = adapter.reset(seed=0), 0
    for agent in adapter.agents:
        adapter.action_space(agent).seed(0)
    while taken < most_steps and not turn.over:
        # gymnasium samples by int8 alone, and masks of batched environments are bool.
        masks = [None if mask is None else mask.astype(np.int8) for mask in turn.masks or [None] * len(turn.deciding)]
        deciding = zip(turn.deciding, masks, strict=True)
        turn = adapter.act([adapter.action_space(adapter.agents[slot]).sample(mask) for slot, mask in deciding])
        taken += 1
    return taken


@pytest.mark.parametrize(
    "name", [name for name in _options("experiment") if name not in OFFLINE and is_installed(name)]
)
def test_experiments_are_ready_their_plans_check_and_none_ends_by_the_clock(name: str) -> None:
    made = ready_of(f"experiment={name}")
    drawn_plan(made.experiment, made.spec).check()
    assert made.experiment.name == name
    # A result must not depend on the speed of the machine; `stop.time_s` is for users.
    assert made.experiment.stop.time_s is None
    assert made.experiment.stop.env_steps is not None


@pytest.mark.parametrize("option", _options("wrappers"))
def test_wrappers_can_be_chosen_by_name(option: str) -> None:
    around = {
        "agent_indicator": ["agent_indicator"],
        "automaton": ["automaton"],
        "black_death": ["black_death"],
        "clip_observations": ["clip_observations"],
        "flatten_actions": ["flatten_actions"],
        "joint_state": ["joint_state"],
        "last_action": ["last_action"],
        "managed": ["managed"],
        "mask_in_info": ["mask_in_info"],
        "named_agents": ["named_agents"],
        "padding": ["pad_observations", "pad_actions"],
        "pixels": ["gray", "resize", "stack"],
        "reward_scale": ["reward_scale"],
        "random_opening": ["random_opening"],
        "shield": ["shield"],
        "widen_bounds": ["widen_bounds"],
    }
    chosen = prepared(f"wrappers={option}")
    assert list(chosen.config.env.wrappers) == around[option]


def test_wrappers_are_put_on_in_the_order_in_which_they_are_chosen() -> None:
    for order in (["padding", "agent_indicator"], ["agent_indicator", "padding"]):
        problems: list[str] = []
        experiment = read(prepared("env=simple_spread", f"wrappers=[{','.join(order)}]").config, problems)
        assert experiment is not None
        names = [wrapper.name.removeprefix("marlflow.env.wrappers.shipped.") for wrapper in experiment.env.wrappers]  # type: ignore[attr-defined]
        padding = ["pad_observations", "pad_actions"]
        assert names == (["agent_indicator", *padding] if order[1] == "padding" else [*padding, "agent_indicator"])


def test_what_a_ready_wrapper_does_can_be_changed_and_others_added() -> None:
    chosen = experiment_of(
        "env=cooperative_pong",
        "wrappers=pixels",
        "model@default_policy.model=cnn",
        "env.wrappers.stack.stack_size=2",
        "env.wrappers.limit={_target_: supersuit.clip_reward_v0}",
    )
    (paddle,) = ready(chosen).spec.policies.values()
    assert paddle.spaces.obs_shape == (84, 84, 2)
    assert [wrapper.name for wrapper in chosen.env.wrappers][2:] == [  # type: ignore[attr-defined]
        "supersuit.frame_stack_v2",
        "supersuit.clip_reward_v0",
    ]


def test_wrappers_without_names_are_a_list() -> None:
    stacked = ready_of("env.wrappers=[{_target_: supersuit.frame_stack_v2, stack_size: 3}]")
    assert stacked.spec.policies["cart"].spaces.obs_shape == (12,)


def test_one_policy_plays_padded_agents_that_differ() -> None:
    made = ready_of(
        "env=simple_tag",
        "wrappers=[padding,agent_indicator]",
        "policy@policies.all=ppo",
        'mapping=[{match: "*", policy: all}]',
    )
    assert made.spec.policies["all"].spaces.obs_shape == (16 + 4,)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["env=python"], "env._target_ is not set; give the import path of your environment"),
        (
            ["env=python", *GIVEN["python"], "env.num_cats=3"],
            "there is no env.num_cats; did you mean 'env.num_agents'?",
        ),
        (["wrappers=paddin"], "there is no wrappers 'paddin'; did you mean 'padding'?"),
        (["wrappers=[padding,agent]"], "there is no wrappers 'agent'; "),
        (["wrappers=[padding,null]"], "null cannot be one of several; to choose none, write wrappers=null"),
        (["runtime=null"], "runtime=null: runtime cannot be null; choose inline, ray"),
        (["env.wrappers=[{_target_: supersuit.frame_stak_v2}]"], "did you mean 'frame_stack_v2'?"),
        (["env.wrappers=stack"], "env.wrappers must be wrappers by name, {<name>: {_target_: ...}, ...}, or a list"),
        (["env.wrappers={_target_: supersuit.flatten_v0}"], "env.wrappers must be wrappers by name"),
        (["env=connect_four", "wrappers=agent_indicator"], "take them out first: wrappers=[mask_in_info,...]"),
    ],
)
def test_what_is_wrong_with_an_environment_or_its_wrappers_is_said(overrides: list[str], problem: str) -> None:
    with pytest.raises(mf.ConfigInvalid) as caught:
        ready_of(*overrides)
    assert problem in str(caught.value)


def test_an_environment_of_ones_own_takes_its_arguments() -> None:
    made = ready_of("env=python", *GIVEN["python"], "env.num_agents=3", "env.num_envs=2")
    assert made.experiment.env.arguments == {"num_agents": 3}
    assert made.agents == ("cart_0", "cart_1", "cart_2")


@pytest.mark.parametrize("group", ["algorithm", "model"])
def test_each_part_of_a_policy_can_be_chosen(group: str) -> None:
    problems: list[str] = []
    with composing():  # without the command line's help, which composes several times
        for option in _options(group):
            chosen = [f"{group}@policies.cart.{group}={option}", *_NEEDED.get(option, [])]
            experiment = read(composed(["+policy@policies.cart=ppo", *chosen]), problems)
            assert problems == []
            assert experiment is not None
            assert getattr(experiment.policies["cart"], group) is not None


_NEEDED = {
    "scripted": ["+policies.cart.algorithm.choose=builtins.len"],
    "frozen": ["policies.cart.algorithm.run=runs/another"],
}
"""What has no default."""


def test_each_placement_can_be_chosen() -> None:
    problems: list[str] = []
    with composing():  # without the command line's help, which composes several times
        words = {name: ["experiment=simple_tag_ppo_dqn", f"placement={name}"] for name in _options("placement")}
        read_all = {name: read(composed(chosen), problems) for name, chosen in words.items()}
    assert problems == []
    chosen = {name: experiment for name, experiment in read_all.items() if experiment is not None}
    placed = {name: placements(one.placement, one.policies)["agent"] for name, one in chosen.items()}
    found = {name: (one.num_learners, one.num_gpus) for name, one in placed.items()}
    on_gpus = {"one_gpu": (1, 0.5), "gpu_per_policy": (1, 1.0), "data_parallel": (2, 1.0)}
    assert found == {"cpu": (1, 0.0), "inference_gpu": (1, 0.0), "cluster": (1, 0.0), **on_gpus}
    assert {name for name, one in chosen.items() if one.placement.spread} == {"cluster"}
    assert {name for name, one in chosen.items() if one.placement.inference} == {"inference_gpu"}


def test_several_placements_go_together_in_any_order() -> None:
    problems: list[str] = []
    for words in ("cluster,gpu_per_policy,inference_gpu", "inference_gpu,gpu_per_policy,cluster"):
        with composing():
            experiment = read(composed([f"placement=[{words}]"]), problems)
        assert experiment is not None
        placed = experiment.placement
        assert (placed.spread, placed.learners.num_gpus, placed.inference is not None) == (True, 1.0, True)
    assert problems == []


def test_a_policy_can_be_placed_by_itself_and_so_can_a_stage() -> None:
    made = ready_of(
        "experiment=simple_tag_ppo_dqn",
        "placement=one_gpu",
        "policies.agent.placement.num_gpus=0",
        "policies.agent.placement.replay=own",
        "policies.adversary.placement.stages.Advantages=worker",
        "placement.inference.num_cpus=2",
    )
    adversary, agent = (made.spec.learners[name].placement for name in ("adversary", "agent"))
    assert (adversary.num_gpus, adversary.stages) == (1.0, {"Advantages": "worker"})
    assert (agent.num_gpus, agent.replay, agent.stages) == (0.0, "own", {})
    assert made.spec.inference == mf.InferencePlacement(num_cpus=2)


def test_a_policy_can_be_a_function_of_the_users_own() -> None:
    made = ready_of(
        "env=simple_tag",
        "policy@policies.agent=scripted",
        "policies.agent.algorithm.choose=tests.config.test_shipped_configurations.stand_still",
    )
    assert algorithms(made) == {"adversary": "ppo", "agent": "scripted"}
    assert made.spec.policies["agent"].algorithm.choose is stand_still  # type: ignore[attr-defined]


def stand_still(obs: object, action_mask: object, generator: object) -> None:
    """Not called here."""


def test_the_papers_example_has_two_teams() -> None:
    made = ready_of("experiment=cartpole_team_ppo_dqn")
    assert algorithms(made) == {"ppo_team": "ppo", "dqn_team": "dqn"}
    assert made.spec.mapping == {"cart_0": "ppo_team", "cart_1": "ppo_team", "cart_2": "dqn_team", "cart_3": "dqn_team"}
    assert made.experiment.env.arguments == {"num_agents": 4, "max_cycles": 200, "velocities": True}


def test_predators_and_prey_learn_differently() -> None:
    assert algorithms(ready_of("experiment=simple_tag_ppo_dqn")) == {"adversary": "ppo", "agent": "dqn"}


def test_the_players_of_connect_four_learn_differently() -> None:
    made = ready_of("experiment=connect_four_ppo_dqn")
    assert algorithms(made) == {"ppo_player": "ppo", "dqn_player": "dqn"}
    assert all(policy.spaces.masked for policy in made.spec.policies.values())
