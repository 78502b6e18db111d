"""The comments of conf/, as a shown configuration and the reference page have them."""

from typing import Any

import yaml
from omegaconf import OmegaConf

from marlflow.config.comments import Entry, commented, explained, files, names
from tests.config.composition import prepared

FILE = """\
# @package _global_
# What it is for,
# on two lines.
defaults:
  - /policy@policies.prey: dqn            # learns
  - _self_
  - override /env: simple_tag

rate: 1e-3                                # of something; a long
                                          # explanation
rollouts:
  placement:                              # what each takes
    'num cpus': null                      # a fraction
  pace: lockstep
"""


def _composed(*words: str) -> Any:
    config: Any = OmegaConf.to_container(prepared(*words).config)
    return {key: value for key, value in config.items() if key != "hydra"}


def test_each_key_of_a_file_has_its_comment() -> None:
    file = commented(FILE)
    assert file.heading == ("What it is for,", "on two lines.")
    assert file.entries == (
        Entry(("defaults",), "", ()),
        Entry(("defaults", "policies.prey"), "dqn", ("learns",)),
        Entry(("defaults", "env"), "simple_tag", ()),
        Entry(("rate",), "1e-3", ("of something; a long", "explanation")),
        Entry(("rollouts",), "", ()),
        Entry(("rollouts", "placement"), "", ("what each takes",)),
        Entry(("rollouts", "placement", "num cpus"), "null", ("a fraction",)),
        Entry(("rollouts", "pace"), "lockstep", ()),
    )


def test_a_shown_configuration_is_the_same_with_comments_and_no_key_of_marlflows_is_without() -> None:
    policies = [f"policy@policies.{name}={name}" for name in names("policy")]
    config = _composed("env=simple_tag", "wrappers=[padding,pixels]", *policies)
    shown = OmegaConf.to_yaml(OmegaConf.create(config))
    text = explained(shown, config)
    assert yaml.safe_load(text) == yaml.safe_load(shown)
    silent = {line.strip().partition(":")[0] for line in text.splitlines() if ":" in line and "#" not in line}
    sections = {"runtime", *(word.rpartition("=")[2] for word in policies)}
    wrappers = {"pad_observations", "pad_actions", "gray", "resize", "stack"}
    assert silent == {"_target_", *sections, *wrappers}


def test_policies_are_explained_by_the_algorithm_and_the_model_that_they_have() -> None:
    words = ("policy@policies.cart=dqn", "algorithm@policies.cart.algorithm=apex", "model@policies.cart.model=gru")
    config = _composed(*words)
    lines = explained(OmegaConf.to_yaml(OmegaConf.create(config["policies"])), {}).splitlines()
    assert not any("#" in line for line in lines)
    (shards,) = [
        line
        for line in explained(OmegaConf.to_yaml(OmegaConf.create(config)), config).splitlines()
        if "replay_shards" in line
    ]
    assert shards.endswith("# processes that the rows are divided among")


def test_a_part_of_a_configuration_says_which_it_is() -> None:
    config = _composed("env=connect_four")
    shown = "# @package env\n" + OmegaConf.to_yaml(OmegaConf.create(config["env"]))
    (num_envs,) = [line for line in explained(shown, config).splitlines() if line.startswith("num_envs")]
    assert num_envs == f"{'num_envs: 16':<47} # environments that run at once, over all workers"


def test_every_file_says_what_it_is_for() -> None:
    for group in ("env", "policy", "algorithm", "model", "placement", "runtime", "wrappers", "experiment"):
        assert all(file.heading for file in files(group).values()), group
