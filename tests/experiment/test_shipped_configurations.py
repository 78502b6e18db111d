"""Every configuration that ships composes, and gives what its name says."""

from pathlib import Path

import pytest

from marlflow import conf
from marlflow.experiment.plans import drawn_plan
from tests.experiment.composition import algorithms, experiment_of, ready_of

CONF = Path(conf.__path__[0])


def _options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@pytest.mark.parametrize("override", [f"{group}={name}" for group in ("env", "experiment") for name in _options(group)])
def test_environments_and_experiments_are_ready_and_their_plans_check(override: str) -> None:
    made = ready_of(override)
    drawn_plan(made.experiment, made.spec).check()
    assert made.experiment.name == override.partition("=")[2]


@pytest.mark.parametrize("group", ["algorithm", "model", "placement"])
def test_each_part_of_a_policy_can_be_chosen(group: str) -> None:
    for option in _options(group):
        choose = ["+policies.cart.algorithm.choose=builtins.len"] if option == "scripted" else []
        chosen = f"{group}@policies.cart.{group}={option}"
        policy = experiment_of("policy@policies.cart=ppo", chosen, *choose).policies["cart"]
        assert getattr(policy, group) is not None


def test_a_policy_can_be_a_function_of_the_users_own() -> None:
    made = ready_of(
        "env=simple_tag",
        "policy@policies.agent=scripted",
        "policies.agent.algorithm.choose=tests.experiment.test_shipped_configurations.stand_still",
    )
    assert algorithms(made) == {"adversary": "ppo", "agent": "scripted"}
    assert made.spec.policies["agent"].algorithm.choose is stand_still  # type: ignore[attr-defined]


def stand_still(obs: object, action_mask: object, generator: object) -> None:
    """Not called here."""


def test_the_papers_example_has_two_teams() -> None:
    made = ready_of("experiment=cartpole_team_ppo_dqn")
    assert algorithms(made) == {"ppo_team": "ppo", "dqn_team": "dqn"}
    assert made.spec.mapping == {"cart_0": "ppo_team", "cart_1": "ppo_team", "cart_2": "dqn_team", "cart_3": "dqn_team"}
    assert made.experiment.env.arguments == {"num_agents": 4, "max_cycles": 200}


def test_predators_and_prey_learn_differently() -> None:
    assert algorithms(ready_of("experiment=simple_tag_ppo_dqn")) == {"adversary": "ppo", "agent": "dqn"}


def test_the_players_of_connect_four_learn_differently() -> None:
    made = ready_of("experiment=connect_four_ppo_dqn")
    assert algorithms(made) == {"ppo_player": "ppo", "dqn_player": "dqn"}
    assert all(policy.spaces.masked for policy in made.spec.policies.values())
