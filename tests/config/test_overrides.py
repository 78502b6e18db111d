"""What a person writes, with or without `+`, becomes what Hydra wants."""

import pytest

from marlflow.base.errors import ConfigInvalid
from tests.config.composition import experiment_of, prepared

DQN_CART = "policy@policies.cart=dqn"
TEAM = "experiment=cartpole_team_ppo_dqn"


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ([DQN_CART], [f"+{DQN_CART}"]),
        ([f"+{DQN_CART}"], [f"+{DQN_CART}"]),
        ([TEAM, "policy@policies.dqn_team=ppo"], [TEAM, "policy@policies.dqn_team=ppo"]),
        ([TEAM, "+policy@policies.dqn_team=ppo"], [TEAM, "policy@policies.dqn_team=ppo"]),
        (
            ["algorithm@policies.cart.algorithm=ppo", DQN_CART],
            ["algorithm@policies.cart.algorithm=ppo", f"+{DQN_CART}"],
        ),
        (
            [DQN_CART, "+model@policies.cart.model=cnn", "+policies.cart.algorithm.n_step=1"],
            [f"+{DQN_CART}", "model@policies.cart.model=cnn", "policies.cart.algorithm.n_step=1"],
        ),
        (["+seed=1", "++rollouts.num_workers=1"], ["seed=1", "++rollouts.num_workers=1"]),
        (["stop.policies.cart.return_mean=9"], ["+stop.policies.cart.return_mean=9"]),
        (["env.render_mode=rgb_array"], ["+env.render_mode=rgb_array"]),
        (
            ["env=simple_tag", "~env.num_good", "hydra.run.dir=x"],
            ["env=simple_tag", "~env.num_good", "hydra.run.dir=x"],
        ),
        (
            ['mapping=[{match: "cart_*", policy: all}]', "+policy@policies.all=ppo", "mapping.0.policy=everyone"],
            ['mapping=[{match: "cart_*", policy: all}]', "+policy@policies.all=ppo", "mapping.0.policy=everyone"],
        ),
    ],
)
def test_prefixes(written: list[str], wanted: list[str]) -> None:
    assert prepared(*written).overrides == wanted


def test_an_experiments_own_policy_is_changed_where_it_stands() -> None:
    overrides = ("experiment=simple_tag_ppo_dqn", "policy@policies.agent=ppo", "policies.agent.algorithm.epochs=2")
    policies = experiment_of(*overrides).policies
    assert list(policies) == ["adversary", "agent"]
    assert policies["agent"].algorithm.epochs == 2  # type: ignore[attr-defined]


def test_the_first_job_of_a_sweep_stands_for_all() -> None:
    job = prepared("seed=3,4", "policy@policies.cart=dqn,ppo", "stop.env_steps=range(5,9)", multirun=True)
    assert job.overrides == ["seed=3,4", "+policy@policies.cart=dqn,ppo", "stop.env_steps=range(5,9)"]
    assert job.config.seed == 3
    assert job.config.policies.cart.algorithm._target_.endswith("DQN")
    assert job.config.stop.env_steps == 5


def test_keys_that_do_not_exist_are_dropped_and_said_together() -> None:
    job = prepared("sead=1", "policies.prey.algorithm.n_step=3", "seed=5")
    assert job.overrides == ["seed=5"]
    assert job.problems == [
        "there is no sead; did you mean 'seed'?",
        "policies.prey.algorithm.n_step: there is no policy 'prey'; add it with policy@policies.prey=ppo",
    ]


def test_options_that_do_not_exist_are_said_together() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        prepared("env=simpel_tag", "policy@policies.prey=pqo", "runtime=rya")
    assert caught.value.problems == (
        "there is no env 'simpel_tag'; did you mean 'simple_tag'?",
        "there is no policy 'pqo'; did you mean 'ppo'?",
        "there is no runtime 'rya'; did you mean 'ray'?",
    )


def test_what_hydra_cannot_compose_is_one_sentence() -> None:
    with pytest.raises(ConfigInvalid, match=r"^the configuration cannot be composed: [^\n]*stop\.steps[^\n]*$"):
        prepared("~stop.steps")


def test_what_hydra_would_take_for_something_else_is_refused_together() -> None:
    job = prepared(
        DQN_CART,
        "~stop",
        "~name",
        "policies.cart.algorithm.epsilon={start: 1}",
        "env.max_cycles=abc",
        "+env.render_mode=human",
        "env.num_agents=2",
        "env.num_envs=many",  # not the environment's
        "seed=1e3",
    )
    assert job.problems == [
        "~stop takes away what every run has; give it the value that is meant, or leave it out for the default",
        "~name takes away what every run has; give it the value that is meant, or leave it out for the default",
        "policies.cart.algorithm.epsilon={start: 1} has no _target_: name the class that it is to be made from, or "
        "change what is there by policies.cart.algorithm.epsilon.start=1",
        "env.max_cycles must be a number, such as 200, not 'abc'",
    ]
    assert job.config.env.num_agents == 2


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("seed=int(3.7)", "seed=int(3.7) would cut 3.7 down to a whole number"),
        ("policies.cart.model.hidden_sizes=int([8,1.5])", "would cut 1.5 down to a whole number"),
        (f"env.num_agents={'[' * 99}1{']' * 99}", "nested 99 deep, and no setting is nested more than 32 deep"),
        (f"env.{'.'.join('a' * 99)}=1", "nested 99 deep"),
        (f"seed={'int(' * 99}3{')' * 99}", "nested 99 deep"),
        (f"seed={'9' * 5_000}", "cannot read 'seed=9999"),
    ],
)
def test_what_cannot_be_read_as_it_is_meant_is_refused(written: str, reason: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        prepared(written)
    (problem,) = caught.value.problems
    assert reason in problem


def test_casts_that_lose_nothing_are_hydras_own() -> None:
    assert prepared("seed=int(3.0)", "name='int(3.7)'").problems == []
    assert prepared("seed=int(7)").config.seed == 7


SEATED = "{_target_: marlflow.sampling.matchmaking.RandomSeats, policies: [ppo_player, dqn_player]}"
RULES = [{"match": "player_0", "policy": "ppo_player"}, {"match": "*", "policy": "dqn_player"}]


def test_rules_can_be_replaced_by_a_matchmaker_and_a_matchmaker_by_rules_or_by_another() -> None:
    seats = prepared("experiment=connect_four_ppo_dqn", f"mapping={SEATED}")
    assert not seats.problems
    assert set(seats.config.mapping) == {"_target_", "policies"}
    rules = prepared(
        "experiment=connect_four_random_seats",
        "mapping=[{match: player_0, policy: ppo_player}, {match: '*', policy: dqn_player}]",
    )
    assert not rules.problems
    assert list(rules.config.mapping) == RULES
    other = prepared("experiment=connect_four_random_seats", "mapping={_target_: my.own.Pairing, elo: 1200}")
    assert dict(other.config.mapping) == {"_target_": "my.own.Pairing", "elo": 1200}


def test_a_part_of_a_matchmaker_can_be_changed() -> None:
    changed = prepared("experiment=connect_four_random_seats", "mapping.policies=[dqn_player, ppo_player]")
    assert changed.config.mapping.policies == ["dqn_player", "ppo_player"]
    assert changed.config.mapping._target_ == "marlflow.sampling.matchmaking.RandomSeats"
