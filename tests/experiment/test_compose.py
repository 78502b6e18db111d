"""What a run is called that nobody named."""

import pytest

from tests.experiment.composition import prepared


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
