"""What a run is called that nobody named, and that a configuration is what Hydra composes of the same overrides."""

import hydra
import pytest
from omegaconf import OmegaConf

from marlflow.config.compose import NAME, composing
from tests.config.composition import prepared


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "cartpole_team"),
        (["env=simple_tag"], "simple_tag"),
        (["env=offline", "env.folder=records"], "offline"),
        (["env=python", "env._target_=my_module.Walk"], "my_module.Walk"),
        (["env=python", "env._target_=my_module.Walk", "name=walks"], "walks"),
        (["env=python"], "python"),
        (["env=python", "env._target_=../walk"], "python"),
        (["experiment=simple_tag_ppo_dqn"], "simple_tag_ppo_dqn"),
    ],
)
def test_a_run_has_the_name_of_its_environment(words: list[str], name: str) -> None:
    assert prepared(*words).config.name == name


@pytest.mark.parametrize(
    "words",
    [
        ["env=simple_tag"],
        ["env=simple_tag", "policy@policies.agent=dqn", "policies.agent.algorithm.learning_rate=1e-3", "seed=3"],
        ["experiment=cartpole_team_ppo_dqn", "runtime=inline", "~stop.env_steps", "env.num_agents=6", "log.trace=true"],
        ["experiment=connect_four_random_seats", "mapping={_target_: my.own.Pairing, elo: 1200}"],
        ["env=simple_tag", "wrappers=[padding,pixels]", "stop.policies.agent.return_mean=3", "hydra.run.dir=here"],
    ],
)
def test_values_set_on_a_composed_configuration_are_those_that_hydra_composes(words: list[str]) -> None:
    job = prepared(*words)
    with composing():
        expected = hydra.compose(NAME, overrides=job.overrides, return_hydra_config=True)
    assert OmegaConf.to_container(job.config) == OmegaConf.to_container(expected)
